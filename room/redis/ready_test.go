package redis_test

import (
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/room/redis"
)

// openTCP runs a door over TCP, which reads differently than over a pipe. It returns what
// stops the door.
func openTCP(t *testing.T, l net.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- redis.New((&counters{}).config()).Run(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dialTCP(t *testing.T, l net.Listener) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T", conn)
	}
	return tcp
}

// Over TCP commands are answered one by one, in pipelines longer than the buffer, in halves
// and in transactions.
func TestTCP(t *testing.T) {
	t.Parallel()
	l := listen(t)
	openTCP(t, l)
	conn, last := dialTCP(t, l), 0
	count := func(n int) (send, want string) {
		var answers strings.Builder
		for range n {
			last++
			answers.WriteString(":" + strconv.Itoa(last) + "\r\n")
		}
		return strings.Repeat(bulks("INCR", "order"), n), answers.String()
	}
	for _, n := range []int{1, 1, 16, 1, 1000, 5000, 1, 1} {
		send, want := count(n)
		if got := exchange(t, conn, send, len(want)); got != want {
			t.Fatalf("%d commands: %.80q; want %.80q", n, got, want)
		}
	}
	for range 100 { // the half of a command comes with another one before it
		send, want := count(2)
		half := len(send) - 9
		first := want[:strings.IndexByte(want, '\n')+1]
		if got := exchange(t, conn, send[:half], len(first)); got != first {
			t.Fatalf("%q; want %q", got, first)
		}
		if got := exchange(t, conn, send[half:], len(want)-len(first)); got != want[len(first):] {
			t.Fatalf("%q; want %q", got, want[len(first):])
		}
	}
	for range 3 {
		last++
		want := "+OK\r\n+QUEUED\r\n*1\r\n:" + strconv.Itoa(last) + "\r\n"
		if got := exchange(t, conn, bulks("MULTI")+bulks("INCR", "order"), 14); got != want[:14] {
			t.Fatalf("%q; want %q", got, want)
		}
		if got := exchange(t, conn, bulks("EXEC"), len(want)-14); got != want[14:] {
			t.Fatalf("%q; want %q", got, want)
		}
	}
}

// A client may end its stream together with its last command: it is answered, and the
// connection ends.
func TestEndWithACommand(t *testing.T) {
	t.Parallel()
	l := listen(t)
	conns := make([]*net.TCPConn, 20)
	for k := range conns { // before the door accepts any of them
		conns[k] = dialTCP(t, l)
		if _, err := io.WriteString(conns[k], bulks("PING")); err != nil {
			t.Fatal(err)
		}
		if err := conns[k].CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	openTCP(t, l)
	for k, conn := range conns {
		if got, err := io.ReadAll(conn); err != nil || string(got) != "+PONG\r\n" {
			t.Errorf("client %d: %q, %v", k, got, err)
		}
	}
}

// A door that stops ends connections that wait.
func TestStopOverTCP(t *testing.T) {
	t.Parallel()
	l := listen(t)
	stop := openTCP(t, l)
	busy, silent := dialTCP(t, l), dialTCP(t, l)
	if got := exchange(t, busy, bulks("PING"), 7); got != "+PONG\r\n" {
		t.Fatalf("%q", got)
	}
	stop()
	for _, conn := range []net.Conn{busy, silent} {
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%q", got)
		}
	}
}
