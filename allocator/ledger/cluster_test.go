package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

const prefix = "/march/default/"

// cluster is a cluster in memory, with all that was issued in it.
type cluster struct {
	tb     ledgertest.TB
	mem    *ledgertest.Fake
	admin  *admin.Admin
	issued ledgertest.Issued
	names  int
}

// lay returns a layout from "boundary room=lower-upper ...".
func lay(tb ledgertest.TB, text string) allocator.Layout {
	tb.Helper()
	l := allocator.Layout{Ranges: map[allocator.Room]allocator.Range{}}
	boundary, rooms, _ := strings.Cut(text, " ")
	_, err := fmt.Sscan(boundary, &l.Boundary)
	for _, part := range strings.Fields(rooms) {
		room, rng, _ := strings.Cut(part, "=")
		var r allocator.Range
		if _, scanErr := fmt.Sscanf(rng, "%d-%d", &r.Lower, &r.Upper); scanErr != nil {
			err = scanErr
		}
		l.Ranges[allocator.Room(room)] = r
	}
	if err != nil {
		tb.Fatalf("layout %q: %v", text, err)
	}
	return l
}

// open returns a ledger over a store.
func open(tb ledgertest.TB, etcd store.Store, change ...func(*ledger.Config)) *ledger.Ledger {
	tb.Helper()
	cfg := ledger.DefaultConfig()
	for _, f := range change {
		f(&cfg)
	}
	l, err := ledger.New(etcd, cfg)
	if err != nil {
		tb.Fatalf("new ledger: %v", err)
	}
	return l
}

// manage returns the administration of a ledger's cluster.
func manage(l *ledger.Ledger) *admin.Admin { return admin.New(l, admin.DefaultConfig()) }

// newCluster makes a cluster with a layout and the tag "t".
func newCluster(tb ledgertest.TB, layout string) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, mem: ledgertest.NewFake(tb), issued: ledgertest.Issued{}}
	c.admin = manage(open(tb, c.mem.Open()))
	if _, err := c.admin.Init(bg, lay(tb, layout), "test"); err != nil {
		tb.Fatalf("init: %v", err)
	}
	c.tag("t", func(*record.TagSettings) {})
	return c
}

var bg = context.Background()

func (c *cluster) tag(name allocator.Tag, change func(*record.TagSettings)) {
	c.tb.Helper()
	settings := record.DefaultTag()
	change(&settings)
	if _, err := c.admin.CreateTag(bg, name, settings, "test"); err != nil {
		c.tb.Fatalf("create tag: %v", err)
	}
}

func (c *cluster) update(name allocator.Tag, change func(*record.TagSettings)) {
	c.tb.Helper()
	if _, err := c.admin.UpdateTag(bg, name, func(s *record.TagSettings) error { change(s); return nil }, "test"); err != nil {
		c.tb.Fatalf("update tag: %v", err)
	}
}

// move changes the layout.
func (c *cluster) move(layout string) record.Layout {
	c.tb.Helper()
	return c.moveTo(lay(c.tb, layout))
}

func (c *cluster) moveTo(layout allocator.Layout) record.Layout {
	c.tb.Helper()
	from, err := c.admin.Ledger.Refresh(bg)
	if err != nil {
		c.tb.Fatalf("refresh: %v", err)
	}
	stored, err := c.admin.ChangeLayout(bg, from, layout, "test")
	if err != nil {
		c.tb.Fatalf("change layout: %v", err)
	}
	return stored
}

// check ends a test: the whole cluster fits together.
func (c *cluster) check() {
	c.tb.Helper()
	c.mem.Arrive()
	ledgertest.CheckCluster(c.tb, c.mem.Open(), "default", c.issued)
}

// corrupt writes a value by hand; nil deletes the key.
func (c *cluster) corrupt(key string, value []byte) {
	op := store.Op{Put: &store.Put{Key: prefix + key, Value: value}}
	if value == nil {
		op = store.Op{Delete: prefix + key}
	}
	c.mem.Corrupt(op)
}

