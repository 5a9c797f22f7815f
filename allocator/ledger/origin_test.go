package ledger_test

import (
	"fmt"
	"slices"
	"strings"
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
	old := a.Lease(10)
	b.Lease(10)
	for i := range record.MaxEras + 1 {
		c.Move(fmt.Sprintf("100 a=%d-100 b=0-%d", 50+i, 50-i))
		a.Lease(10)
	}
	b.Lease(10)
	origin, err := c.Admin.Origin(bg, "t", old.First)
	if err != nil || origin.Room != "" || origin.Lost || !slices.Equal(origin.Rooms, []allocator.Room{"a"}) {
		t.Errorf("an ID that is older than the eras kept: %+v, %v", origin, err)
	}
	if origin, err = c.Admin.Origin(bg, "t", c.Mark("a").Last().First); err != nil || origin.Room != "a" {
		t.Errorf("an ID of the latest era: %+v, %v", origin, err)
	}
	was := c.Mark("a").Next
	c.Began(1)
	seg := c.start("a").Lease(10)
	origin, err = c.Admin.Origin(bg, "t", was+(seg.First-was)/2)
	if err != nil || !origin.Lost || origin.Room != "" {
		t.Errorf("an ID between two epochs: %+v, %v", origin, err)
	}
	c.Check()
}

// An ID below the first era of a mark: never leased where that era is of the cluster's
// first epoch, and perhaps lost where a recover came before.
func TestOriginBelowTheFirstEra(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("old", func(s *record.TagSettings) { s.Start = 1000 })
	a, b := c.start("a"), c.start("b")
	if _, err := a.TryLease("old", 10); err != nil {
		t.Fatal(err)
	}
	never := func(tag allocator.Tag, id int64) {
		t.Helper()
		origin, err := c.Admin.Origin(bg, tag, id)
		if allocator.KindOf(err) != allocator.NotFound {
			t.Errorf("tag %s, ID %d: %+v, %v", tag, id, origin, err)
		}
	}
	never("old", 5)
	backup := c.Mem.Revision()
	lost := a.Lease(10)
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{b}, without(a.id()), margin(1))
	c.Admin = manage(ledgertest.Open(t, c.Mem.Open()))
	again := c.start("a").Lease(10)
	if origin, err := c.Admin.Origin(bg, "t", lost.First); err != nil || !origin.Lost ||
		origin.Room != "" || len(origin.Rooms) > 0 {
		t.Errorf("an ID that etcd lost, below the first era: %+v, %v", origin, err)
	}
	if origin, err := c.Admin.Origin(bg, "t", again.First); err != nil || origin.Room != "a" {
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
	old := a.Lease(10)
	c.Admin.Ledger.Keep(3, 10, 100)
	for range record.MaxEras + 1 {
		c.Move("100 a=60-100")
		a.Lease(10)
		c.Move("100 a=50-100")
		a.Lease(10)
	}
	origin, err := c.Admin.Origin(bg, "t", old.First)
	if err != nil || origin.Room != "" || len(origin.Rooms) > 0 || len(origin.Unreadable) != 1 {
		t.Errorf("%+v, %v", origin, err)
	}
}

// Where the layout in force cannot be used, an origin names why: it does not say that the ID was never
// leased.
func TestOriginWithoutTheFirstLayout(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	first := c.start("a").Lease(10).First
	c.Corrupt("layouts/0000000000000000001", nil)
	c.Admin = manage(ledgertest.Open(t, c.Mem.Open()))
	_, _ = c.Admin.Ledger.Refresh(bg)
	_, err := c.Admin.Origin(bg, "t", first)
	ledgertest.WantKind(t, err, allocator.Refused, "there is no key /march/default/layouts/0000000000000000001")
}

// An ID of a layout that was deleted by hand names what is missing.
func TestOriginOfADeletedLayout(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	first := c.start("a").Lease(10).First
	c.Move("100 a=0-40 b=50-100")
	c.Corrupt("layouts/0000000000000000001", nil)
	origin, err := c.Admin.Origin(bg, "t", first)
	if err != nil || origin.Room != "" || len(origin.Unreadable) != 1 ||
		!strings.Contains(origin.Unreadable[0].Error(), "layouts/0000000000000000001") {
		t.Errorf("%+v, %v", origin, err)
	}
}
