// Package testcluster runs a cluster of March in the process of a test: a real etcd with a
// layout and tags, and rooms and consoles over it. In a bubble of testing/synctest (Bubble) all of
// it is in memory, and time passes at once. All of it ends with the test.
package testcluster

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Cluster is a cluster in a store.
type Cluster struct {
	testing.TB
	// ClusterName is the cluster's name in the store.
	ClusterName string
	// Open opens a connection to the store, which is closed when the test ends.
	Open func(testing.TB) store.Store
	// Etcd is the cluster's own etcd, Mem its store in memory; nil where it has none.
	Etcd *ledgertest.Etcd
	Mem  *ledgertest.Fake
	// Admin is for what operators do.
	Admin *admin.Admin
}

// New starts an etcd, or in a bubble is NewFake. There is no layout in it before Init.
func New(tb testing.TB) *Cluster {
	tb.Helper()
	if ledgertest.InBubble() {
		return NewFake(tb)
	}
	etcd := ledgertest.StartEtcd(tb)
	c := Over(tb, ledger.DefaultConfig().Cluster, etcd.Store)
	c.Etcd = etcd
	return c
}

// NewFake is New over a store in memory, whose answers take no time.
func NewFake(tb testing.TB) *Cluster {
	tb.Helper()
	mem := ledgertest.NewFake(tb)
	c := Over(tb, ledger.DefaultConfig().Cluster, func(tb testing.TB) store.Store {
		conn := mem.Open()
		tb.Cleanup(func() { _ = conn.Close() })
		return conn
	})
	c.Mem = mem
	return c
}

// Over returns a cluster in a store that may have several.
func Over(tb testing.TB, name string, open func(testing.TB) store.Store) *Cluster {
	tb.Helper()
	c := &Cluster{TB: tb, ClusterName: name, Open: open}
	l := c.LedgerOver(c.Open(c), func(cfg *ledger.Config) { cfg.TryTimeout = Patience }) // the machine may be busy
	c.Admin = admin.New(l, admin.DefaultConfig())
	return c
}

// Corrupt writes keys by hand, past all rules.
func (c *Cluster) Corrupt(ops ...store.Op) {
	c.Helper()
	if c.Mem != nil {
		c.Mem.Corrupt(ops...)
	} else if _, err := c.Open(c).Txn(c.Context(), store.Txn{Then: ops}); err != nil {
		c.Fatal(err)
	}
}

// Halves returns the layout that most tests begin with: boundary 100, room a has [0, 50),
// room b [50, 100).
func Halves() allocator.Layout {
	return allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50},
		"b": {Lower: 50, Upper: 100}}}
}

// Init puts the first layout in force.
func (c *Cluster) Init(first allocator.Layout, actor string) {
	c.Helper()
	if _, err := c.Admin.Init(c.Context(), first, actor); err != nil {
		c.Fatalf("init: %v", err)
	}
}

// Ledger returns a new ledger over the cluster's store.
func (c *Cluster) Ledger() *ledger.Ledger {
	c.Helper()
	return c.LedgerOver(c.Open(c), nil)
}

// LedgerOver returns a ledger over another store, with the default configuration as change
// modifies it.
func (c *Cluster) LedgerOver(over store.Store, change func(*ledger.Config)) *ledger.Ledger {
	c.Helper()
	cfg := ledger.DefaultConfig()
	cfg.Cluster = c.ClusterName
	if change != nil {
		change(&cfg)
	}
	l, err := ledger.New(over, cfg)
	if err != nil {
		c.Fatal(err)
	}
	return l
}

// Tag creates tags with the default settings as change modifies them.
func (c *Cluster) Tag(change func(*record.TagSettings), actor string, names ...allocator.Tag) {
	c.Helper()
	for _, name := range names {
		settings := record.DefaultTag()
		if change != nil {
			change(&settings)
		}
		if _, err := c.Admin.CreateTag(c.Context(), name, settings, actor); err != nil {
			c.Fatalf("create tag %s: %v", name, err)
		}
	}
}

// Change changes the layout, and returns its version.
func (c *Cluster) Change(to allocator.Layout, actor string) int64 {
	c.Helper()
	from, err := c.Admin.Ledger.Refresh(c.Context())
	if err != nil {
		c.Fatalf("refresh: %v", err)
	}
	stored, err := c.Admin.ChangeLayout(c.Context(), from, to, actor)
	if err != nil {
		c.Fatalf("change layout: %v", err)
	}
	return stored.Layout.Version
}
