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

// thirds is a layout of three rooms with a boundary of 100, and gaps.
func thirds() allocator.Layout {
	return allocator.Layout{Version: 1, Boundary: 100, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: 0, Upper: 30}, "b": {Lower: 35, Upper: 60}, "c": {Lower: 60, Upper: 95}}}
}

// aLook is after how long each instance has looked.
const aLook = 6 * time.Second

// skewed makes a cluster whose tag t has a max_skew.
func skewed(t *testing.T, layout allocator.Layout, skew int64) *cluster {
	c := newCluster(t, layout)
	c.tag(func(s *record.TagSettings) { s.MaxSkew, s.MinStep, s.Reserve = skew, 100, "5s" }, "t")
	return c
}

// issue takes n IDs of t and returns the first of the last run.
func (i *instance) issue(n int64) (last int64) {
	i.Helper()
	batch, err := i.NextBatch(bg, batchRequest("t", n))
	if err != nil {
		i.Fatal(err)
	}
	runs := batch.GetRuns()
	return runs[len(runs)-1].GetFirst()
}

func refills(all []*instance) (n int64) {
	for _, i := range all {
		n += i.chain("t").GetRefills()
	}
	return n
}

// No ID of an idle room lies further behind than max_skew, as the furthest room was a look before. Nothing is leased
// without a caller.
func TestSkewOfIdleRooms(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const skew = 10_000
		c := skewed(t, thirds(), skew)
		busy, idle := c.start("a", "a1", nil), []*instance{c.start("b", "b1", nil), c.start("c", "c1", nil),
			c.start("a", "a2", nil)}
		for _, i := range idle {
			i.mustNext("t")
		}
		time.Sleep(aLook)
		before := refills(idle)
		for range 20 {
			busy.issue(1000)
			time.Sleep(aLook)
		}
		if n := refills(idle) - before; n != 0 {
			t.Errorf("%d leases without a caller", n)
		}
		for n := range 30 {
			furthest := busy.issue(1000)
			time.Sleep(aLook)
			i := idle[n/10]
			before := refills(idle)
			if id := i.mustNext("t"); id < furthest-skew {
				t.Fatalf("%d: an idle room issues %d, and %d was issued a look before", n, id, furthest)
			}
			time.Sleep(time.Second)
			if n := refills(idle) - before; n > 2 { // one for the caller, and one ahead of the next
				t.Errorf("%d leases for a caller", n)
			}
		}
	})
}

// However small a max_skew is, and however many instances and rooms there are, each lease is for a caller: one at a
// look at most, and what the chain leases ahead.
func TestSkewLeasesByCalls(t *testing.T) {
	for _, rooms := range []string{"aaaaa", "aabbcca"} {
		for _, skew := range []int64{1, 10, 150, 5000} {
			t.Run(fmt.Sprint(rooms, " ", skew), func(t *testing.T) {
				testcluster.Bubble(t, func(t *testing.T) {
					c := skewed(t, thirds(), skew)
					var all []*instance
					for n, in := range rooms {
						all = append(all, c.start(allocator.Room(in), allocator.Instance(fmt.Sprint("i", n)), nil))
						all[n].mustNext("t")
					}
					all[0].issue(5000)
					time.Sleep(time.Minute)
					before := refills(all)
					time.Sleep(5 * time.Minute)
					if n := refills(all) - before; n != 0 {
						t.Errorf("%d leases in five minutes without a caller", n)
					}
					for range 20 {
						for _, i := range all {
							i.mustNext("t")
							i.mustNext("t")
						}
						time.Sleep(5 * time.Second)
					}
					calls := int64(20 * len(all))
					if n := refills(all) - before; n > 2*calls+int64(len(all)) {
						t.Errorf("%d leases for callers at %d looks", n, calls)
					}
					time.Sleep(time.Minute)
					before = refills(all)
					time.Sleep(5 * time.Minute)
					if n := refills(all) - before; n != 0 {
						t.Errorf("%d leases in five minutes without a caller again", n)
					}
				})
			})
		}
	}
}

// Where no lease can be had an idle chain issues what it holds: as etcd is away or full, or another room is too far
// ahead. Its first caller waits a second at most.
func TestSkewKeepsWhatItCannotReplace(t *testing.T) {
	for _, why := range []string{"away", "full", "jump"} {
		t.Run(why, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				c := skewed(t, testcluster.Halves(), 1000)
				c.update("t", func(s *record.TagSettings) { s.MaxJump = 100_000 })
				a, b := c.start("a", "a1", nil), c.start("b", "b1", nil)
				first := a.mustNext("t")
				switch why {
				case "jump":
					if _, err := c.Admin.SkipTag(bg, "t", []allocator.Room{"b"}, 10_000_000, true, "test"); err != nil {
						t.Fatal(err)
					}
					b.await("room b skips", func() bool { return b.mustNext("t") >= 10_000_000 })
				default:
					b.issue(5000)
				}
				time.Sleep(aLook)
				if why == "full" {
					c.Mem.NoSpace(true)
				}
				if why == "away" {
					c.Mem.Stop()
				}
				for n := int64(1); n < 50; n++ {
					start := time.Now()
					if id := a.mustNext("t"); id != (first+n)/50*100+(first+n)%50 && id != first+n {
						t.Errorf("%d was issued as number %d after %d", id, n, first)
					}
					waited := time.Since(start)
					if waited > 1100*time.Millisecond || n > 1 && waited > 100*time.Millisecond {
						t.Errorf("number %d waited %v", n, waited)
					}
				}
			})
		})
	}
}

