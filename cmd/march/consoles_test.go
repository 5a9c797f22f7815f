package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/internal/testcluster"
)

// Of several consoles the first that answers is asked, and an error names all. Before, --console took one address.
func TestSeveralConsoles(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := l.Addr().String()
	_ = l.Close()
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	up := testcluster.Serve(t, s)
	for _, test := range []struct{ consoles, fails string }{
		{up, ""}, {down + "," + up, ""}, {up + "," + down, ""}, {down + "," + down + "," + up, ""},
		{down, "no answer from the console at " + down + " (--console): connect: connection refused"},
		{down + "," + down,
			"no answer from the console at " + down + "," + down + " (--console): connect: connection refused"},
		{up + ",", `console: ""; allowed: HOST:PORT`},
		{up + ",two", `console: "two"; allowed: HOST:PORT`},
	} {
		to := &target{what: "console", address: test.consoles, timeout: time.Minute}
		err := to.call(t.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			return err
		})
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %v, want %q", test.consoles, err, test.fails)
		}
	}
}
