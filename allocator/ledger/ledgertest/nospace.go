package ledgertest

import (
	"context"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// NoSpace has the member say that its database is full, as it does at its quota: it
// answers reads then, and takes no writes. False ends that.
func (e *Etcd) NoSpace(tb testing.TB, full bool) {
	tb.Helper()
	conn, err := grpc.NewClient(e.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	member := etcdserverpb.NewMaintenanceClient(conn)
	status, err := member.Status(context.Background(), &etcdserverpb.StatusRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	action := etcdserverpb.AlarmRequest_DEACTIVATE
	if full {
		action = etcdserverpb.AlarmRequest_ACTIVATE
	}
	if _, err := member.Alarm(context.Background(), &etcdserverpb.AlarmRequest{
		Action: action, MemberID: status.Header.MemberId, Alarm: etcdserverpb.AlarmType_NOSPACE,
	}); err != nil {
		tb.Fatal(err)
	}
}