// value returns a key's value.
func (c *cluster) value(key string) []byte {
	c.tb.Helper()
	v, ok := c.mem.Value(prefix + key)
	if !ok {
		c.tb.Fatalf("there is no key %s", key)
	}
	return v
}

// mark returns the mark of tag t in a room; zero where there is none.
func (c *cluster) mark(room allocator.Room) record.Mark {
	c.tb.Helper()
	v, ok := c.mem.Value(prefix + "marks/" + string(room) + "/t")
	if !ok {
		return record.Mark{}
	}
	m, err := record.DecodeMark(store.KV{Key: "test", Value: v})
	if err != nil {
		c.tb.Fatalf("mark of %s: %v", room, err)
	}
	return m
}

// process is an instance with a connection of its own.
type process struct {
	*ledger.Instance
	c       *cluster
	room    allocator.Room
	name    allocator.Instance
	conn    *ledgertest.Conn
	ledger  *ledger.Ledger
	sources map[allocator.Tag]allocator.Source
	last    map[allocator.Tag]int64 // the largest ID leased
}

// start starts an instance in a room.
func (c *cluster) start(room allocator.Room) *process {
	c.tb.Helper()
	c.names++
	return c.startAs(room, allocator.Instance(fmt.Sprintf("i%d", c.names)))
}

func (c *cluster) startAs(room allocator.Room, name allocator.Instance) *process {
	c.tb.Helper()
	p := &process{c: c, room: room, name: name, conn: c.mem.Open(), sources: map[allocator.Tag]allocator.Source{}, last: map[allocator.Tag]int64{}}
	p.ledger = open(c.tb, p.conn)
	var err error
	if p.Instance, err = p.ledger.Join(bg, ledger.Registration{Room: room, Name: name, Address: string(name) + ".test:7010", Build: "test"}); err != nil {
		c.tb.Fatalf("join: %v", err)
	}
	return p
}

// tryLease leases and notes what was issued, after checks that need no etcd.
func (p *process) tryLease(tag allocator.Tag, n int64) (allocator.Segment, error) {
	p.c.tb.Helper()
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
		p.c.tb.Errorf("segment %v: %v", seg, seg.Validate())
	case seg.Count > n:
		p.c.tb.Errorf("asked for %d IDs, got %v", n, seg)
	case again && seg.First <= last:
		p.c.tb.Errorf("after ID %d this source leased %v", last, seg)
	}
	p.last[tag] = seg.Last()
	p.c.issued.Add(tag, p.room, seg)
	return seg, nil
}

// lease leases IDs of tag t; it must not fail.
func (p *process) lease(n int64) allocator.Segment {
	p.c.tb.Helper()
	seg, err := p.tryLease("t", n)
	if err != nil {
		p.c.tb.Fatalf("lease: %v", err)
	}
	return seg
}

// next sets the fate of the next transaction that match accepts.
func (p *process) next(fate ledgertest.Fate, match func(store.Txn) bool) (met *int) {
	met = new(int)
	p.conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if !match(txn) {
			return ledgertest.Fate{}
		}
		if *met++; *met > 1 {
			return ledgertest.Fate{}
		}
		return fate
	})
	return met
}

// writes matches transactions that put a key that begins with prefix.
func writes(key string) func(store.Txn) bool {
	return func(txn store.Txn) bool {
		for _, op := range txn.Then {
			if op.Put != nil && strings.HasPrefix(op.Put.Key, prefix+key) {
				return true
			}
		}
		return false
	}
}

// wantKind checks an error's Kind, and that its message contains all of parts.
func wantKind(tb ledgertest.TB, err error, kind allocator.Kind, parts ...string) {
	tb.Helper()
	if err == nil || allocator.KindOf(err) != kind {
		tb.Errorf("error %v, want %v", err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			tb.Errorf("error %q does not say %q", err, part)
		}
	}
}

// eventually polls until ok, for at most ten seconds.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("not within ten seconds: %s", what)
		}
	}
}
