package ledger_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// lose leases as many IDs of a tag as one step holds, has etcd forget that, and
// recovers without the instance that leased them, with a margin of one step. change
// changes the tag before the backup.
func (c *cluster) lose(tag allocator.Tag, n int64, change func()) {
	c.Helper()
	lost, other := c.start("a"), c.start("b")
	change()
	backup := c.Mem.Revision()
	if _, err := lost.TryLease(tag, n); err != nil {
		c.Fatalf("lease: %v", err)
	}
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{other}, without(lost.id()), margin(1))
	c.Admin = manage(ledgertest.Open(c.TB, c.Mem.Open()))
}

// leaseAll has an instance in each room lease IDs of a tag; check finds those that an
// instance had leased before.
func (c *cluster) leaseAll(tag allocator.Tag) {
	c.Helper()
	for _, room := range []allocator.Room{"a", "b"} {
		p := c.start(room)
		for range 30 {
			if _, err := p.TryLease(tag, 10); err != nil {
				c.Errorf("room %s: %v", room, err)
			}
		}
	}
	c.twice(tag)
}

// twice checks that no ID was issued twice: in a history that etcd lost, too.
func (c *cluster) twice(tag allocator.Tag) {
	c.Helper()
	seen := make(map[int64]bool)
	for _, segments := range c.Issued[tag] {
		for _, seg := range segments {
			for k := range seg.Count {
				id := seg.At(k)
				if seen[id] {
					c.Fatalf("ID %d of tag %s was issued twice", id, tag)
				}
				seen[id] = true
			}
		}
	}
}

// A tag that is deleted after a recover leaves its margin free for a tag of the same
// name, which may have smaller steps, or another start.
func TestDeletedTagLeavesItsMargin(t *testing.T) {
	for name, was := range map[string]struct {
		start, step int64
		formats     int
	}{"smaller steps": {1, 10_000, 2}, "lower start": {601, 10, 2}, "smaller steps, before the upgrade": {1, 10_000, 1},
		"lower start, before the upgrade": {601, 10, 1}} {
		t.Run(name, func(t *testing.T) {
			c := &cluster{memcluster.NewOf(t, "100 a=0-50 b=50-100", was.formats)}
			c.Tag("u", func(s *record.TagSettings) { steps(was.step)(s); s.Start = was.start })
			c.lose("u", was.step, func() {})
			if err := c.Admin.DeleteTag(bg, "u", "test"); err != nil {
				t.Fatal(err)
			}
			c.Tag("u", steps(10))
			c.leaseAll("u")
		})
	}
}

// A room that an operator made skip ahead leases from there on. A restore may forget those
// leases, so the margin lies above the skip, too.
func TestMarginLiesAboveSkips(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("u", steps(1000))
	c.lose("u", 1000, func() {
		if _, err := c.Admin.SkipTag(bg, "u", []allocator.Room{"a"}, 1_000_000, false, "test"); err != nil {
			t.Fatal(err)
		}
	})
	c.leaseAll("u")
}

// While leasing is halted no tag is deleted. Before the upgrade a deletion raises a mark, but not
// where no margin is left free: where there was no recover, where a room has leased above it, or
// where the tag was created with --fresh.
func TestDeletedTagRaisesOnlyOverAMargin(t *testing.T) {
	c := &cluster{memcluster.NewOf(t, "100 a=0-50 b=50-100", 1)}
	for _, tag := range []allocator.Tag{"before", "idle", "busy"} {
		c.Tag(tag, steps(10))
		if _, err := c.start("a").TryLease(tag, 10); err != nil {
			t.Fatal(err)
		}
	}
	deleted := func(tag allocator.Tag, by int64) {
		t.Helper()
		was := c.markOf("a", tag)
		if err := c.Admin.DeleteTag(bg, tag, "test"); err != nil {
			t.Fatalf("delete %s: %v", tag, err)
		}
		is := c.markOf("a", tag)
		if is.Next != was.Next+by || is.Stamp != was.Stamp || is.Total != was.Total {
			t.Errorf("tag %s: %+v became %+v, want %d more", tag, was, is, by)
		}
		if _, there := c.Mem.Value(prefix + "marks/b/" + string(tag)); there {
			t.Errorf("tag %s has a mark of room b", tag)
		}
	}
	deleted("before", 0)
	if _, err := c.Admin.Ledger.Halt(bg, "ann", "a restore"); err != nil {
		t.Fatal(err)
	}
	ledgertest.WantKind(t, c.Admin.DeleteTag(bg, "idle", "test"), allocator.WentBack, "halted by ann")
	c.mustRecover(nil, margin(2), func(cfg *recovery.Config) {
		cfg.Without = append(cfg.Without, "a/i1", "a/i2", "a/i3")
	})
	c.Admin = manage(ledgertest.Open(t, c.Mem.Open()))
	if _, err := c.start("a").TryLease("busy", 10); err != nil {
		t.Fatal(err)
	}
	deleted("busy", 0)
	deleted("idle", 2*200)
	settings := record.DefaultTag()
	if _, err := c.Admin.CreateFreshTag(bg, "fresh", settings, "test"); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.DeleteTag(bg, "fresh", "test"); err != nil {
		t.Fatal(err)
	}
	if _, there := c.Mem.Value(prefix + "marks/a/fresh"); there {
		t.Error("a fresh tag left a mark")
	}
	c.Check()
}
