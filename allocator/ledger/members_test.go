package ledger_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// member is a member of etcd that answers for itself: without a leader, and without a list of members where the list is
// not set.
type member struct {
	etcdserverpb.UnimplementedMaintenanceServer
	etcdserverpb.UnimplementedClusterServer
	id   uint64
	list []*etcdserverpb.Member
}

func (m *member) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: m.id}}, nil
}

func (m *member) MemberList(context.Context,
	*etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse, error) {
	if m.list == nil {
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	return &etcdserverpb.MemberListResponse{Members: m.list}, nil
}

// serve serves a member, and returns its address.
func (m *member) serve(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(server, m)
	etcdserverpb.RegisterClusterServer(server, m)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// A store says how many members of etcd answer, and whether one knows a leader: the one of three that is left answers
// for itself, which no call that needs a majority shows. It counts etcd's own list of members, not the addresses that
// it was given, and says so where it may not read the list.
func TestMembers(t *testing.T) {
	lost, away, whole := (&member{id: 1}).serve(t), "127.0.0.1:1", ledgertest.StartEtcd(t).Endpoint
	first, second := &member{id: 1}, &member{id: 2}
	one, two := first.serve(t), second.serve(t)
	first.list = []*etcdserverpb.Member{{ID: 1, Name: "etcd-1", ClientURLs: []string{"http://" + one}},
		{ID: 2, Name: "etcd-2", ClientURLs: []string{"http://" + two}},
		{ID: 3, Name: "etcd-3", ClientURLs: []string{"http://" + away}}}
	users := ledgertest.StartEtcd(t)
	users.RequireCredentials(t)                                        // it tells its status to users alone
	other := strings.Replace(users.Endpoint, "unix://", "unix:///", 1) // as it does not call itself
	given := " at the addresses that were given (etcd's own list could not be read)"
	for _, test := range []struct {
		endpoints []string
		want      string
	}{
		{[]string{lost, away, "127.0.0.1:2"}, "1 of 3 members answers" + given + ", no leader"},
		{[]string{whole}, "1 of 1 members answers"},
		{[]string{other}, "1 of 1 members answers"},
		{[]string{away, "127.0.0.1:2"}, "none of 2 members answers"},
		{[]string{away}, "its member does not answer"},
		{[]string{one}, "2 of 3 members answer, not etcd-3, no leader"},
		{[]string{one, two}, "2 of 3 members answer, not etcd-3, no leader"},
		{[]string{one, away}, "2 of 3 members answer, not etcd-3, no leader"},
	} {
		cfg := store.EtcdConfig{Endpoints: test.endpoints}
		if test.endpoints[0] == other {
			cfg.Username, cfg.Password = "root", "root"
		}
		s, err := store.NewEtcd(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if cfg.Username != "" {
			if _, err := s.Status(ctx); err != nil { // now it has a connection whose user may read the list
				t.Fatal(err)
			}
		}
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