// A look after a start finds what was kept too far behind. With the setting away an instance issues all that it holds,
// and leases below what a look demanded.
func TestSkewOfWhatIsKept(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c, dir := skewed(t, testcluster.Halves(), 1000), t.TempDir()
		start := func() *instance { return c.start("a", "a1", func(cfg *room.Config) { cfg.Journal = dir }) }
		a, b := start(), c.start("b", "b1", nil)
		first := a.mustNext("t")
		furthest := b.issue(5000)
		time.Sleep(aLook) // it is behind as it stops
		a.Stop()
		a = start()
		if id := a.mustNext("t"); id != first+1 {
			t.Errorf("%d was kept after %d", id, first)
		}
		time.Sleep(aLook)
		if id := a.mustNext("t"); id < furthest-1000 {
			t.Errorf("%d was kept, and is issued after %d", id, furthest)
		}
		b.issue(5000)
		time.Sleep(aLook)
		held := a.chain("t")
		c.update("t", func(s *record.TagSettings) { s.MaxSkew = 0 })
		time.Sleep(time.Second)
		if id, now := a.mustNext("t"), a.chain("t"); id != held.GetFirst() || now.GetRefills() != held.GetRefills() {
			t.Errorf("%d was issued of %v, now %v", id, held, now)
		}
		time.Sleep(aLook)
		a.issue(1000)
		if now := a.chain("t"); now.GetDropped() != held.GetDropped() {
			t.Errorf("%v, now %v", held, now)
		}
	})
}

// The holder of a tag that is ordered within its room drops what lies too far behind another room, for its callers and
// for calls that another instance passes on, and what it issues only grows. It takes no rest that lies so far behind.
func TestSkewOfOrderedTag(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const skew = 1000
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) {
			s.StrictOrder, s.TenureHold, s.MaxSkew, s.MinStep = record.OrderRoom, record.DefaultTenureHold, skew, 100
		}, "o")
		b, other, a := c.start("b", "b1", nil), c.start("b", "b2", nil), c.start("a", "a1", nil)
		g, ahead := &grows{TB: t}, &grows{TB: t}
		ahead.await(a)
		g.await(b)
		run := func() int64 {
			batch, err := a.NextBatch(bg, batchRequest("o", 5000))
			if err != nil {
				t.Fatal(err)
			}
			runs := batch.GetRuns()
			return runs[len(runs)-1].GetFirst()
		}
		for n := range 10 {
			furthest := run()
			time.Sleep(aLook)
			for through, i := range []*instance{b, other} {
				id := i.mustNext("o")
				if g.check(id); id < furthest-skew {
					t.Errorf("%d: %d is issued through instance %d, and %d was a look before", n, id, through, furthest)
				}
			}
		}
		time.Sleep(time.Second) // a refill under way as an instance stops is lost, with the rest before it
		b.Stop()
		furthest := run()
		if g.await(other); g.last < furthest-skew {
			t.Errorf("%d of a rest was issued after %d", g.last, furthest)
		}
	})
}

// An instance is not behind its own leases: alone it drops nothing, however small max_skew is.
func TestSkewOfOneInstance(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := skewed(t, thirds(), 10)
		a := c.start("a", "a1", nil)
		for range 100 {
			a.issue(1000)
			time.Sleep(time.Second)
		}
		if chain := a.chain("t"); chain.GetDropped() != 0 || chain.GetRefills() < 10 {
			t.Errorf("%v", chain)
		}
	})
}

// With a full etcd callers of many tags hardly wait, and each chain catches up once etcd has space again.
func TestSkewOfManyTagsWithoutSpace(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		var tags []allocator.Tag
		for n := range 50 {
			tags = append(tags, allocator.Tag(fmt.Sprint("t", n)))
		}
		c.tag(func(s *record.TagSettings) { s.MaxSkew, s.MinStep = 1000, 100 }, tags...)
		a, b := c.start("a", "a1", nil), c.start("b", "b1", nil)
		for _, tag := range tags {
			a.mustNext(string(tag))
			if _, err := b.NextBatch(bg, batchRequest(string(tag), 5000)); err != nil {
				t.Fatal(err)
			}
		}
		c.Mem.NoSpace(true)
		for range 3 {
			time.Sleep(aLook)
			start := time.Now()
			for _, tag := range tags {
				a.mustNext(string(tag))
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("50 callers waited %v", took)
			}
		}
		c.Mem.NoSpace(false)
		time.Sleep(aLook)
		for _, tag := range tags {
			a.mustNext(string(tag))
		}
		time.Sleep(time.Second)
		for _, tag := range tags {
			if id := a.mustNext(string(tag)); id < 9000 {
				t.Errorf("%s: %d after etcd has space again", tag, id)
			}
		}
	})
}
