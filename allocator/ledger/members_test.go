package ledger_test

import (
	"context"
	"net"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// leaderless is a member that has lost the majority: it answers for itself, and names no leader.
type leaderless struct {
	etcdserverpb.UnimplementedMaintenanceServer
}

func (leaderless) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{}}, nil
}

// During an outage a store says how many members answer, and whether one knows a leader: the one of three that is left
// answers for itself, which no call that needs a majority shows.
func TestMembers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(server, leaderless{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	lost, away, whole := l.Addr().String(), "127.0.0.1:1", ledgertest.StartEtcd(t).Endpoint
	for _, test := range []struct {
		endpoints []string
		want      string
	}{
		{[]string{lost, away, "127.0.0.1:2"}, "1 of 3 members answers, no leader"},
		{[]string{lost, whole, away}, "2 of 3 members answer"},
		{[]string{away, "127.0.0.1:2"}, "none of 2 members answers"},
		{[]string{away}, "its member does not answer"},
	} {
		s, err := store.NewEtcd(store.EtcdConfig{Endpoints: test.endpoints})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		got := store.ReadMembers(ctx, s).String()
		cancel()
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.endpoints, got, test.want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
