package room_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// thirds is a layout of three rooms with a boundary of 100.
func thirds() allocator.Layout {
	return allocator.Layout{Version: 1, Boundary: 100, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: 0, Upper: 30}, "b": {Lower: 30, Upper: 60}, "c": {Lower: 60, Upper: 100}}}
}

// skewed makes a cluster whose tag t has a max_skew.
func skewed(t *testing.T, layout allocator.Layout, skew int64) *cluster {
	c := newCluster(t, layout)
	c.tag(func(s *record.TagSettings) { s.MaxSkew, s.MinStep, s.Reserve = skew, 100, "5s" }, "t")
	return c
}

// issue takes n IDs of t and returns the last.
func (i *instance) issue(n int) (last int64) {
	i.Helper()
	batch, err := i.NextBatch(bg, batchRequest("t", int64(n)))
	if err != nil {
		i.Fatal(err)
	}
	runs := batch.GetRuns()
	return runs[len(runs)-1].GetFirst()
}

// No ID of an idle room lies further behind than max_skew and a boundary, as the furthest room was a look before.
func TestSkewOfIdleRooms(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const skew = 10_000
		c := skewed(t, thirds(), skew)
		busy, idle := c.start("a", "a1", nil), []*instance{c.start("b", "b1", nil), c.start("c", "c1", nil),
			c.start("a", "a2", nil)}
		for _, i := range idle {
			i.mustNext("t")
		}
		for n := range 100 {
			furthest := busy.issue(1000)
			time.Sleep(6 * time.Second)
			at := n / 10 % 3 // for a minute one after the other has callers
			if id := idle[at].mustNext("t"); id < furthest-skew-100 {
				t.Fatalf("%d: instance %d issues %d, and %d was issued 6 s before", n, at, id, furthest)
			}
		}
		for at, i := range idle {
			if chain := i.chain("t"); chain.GetRefills() < 10 || chain.GetRefills() > 150 {
				t.Errorf("instance %d: %v", at, chain)
			}
		}
	})
}

// Instances without callers do not lease each other out of a small max_skew for ever: in one room, or in three.
func TestSkewRenewalsEnd(t *testing.T) {
	for _, rooms := range []string{"aaaaa", "aabbc"} {
		for _, skew := range []int64{10, 150, 1500, 5000} {
			t.Run(fmt.Sprint(rooms, " ", skew), func(t *testing.T) {
				testcluster.Bubble(t, func(t *testing.T) {
					c := skewed(t, thirds(), skew)
					var all []*instance
					for n, in := range rooms {
						all = append(all, c.start(allocator.Room(in), allocator.Instance(fmt.Sprint("i", n)), nil))
						all[n].mustNext("t")
					}
					all[0].issue(5000)
					time.Sleep(2 * time.Minute)
					before := refills(all)
					time.Sleep(5 * time.Minute)
					if n := refills(all) - before; n != 0 {
						t.Errorf("%d leases in five minutes without a caller", n)
					}
					for _, i := range all { // whatever they hold, they go on
						i.mustNext("t")
					}
				})
			})
		}
	}
}

func refills(all []*instance) (n int64) {
	for _, i := range all {
		n += i.chain("t").GetRefills()
	}
	return n
}

// Where no lease can be had an idle chain keeps what it holds: as etcd is full, or another room is too far ahead.
func TestSkewKeepsWhatItCannotReplace(t *testing.T) {
	for _, why := range []string{"full", "jump"} {
		t.Run(why, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				c := skewed(t, testcluster.Halves(), 1000)
				c.update("t", func(s *record.TagSettings) { s.MaxJump = 100_000 })
				a, b := c.start("a", "a1", nil), c.start("b", "b1", nil)
				first := a.mustNext("t")
				if why == "full" {
					b.issue(5000)
					c.Mem.NoSpace(true)
				} else if _, err := c.Admin.SkipTag(bg, "t", []allocator.Room{"b"}, 10_000_000, true,
					"test"); err != nil {
					t.Fatal(err)
				} else {
					b.await("room b skips", func() bool { return b.mustNext("t") >= 10_000_000 })
				}
				time.Sleep(time.Minute)
				if id := a.mustNext("t"); id != first+1 {
					t.Errorf("%d was issued after %d", id, first)
				}
			})
		})
	}
}

// A start issues nothing of what was kept below max_skew; and with the setting away, nothing is renewed, and chains
// lease on below what a look demanded.
func TestSkewOfWhatIsKept(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c, dir := skewed(t, testcluster.Halves(), 1000), t.TempDir()
		start := func() *instance { return c.start("a", "a1", func(cfg *room.Config) { cfg.Journal = dir }) }
		a, b := start(), c.start("b", "b1", nil)
		a.mustNext("t")
		a.Stop()
		furthest := b.issue(5000)
		a = start()
		if id := a.mustNext("t"); id < furthest-1000 {
			t.Errorf("%d was kept, and is issued after %d", id, furthest)
		}
		c.update("t", func(s *record.TagSettings) { s.MaxSkew = 0 })
		b.issue(5000)
		time.Sleep(time.Minute)
		held := a.chain("t")
		if id := a.mustNext("t"); id != held.GetFirst() || held.GetDropped() != 0 {
			t.Errorf("%d was issued of %v", id, held)
		}
		for range 20 {
			a.issue(100)
		}
	})
}
