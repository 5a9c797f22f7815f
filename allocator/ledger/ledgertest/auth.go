package ledgertest

import (
	"context"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// RequireCredentials has the member ask all callers for a user and a password from now
// on, as `etcdctl auth enable` does. The function that it returns ends that.
func (e *Etcd) RequireCredentials(tb testing.TB) (end func()) {
	tb.Helper()
	const root = "root"
	conn, err := grpc.NewClient(e.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	auth, ctx := etcdserverpb.NewAuthClient(conn), context.Background()
	if _, err := auth.UserAdd(ctx, &etcdserverpb.AuthUserAddRequest{Name: root, Password: root}); err != nil {
		tb.Fatal(err)
	}
	if _, err := auth.UserGrantRole(ctx, &etcdserverpb.AuthUserGrantRoleRequest{User: root, Role: root}); err != nil {
		tb.Fatal(err)
	}
	if _, err := auth.AuthEnable(ctx, &etcdserverpb.AuthEnableRequest{}); err != nil {
		tb.Fatal(err)
	}
	return func() {
		tb.Helper()
		answer, err := auth.Authenticate(ctx, &etcdserverpb.AuthenticateRequest{Name: root, Password: root})
		if err == nil {
			_, err = auth.AuthDisable(metadata.AppendToOutgoingContext(ctx, "token", answer.GetToken()), &etcdserverpb.AuthDisableRequest{})
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}
