package ledgertest

import (
	"context"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/march-id/march/allocator/ledger/store"
)

// rootUser is the user that RequireCredentials makes, and its password.
const rootUser = "root"

// auth returns a client of the member's users and roles, and a context for it: root's, if
// the member asks for a user.
func (e *Etcd) auth(tb testing.TB) (etcdserverpb.AuthClient, context.Context) {
	tb.Helper()
	target, how := e.Endpoint, insecure.NewCredentials()
	if e.tls != nil {
		target, how = strings.TrimPrefix(target, "https://"), e.tls.root(tb)
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(how))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	auth, ctx := etcdserverpb.NewAuthClient(conn), context.Background()
	if answer, err := auth.Authenticate(ctx, &etcdserverpb.AuthenticateRequest{Name: rootUser,
		Password: rootUser}); err == nil {
		ctx = metadata.AppendToOutgoingContext(ctx, "token", answer.GetToken())
	}
	return auth, ctx
}

// RequireCredentials has the member ask all callers for a user and a password from now
// on, as `etcdctl auth enable` does. The function that it returns ends that.
func (e *Etcd) RequireCredentials(tb testing.TB) (end func()) {
	tb.Helper()
	auth, ctx := e.auth(tb)
	if _, err := auth.UserAdd(ctx, &etcdserverpb.AuthUserAddRequest{Name: rootUser, Password: rootUser}); err != nil {
		tb.Fatal(err)
	}
	if _, err := auth.UserGrantRole(ctx, &etcdserverpb.AuthUserGrantRoleRequest{User: rootUser,
		Role: rootUser}); err != nil {
		tb.Fatal(err)
	}
	if _, err := auth.AuthEnable(ctx, &etcdserverpb.AuthEnableRequest{}); err != nil {
		tb.Fatal(err)
	}
	e.root = rootUser
	return func() {
		tb.Helper()
		e.root = ""
		auth, ctx := e.auth(tb)
		if _, err := auth.AuthDisable(ctx, &etcdserverpb.AuthDisableRequest{}); err != nil {
			tb.Fatal(err)
		}
	}
}

// Etcdctl runs commands of etcdctl about users and roles, as `march etcd roles` prints
// them. Comments are left out. The password of a user is password. Of "A || B" it runs B, which
// may find that A would have succeeded: the role, or the user, is there, or the right is not.
func (e *Etcd) Etcdctl(tb testing.TB, password string, commands ...string) {
	tb.Helper()
	auth, ctx := e.auth(tb)
	for _, line := range commands {
		_, otherwise, may := strings.Cut(line, "|| ")
		if may {
			line = otherwise
		}
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		prefix, args := false, words[:0:0]
		for _, w := range words {
			if w == "<" {
				break
			}
			prefix = prefix || w == "--prefix"
			if !strings.HasPrefix(w, "--") {
				args = append(args, w)
			}
		}
		key := func(at int) (key, end []byte) {
			if prefix {
				end = []byte(store.PrefixEnd(args[at]))
			}
			return []byte(args[at]), end
		}
		var err error
		switch strings.Join(args[:min(3, len(args))], " ") {
		case "etcdctl role add":
			_, err = auth.RoleAdd(ctx, &etcdserverpb.AuthRoleAddRequest{Name: args[3]})
		case "etcdctl role grant-permission":
			from, end := key(5)
			p := &authpb.Permission{PermType: authpb.Permission_Type(
				authpb.Permission_Type_value[strings.ToUpper(args[4])]), Key: from, RangeEnd: end}
			_, err = auth.RoleGrantPermission(ctx, &etcdserverpb.AuthRoleGrantPermissionRequest{Name: args[3], Perm: p})
		case "etcdctl role revoke-permission":
			from, end := key(4)
			_, err = auth.RoleRevokePermission(ctx, &etcdserverpb.AuthRoleRevokePermissionRequest{Role: args[3],
				Key: from, RangeEnd: end})
		case "etcdctl user add":
			_, err = auth.UserAdd(ctx, &etcdserverpb.AuthUserAddRequest{Name: args[3], Password: password,
				Options: &authpb.UserAddOptions{}})
		case "etcdctl user passwd":
			_, err = auth.UserChangePassword(ctx,
				&etcdserverpb.AuthUserChangePasswordRequest{Name: args[3], Password: password})
		case "etcdctl user grant-role":
			_, err = auth.UserGrantRole(ctx, &etcdserverpb.AuthUserGrantRoleRequest{User: args[3], Role: args[4]})
		default:
			tb.Fatalf("not a command of users or roles: %s", line)
		}
		if err != nil && !(may && (strings.Contains(err.Error(), "already exists") ||
			strings.Contains(err.Error(), "permission is not granted"))) {
			tb.Fatalf("%s: %v", line, err)
		}
	}
}

// StoreOf returns a store of a user over the member, closed when the test ends.
func (e *Etcd) StoreOf(tb testing.TB, user string, password func() (string, error)) store.Store {
	tb.Helper()
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{e.Endpoint},
		Username: user, ReadPassword: password})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = etcd.Close() })
	return etcd
}
