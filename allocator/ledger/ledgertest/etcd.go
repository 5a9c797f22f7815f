// Package ledgertest helps to test the ledger and the packages above it. It has a real
// etcd in the test's process, a store in memory that makes faults on demand, a suite
// that checks that both behave alike, and the check of a whole cluster that
// integration tests end with.
package ledgertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/march-id/march/allocator/ledger/embedded"
	"github.com/march-id/march/allocator/ledger/store"
)

// Etcd is a real etcd member in this process.
type Etcd struct {
	Endpoint string
	dir      string
	config   embedded.Config
	server   *embedded.Server
	tls      *certificates // nil for plain text
	root     string        // the user, and the password, of who sees to the member; empty if it asks for none
}

// StartEtcd starts a member that lives until the test ends, with its settings as change modifies them.
func StartEtcd(tb testing.TB, change ...func(*embedded.Config)) *Etcd {
	tb.Helper()
	dir, err := os.MkdirTemp("", "march") // short: a unix socket's path is limited
	if err != nil {
		tb.Fatal(err)
	}
	e := &Etcd{dir: dir, Endpoint: "unix://" + filepath.Join(dir, "c")}
	e.config = embedded.Config{Dir: filepath.Join(dir, "data"), Client: e.Endpoint,
		Peer: "unix://" + filepath.Join(dir, "p"), NoSync: true}
	for _, f := range change {
		f(&e.config)
	}
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
	if InBubble() {
		tb.Fatal("a real etcd in a bubble of testing/synctest: its sockets would stop the clock; use the Fake there")
	}
	// A process that another test starts holds the locks on the files of a member that ended, from its fork to its
	// exec. So none may start now.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
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
func (e *Etcd) Compact(tb testing.TB, etcd store.Store) {
	tb.Helper()
	answer, err := etcd.Txn(tb.Context(),
		store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: "x"}}}}})
	if err == nil {
		err = etcd.Compact(tb.Context(), answer.Revision)
	}
	if err != nil {
		tb.Fatal(fmt.Errorf("compact: %w", err))
	}
}

// Store returns a store over the member, closed when the test ends.
func (e *Etcd) Store(tb testing.TB) store.Store {
	tb.Helper()
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{e.Endpoint}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = etcd.Close() })
	return etcd
}
