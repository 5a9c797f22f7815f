package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/march-id/march/allocator/ledger/embedded"
	"github.com/march-id/march/allocator/ledger/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCloseWhileAsked closes members while clients ask, write and watch: all
// calls end, and etcd answers none of them from a database that is closed, which
// is a panic.
func TestCloseWhileAsked(t *testing.T) {
	for range 10 {
		dir, err := os.MkdirTemp("", "march") // short: a unix socket's path is limited
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		endpoint := "unix://" + filepath.Join(dir, "c")
		ctx, cancel := context.WithTimeout(t.Context(), embedded.ReadyWithin)
		server, err := embedded.Start(ctx, embedded.Config{
			Dir: filepath.Join(dir, "data"), Client: endpoint, Peer: "unix://" + filepath.Join(dir, "p"), NoSync: true,
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{endpoint}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		watching, watched := context.WithCancel(ctx)
		var work sync.WaitGroup
		answered := make(chan struct{}, 1)
		for k := range 8 {
			work.Go(func() {
				for err := error(nil); err == nil; {
					if k%4 == 0 {
						_, err = etcd.Txn(ctx, store.Txn{Then: []store.Op{{Put: &store.Put{Key: "x"}}}})
					} else {
						_, err = etcd.Status(ctx)
					}
					select {
					case answered <- struct{}{}:
					default:
					}
				}
			})
		}
		work.Go(func() {
			for range etcd.Watch(watching, []store.Interval{{Key: "x"}}, 1) {
			}
		})
		<-answered
		server.Close()
		watched() // it would wait for etcd to come back
		work.Wait()
		if ctx.Err() != nil {
			t.Error("calls went on after the member was closed")
		}
		cancel()
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	}
}
