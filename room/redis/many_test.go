package redis_test

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

// 10,000 clients are connected at once, and each one counts.
func TestManyConnections(t *testing.T) {
	const clients = 10_000
	dial := open(t)
	conns := make([]net.Conn, clients)
	for k := range conns {
		conns[k] = dial()
		if got := exchange(t, conns[k], bulks("PING"), 7); got != "+PONG\r\n" {
			t.Fatalf("client %d: %q", k, got)
		}
	}
	for k, c := range conns {
		want := ":" + strconv.Itoa(k+1) + "\r\n"
		if got := exchange(t, c, bulks("INCR", "order"), len(want)); got != want {
			t.Fatalf("client %d: %q; want %q", k, strings.TrimSpace(got), want)
		}
	}
}
