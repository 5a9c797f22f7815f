package ledger_test

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// heard is how long news may take.
const heard = time.Minute

// etcdAt returns a store over endpoints, closed when the test ends.
func etcdAt(t *testing.T, endpoints ...string) store.Store {
	t.Helper()
	s, err := store.NewEtcd(store.EtcdConfig{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// silent listens and never answers.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// dead is an endpoint at which no process listens.
func dead(t *testing.T) string { return "unix://" + filepath.Join(t.TempDir(), "none") }

// together runs tests at once, however few processors there are: they wait.
func together(t *testing.T, tests map[string]func(*testing.T)) {
	var all sync.WaitGroup
	for name, test := range tests {
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for where, endpoint := range map[string]string{"nobody listens": dead(t), "nobody answers": silent(t)} {
		for what, call := range map[string]func(context.Context, *ledger.Ledger) error{
			"Ping": func(ctx context.Context, l *ledger.Ledger) error {
				_, err := l.Ping(ctx)
				return err
			},
			"Join": func(ctx context.Context, l *ledger.Ledger) error {
				_, err := l.Join(ctx, ledger.Registration{Room: "a", Name: "one"})
				return err
			},
			"Init": func(ctx context.Context, l *ledger.Ledger) error {
				_, err := manage(l).Init(ctx, ledgertest.Lay(t, "10 a=0-5"), "me")
				return err
			},
			"CreateTag": func(ctx context.Context, l *ledger.Ledger) error {
				_, err := manage(l).CreateTag(ctx, "t", record.DefaultTag(), "me")
				return err
			},
		} {
			tests[what+" where "+where] = func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				ledgertest.WantKind(t, call(ctx, ledgertest.Open(t, etcdAt(t, endpoint))),
					allocator.Unavailable, endpoint)
				if ctx.Err() != nil {
					t.Error("it hung until its caller gave up")
				}
			}
		}
	}
	together(t, tests)
}

func TestAnotherEndpointWhenOneFails(t *testing.T) {
	t.Parallel()
	e := ledgertest.StartEtcd(t)
	admin := ledgertest.Open(t, e.Store(t))
	if _, err := manage(admin).Init(bg, ledgertest.Lay(t, "10 a=0-5 b=5-10"), "test"); err != nil {
		t.Fatal(err)
	}
	tests := map[string]func(*testing.T){}
	for name, first := range map[string]string{"dead": dead(t), "silent": silent(t)} {
		tests[name] = func(t *testing.T) {
			l := ledgertest.Open(t, etcdAt(t, first, first, e.Endpoint))
			if _, err := l.Refresh(t.Context()); err != nil && name == "dead" {
				t.Errorf("the first call: %v", err)
			}
			eventually(t, "an answer from the last endpoint", func() bool {
				_, err := l.Ping(t.Context())
				return err == nil
			})
			w := watch(t, l)
			w.await(t, 1)
		}
		tests[name+" for Ping"] = func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := ledgertest.Open(t, etcdAt(t, first, e.Endpoint)).Ping(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	together(t, tests)
}

// A caller that gives up is no reason to leave an endpoint.
func TestGivingUpKeepsTheEndpoint(t *testing.T) {
	e := ledgertest.StartEtcd(t)
	s := etcdAt(t, e.Endpoint, dead(t))
	read := store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: "a"}}}}}
	if _, err := s.Txn(bg, read); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	for range 3 {
		_, err := s.Txn(ctx, read)
		ledgertest.WantKind(t, err, allocator.Unavailable, "canceled")
		if _, err := s.Txn(bg, read); err != nil {
			t.Errorf("after a caller gave up: %v", err)
		}
	}
}

func TestNewEtcdEndpoints(t *testing.T) {
	for _, endpoints := range [][]string{nil, {""}, {"a:1", " "}, {"a:1,b:2"}, {"a b"}, {"a"}, {"::1:2379"},
		{"a:0"}, {"a:99999"}, {"a:http"}, {"http://"}, {"://"}, {"etcd://a:1"}, {"http://[::1"}, {"https://a"},
		{"http://a:1/x"}, {"unix://"}} {
		_, err := store.NewEtcd(store.EtcdConfig{Endpoints: endpoints})
		ledgertest.WantKind(t, err, allocator.Invalid, "etcd endpoints")
	}
	for _, endpoint := range []string{"a:1", "[::1]:2379", "http://a:1", "https://a:1/", "unix:///a"} {
		if _, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{endpoint}}); err != nil {
			t.Error(err)
		}
	}
}

// A store whose user has a password asks the next member where one does not answer.
func TestUserWhereTheFirstMemberIsDown(t *testing.T) {
	t.Parallel()
	etcd := ledgertest.StartEtcd(t)
	etcd.RequireCredentials(t)
	s, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{dead(t), etcd.Endpoint}, Username: "root",
		Password: "root"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	eventually(t, "an answer from the second member", func() bool {
		_, err := s.Txn(t.Context(), store.Txn{Then: []store.Op{store.OpGet("key")}})
		return err == nil
	})
}
