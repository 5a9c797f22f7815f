package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/march-id/march/allocator"
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
