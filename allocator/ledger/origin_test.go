package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// An ID that is older than the eras kept: the rooms are named that had its residue
// then. One between two epochs may have been lost.
func TestOriginOfWhatIsNoLongerKept(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.start("a"), c.start("b")
	old := a.lease(10)
	b.lease(10)
	for i := range record.MaxEras + 1 {
		c.move(fmt.Sprintf("100 a=%d-100 b=0-%d", 50+i, 50-i))
		a.lease(10)
	}
	b.lease(10)
	origin, err := c.admin.Origin(bg, "t", old.First)
	if err != nil || origin.Room != "" || origin.Lost || !slices.Equal(origin.Rooms, []allocator.Room{"a"}) {
		t.Errorf("an ID that is older than the eras kept: %+v, %v", origin, err)
	}
	if origin, err = c.admin.Origin(bg, "t", c.mark("a").Last().First); err != nil || origin.Room != "a" {
		t.Errorf("an ID of the latest era: %+v, %v", origin, err)
	}
	was := c.mark("a").Next
	c.began(1)
	seg := c.start("a").lease(10)
	origin, err = c.admin.Origin(bg, "t", was+(seg.First-was)/2)
	if err != nil || !origin.Lost || origin.Room != "" {
		t.Errorf("an ID between two epochs: %+v, %v", origin, err)
	}
	c.check()
}

// An ID below the first era of a mark: never leased where that era is of the cluster's
// first epoch, and perhaps lost where a recover came before.
func TestOriginBelowTheFirstEra(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.tag("old", func(s *record.TagSettings) { s.Start = 1000 })
	a, b := c.start("a"), c.start("b")
	if _, err := a.tryLease("old", 10); err != nil {
		t.Fatal(err)
	}
	never := func(tag allocator.Tag, id int64) {
		t.Helper()
		origin, err := c.admin.Origin(bg, tag, id)
		if allocator.KindOf(err) != allocator.NotFound {
			t.Errorf("tag %s, ID %d: %+v, %v", tag, id, origin, err)
		}
	}
	never("old", 5)
	backup := c.mem.Revision()
	lost := a.lease(10)
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{b}, without(a.id()), margin(1))
	c.admin = manage(open(t, c.mem.Open()))
	again := c.start("a").lease(10)
	if origin, err := c.admin.Origin(bg, "t", lost.First); err != nil || !origin.Lost || origin.Room != "" || len(origin.Rooms) > 0 {
		t.Errorf("an ID that etcd lost, below the first era: %+v, %v", origin, err)
	}
	if origin, err := c.admin.Origin(bg, "t", again.First); err != nil || origin.Room != "a" {
		t.Errorf("an ID of the first era: %+v, %v", origin, err)
	}
	never("old", 5)                  // its first era is of the first epoch
	never("t", again.Last()+100_000) // not yet
}

// An ID older than the eras kept, of layouts that are no longer kept either: that it was
// never leased would be a guess.
func TestOriginOlderThanTheLayoutsKept(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a := c.start("a")
	old := a.lease(10)
	c.admin.Ledger.Keep(3, 10, 100)
	for range record.MaxEras + 1 {
		c.move("100 a=60-100")
		a.lease(10)
		c.move("100 a=50-100")
		a.lease(10)
	}
	origin, err := c.admin.Origin(bg, "t", old.First)
	if err != nil || origin.Room != "" || len(origin.Rooms) > 0 || len(origin.Unreadable) != 1 {
		t.Errorf("%+v, %v", origin, err)
	}
}
