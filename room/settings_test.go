package room_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestTagChangesLive changes a tag's settings while an instance holds IDs of
// it.
func TestTagChangesLive(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "skipped", "lagging", "limited")
	a := c.start("a", "a1", nil)
	b := c.start("b", "b1", nil)

	t.Run("update", func(t *testing.T) {
		a.mustNext("order")
		c.update("order", func(s *record.TagSettings) { s.MinStep = 5000 })
		a.await("the larger step is held", func() bool { return a.chain("order").GetHeld() >= 5000 })
		c.update("order", func(s *record.TagSettings) { s.MinStep = 10 })
		a.await("the smaller step is aimed at", func() bool { return a.chain("order").GetStep() == 10 })
	})

	t.Run("prescale", func(t *testing.T) {
		c.update("order", func(s *record.TagSettings) {
			s.Prescale, s.PrescaleUntil = 50_000, time.Now().Add(time.Hour)
		})
		a.await("the prescale is held", func() bool { return a.chain("order").GetHeld() >= 50_000 })
		c.update("order", func(s *record.TagSettings) { s.Prescale, s.PrescaleUntil = 0, time.Time{} })
		a.await("the prescale is over", func() bool { return a.chain("order").GetStep() == 10 })
	})

	t.Run("skip", func(t *testing.T) {
		a.mustNext("skipped")
		b.mustNext("skipped")
		if _, err := c.Admin.SkipTag(bg, "skipped", []allocator.Room{"a"}, 1_000_000, false, "test"); err != nil {
			t.Fatal(err)
		}
		a.await("room a skips", func() bool { return a.mustNext("skipped") >= 1_000_000 })
		if id := b.mustNext("skipped"); id >= 1_000_000 {
			t.Errorf("room b was not told to skip, and issues %d", id)
		}
		if chain := a.chain("skipped"); chain.GetDropped() == 0 {
			t.Errorf("nothing was dropped: %v", chain)
		}
	})

	t.Run("max_skew", func(t *testing.T) {
		if _, err := b.Lease(bg, leaseRequest("lagging", 1)); err != nil {
			t.Fatal(err)
		}
		if id := a.mustNext("lagging"); id > 10_000 {
			t.Fatalf("room a begins at %d", id)
		}
		if _, err := c.Admin.SkipTag(bg, "lagging", []allocator.Room{"b"}, 10_000_000, false, "test"); err != nil {
			t.Fatal(err)
		}
		b.await("room b skips", func() bool { return b.mustNext("lagging") >= 10_000_000 })
		c.update("lagging", func(s *record.TagSettings) { s.MaxSkew = 5000 })
		// The new max_skew holds from the next lease on, and some seconds later for IDs that are held.
		for range 10 {
			if _, err := a.NextBatch(bg, batchRequest("lagging", 1000)); err != nil {
				t.Fatal(err)
			}
		}
		if id := a.mustNext("lagging"); id < 10_000_000-5000 {
			t.Errorf("room a still lags: it issues %d", id)
		}
	})

	t.Run("limit", func(t *testing.T) {
		a.mustNext("limited")
		c.update("limited", func(s *record.TagSettings) { s.Limit = 5000 }) // for IDs that are leased from now on
		exhausted := want{codes.ResourceExhausted, "exhausted", []string{"limited", "5000"}}
		last, err := int64(0), error(nil)
		for id := int64(0); err == nil; id, err = a.next("limited") {
			last = id
		}
		if problem := exhausted.check(err); problem != "" {
			t.Error(problem)
		}
		if last != 4949 { // the last of room a below 5,000
			t.Errorf("the last ID is %d, want 4949", last)
		}
		c.update("limited", func(s *record.TagSettings) { s.Limit = allocator.MaxID })
		a.await("the limit is lifted", func() bool { id, err := a.next("limited"); return err == nil && id >= 5000 })
	})
	c.verify()
}

// TestTagDeletedAndMadeAgain deletes a tag of which instances hold IDs, and creates it
// again: its IDs go on above the old ones.
func TestTagDeletedAndMadeAgain(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order"} })
		mine := &issued{TB: t, room: "a", tag: "order"}
		for range 3 {
			mine.addID(a.mustNext("order"))
			if err := c.Admin.DeleteTag(bg, "order", "test"); err != nil {
				t.Fatal(err)
			}
			a.await("not found", func() bool {
				id, err := a.next("order")
				if err == nil {
					mine.addID(id)
				}
				return want{codes.NotFound, "not_found", []string{"order", "march tag create order"}}.check(err) == ""
			})
			c.tag(nil, "order")
			a.await("found again", func() bool {
				id, err := a.next("order")
				if err == nil {
					mine.addID(id)
				}
				return err == nil
			})
		}
		c.verify(mine)
	})
}

// TestMissedChange updates a tag after etcd's restart, before the room's watch is back.
// The chain must follow the change all the same.
func TestMissedChange(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		other := c.Ledger() // without back-off
		c.Mem.Stop()
		c.Mem.Start()
		if _, err := admin.New(other, admin.DefaultConfig()).UpdateTag(bg, "order", func(s *record.TagSettings) error {
			s.MinStep = 77_000
			return nil
		}, "test"); err != nil {
			t.Fatal(err)
		}
		a.await("the step is taken up", func() bool { return a.chain("order").GetStep() == 77_000 })
	})
}
