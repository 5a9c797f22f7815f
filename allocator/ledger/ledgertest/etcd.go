// Package ledgertest has what tests of and above the ledger stand on: a real
// etcd in the test's process, a store in memory with faults at will, the suite
// that holds both to the same behaviour, and the check of a whole cluster that
// integration tests end with.
package ledgertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/embedded"
)

// Etcd is a real etcd member in this process.
type Etcd struct {
	Endpoint string
	dir      string
	config   embedded.Config
	server   *embedded.Server
}

// StartEtcd starts a member that lives until the test ends.
func StartEtcd(tb testing.TB) *Etcd {
	tb.Helper()
	dir, err := os.MkdirTemp("", "march") // short: a unix socket's path is limited
	if err != nil {
		tb.Fatal(err)
	}
	e := &Etcd{dir: dir, Endpoint: "unix://" + filepath.Join(dir, "c")}
	e.config = embedded.Config{Dir: filepath.Join(dir, "data"), Client: e.Endpoint, Peer: "unix://" + filepath.Join(dir, "p"), NoSync: true}
	e.Start(tb)
	tb.Cleanup(func() {
		e.Stop()
		_ = os.RemoveAll(dir)
	})
	return e
}

// Start starts the member again after Stop, on the same data.
func (e *Etcd) Start(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), embedded.ReadyWithin)
	defer cancel()
	server, err := embedded.Start(ctx, e.config)
	if err != nil {
		tb.Fatal(err)
	}
	e.server = server
}

// Stop stops the member; calls fail from then on.
func (e *Etcd) Stop() {
	if e.server != nil {
		e.server.Close()
		e.server = nil
	}
}

// Compact drops all history up to the present revision of store.
func (e *Etcd) Compact(tb testing.TB, store ledger.Store) {
	tb.Helper()
	answer, err := store.Txn(tb.Context(), ledger.Txn{Then: []ledger.Op{{Get: &ledger.Get{Interval: ledger.Interval{Key: "x"}}}}})
	if err == nil {
		err = e.server.Compact(tb.Context(), answer.Revision)
	}
	if err != nil {
		tb.Fatal(fmt.Errorf("compact: %w", err))
	}
}

// Store returns a store over the member, closed when the test ends.
func (e *Etcd) Store(tb testing.TB) ledger.Store {
	tb.Helper()
	store, err := ledger.NewEtcd(ledger.EtcdConfig{Endpoints: []string{e.Endpoint}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	return store
}
