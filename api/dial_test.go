package api_test

import (
	"net"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func TestCheckAddress(t *testing.T) {
	for _, good := range []string{"127.0.0.1:7010", "room-1:1", "[::1]:65535"} {
		if err := api.CheckAddress("room", good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "host", "host:", "host:0", "host:65536", "host:-1",
		"host:http", "::1:80", "a:b:1"} {
		if err := api.CheckAddress("room", bad); allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestDial dials an address at which no server listens: the call fails with a Kind.
func TestDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	conn, err := api.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = marchv1.NewIDServiceClient(conn).Next(t.Context(), &marchv1.NextRequest{Tag: "order"})
	if allocator.KindOf(err) != allocator.Unavailable {
		t.Errorf("%v", err)
	}
	if _, err := api.Dial("\x00"); allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("%v", err)
	}
}
