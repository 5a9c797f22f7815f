// Package memcluster runs a cluster of March over a store in memory, without servers: the
// ledger, its administration and instances. It is for the tests of these.
package memcluster

import (
	"context"
	"fmt"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

var bg = context.Background()

const prefix = "/march/default/"

// Cluster is a cluster in memory, with all that was issued in it.
type Cluster struct {
	ledgertest.TB
	Mem    *ledgertest.Fake
	Admin  *admin.Admin
	Issued ledgertest.Issued

	names int // of instances that Start named
}

// New makes a cluster with a layout and the tag "t".
func New(tb ledgertest.TB, layout string) *Cluster {
	tb.Helper()
	return NewOf(tb, layout, record.Formats)
}

// NewOf is New for a cluster with a generation of formats. change changes the administration's ledger.
func NewOf(tb ledgertest.TB, layout string, formats int, change ...func(*ledger.Config)) *Cluster {
	tb.Helper()
	return Over(tb, ledgertest.NewFake(tb), layout, formats, change...)
}

// Over is NewOf over a store.
func Over(tb ledgertest.TB, mem *ledgertest.Fake, layout string, formats int,
	change ...func(*ledger.Config)) *Cluster {
	tb.Helper()
	c := &Cluster{TB: tb, Mem: mem, Issued: ledgertest.Issued{}}
	c.Admin = admin.New(ledgertest.Open(tb, c.Mem.Open(), change...), admin.Config{Formats: formats})
	if _, err := c.Admin.Init(bg, ledgertest.Lay(tb, layout), "test"); err != nil {
		tb.Fatalf("init: %v", err)
	}
	c.Tag("t", func(*record.TagSettings) {})
	return c
}

// Tag creates a tag with the default settings as change modifies them.
func (c *Cluster) Tag(name allocator.Tag, change func(*record.TagSettings)) {
	c.Helper()
	settings := record.DefaultTag()
	change(&settings)
	if _, err := c.Admin.CreateTag(bg, name, settings, "test"); err != nil {
		c.Fatalf("create tag: %v", err)
	}
}

// Update changes a tag's settings.
func (c *Cluster) Update(name allocator.Tag, change func(*record.TagSettings)) {
	c.Helper()
	if _, err := c.Admin.UpdateTag(bg, name, func(s *record.TagSettings) error {
		change(s)
		return nil
	}, "test"); err != nil {
		c.Fatalf("update tag: %v", err)
	}
}

// Move changes the layout.
func (c *Cluster) Move(layout string) record.Layout {
	c.Helper()
	return c.MoveTo(ledgertest.Lay(c.TB, layout))
}

// MoveTo is Move for a layout that is not a text.
func (c *Cluster) MoveTo(layout allocator.Layout) record.Layout {
	c.Helper()
	from, err := c.Admin.Ledger.Refresh(bg)
	if err != nil {
		c.Fatalf("refresh: %v", err)
	}
	stored, err := c.Admin.ChangeLayout(bg, from, layout, "test")
	if err != nil {
		c.Fatalf("change layout: %v", err)
	}
	return stored
}

// Check ends a test: the whole cluster fits together.
func (c *Cluster) Check() {
	c.Helper()
	c.Mem.Arrive()
	ledgertest.CheckCluster(c.TB, c.Mem.Open(), "default", c.Issued)
}

// Corrupt writes a value by hand; nil deletes the key.
func (c *Cluster) Corrupt(key string, value []byte) {
	op := store.Op{Put: &store.Put{Key: prefix + key, Value: value}}
	if value == nil {
		op = store.Op{Delete: prefix + key}
	}
	c.Mem.Corrupt(op)
}

// Began puts an epoch with a margin total in force, as recovers do, and drops the
// ledger that knew the epoch before.
func (c *Cluster) Began(total int64) {
	c.Helper()
	c.Corrupt("epoch", fmt.Appendf(nil, `{"format":2,"epoch":"%032x","margin_total":"%d"}`, 1000+total, total))
	c.Admin = admin.New(ledgertest.Open(c.TB, c.Mem.Open()), admin.DefaultConfig())
}

// Value returns a key's value.
func (c *Cluster) Value(key string) []byte {
	c.Helper()
	v, ok := c.Mem.Value(prefix + key)
	if !ok {
		c.Fatalf("there is no key %s", key)
	}
	return v
}

// Mark returns the mark of tag t in a room; zero where there is none.
func (c *Cluster) Mark(room allocator.Room) record.Mark {
	c.Helper()
	v, ok := c.Mem.Value(prefix + "marks/" + string(room) + "/t")
	if !ok {
		return record.Mark{}
	}
	m, err := record.DecodeMark(store.KV{Key: "test", Value: v})
	if err != nil {
		c.Fatalf("mark of %s: %v", room, err)
	}
	return m
}

// Process is an instance with a connection of its own.
type Process struct {
	*ledger.Instance
	Conn   *ledgertest.Conn
	Ledger *ledger.Ledger

	c       *Cluster
	sources map[allocator.Tag]allocator.Source
	last    map[allocator.Tag]int64 // the largest ID leased
}

// Process returns an instance that has not joined yet, over a ledger of its own.
func (c *Cluster) Process(change ...func(*ledger.Config)) *Process {
	conn := c.Mem.Open()
	return &Process{c: c, Conn: conn, Ledger: ledgertest.Open(c, conn, change...),
		sources: map[allocator.Tag]allocator.Source{}, last: map[allocator.Tag]int64{}}
}

// Last returns the largest ID of a tag that the process leased.
func (p *Process) Last(tag allocator.Tag) int64 { return p.last[tag] }

// Start starts an instance in a room.
func (c *Cluster) Start(room allocator.Room, change ...func(*ledger.Config)) *Process {
	c.Helper()
	c.names++
	return c.StartAs(room, allocator.Instance(fmt.Sprintf("i%d", c.names)), change...)
}

// StartAs is Start with a name.
func (c *Cluster) StartAs(room allocator.Room, name allocator.Instance, change ...func(*ledger.Config)) *Process {
	c.Helper()
	p := c.Process(change...)
	var err error
	if p.Instance, err = p.Ledger.Join(bg, ledger.Registration{Room: room, Name: name,
		Address: string(name) + ".test:7010", Build: "test"}); err != nil {
		c.Fatalf("join: %v", err)
	}
	return p
}

// TryLease leases and notes what was issued, after checks that need no etcd.
func (p *Process) TryLease(tag allocator.Tag, n int64) (allocator.Segment, error) {
	p.c.Helper()
	source := p.sources[tag]
	if source == nil {
		var err error
		if source, _, err = p.Source(bg, tag); err != nil {
			return allocator.Segment{}, err
		}
		p.sources[tag] = source
	}
	seg, err := source.Lease(bg, n)
	if err != nil {
		return seg, err
	}
	switch last, again := p.last[tag]; {
	case seg.Validate() != nil:
		p.c.Errorf("segment %v: %v", seg, seg.Validate())
	case seg.Count > n:
		p.c.Errorf("asked for %d IDs, got %v", n, seg)
	case again && seg.First <= last:
		p.c.Errorf("after ID %d this source leased %v", last, seg)
	}
	p.last[tag] = seg.Last()
	p.c.Issued.Add(tag, p.Room(), seg)
	return seg, nil
}

// Lease leases IDs of tag t; it must not fail.
func (p *Process) Lease(n int64) allocator.Segment {
	p.c.Helper()
	seg, err := p.TryLease("t", n)
	if err != nil {
		p.c.Fatalf("lease: %v", err)
	}
	return seg
}
