package client_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestTimeToLive lets segments end while the room is away, in every way. From then on
// the client issues nothing, and its error says since when and why.
func TestTimeToLive(t *testing.T) {
	for name, f := range faults {
		for _, strict := range []bool{false, true} {
			if strict && name != "away" && name != "hang, happened" {
				continue // for a strict client two ways of being away are enough
			}
			t.Run(fmt.Sprintf("%s, strict %t", name, strict), func(t *testing.T) {
				testcluster.Bubble(t, func(t *testing.T) {
					front := newFront(t, newCluster(t).room("a", "a1"))
					opts := quick(front.address)
					opts.Strict, opts.MinStep = strict, 100_000
					ids := newClient(t, opts)
					const ttl = time.Second
					front.setTTL(ttl)
					order := tagOf(t, ids, slug(name))
					mustNext(t, order)
					held := order.Status().Held
					if _, ok := order.TryNext(); ok == strict {
						t.Errorf("TryNext: %t", ok)
					}
					front.fault(f)
					away := time.Now()
					var last time.Time // when the last call that got an ID began
					var err error
					testcluster.Await(t, "the end", func() bool {
						start := time.Now()
						if _, err = order.Next(t.Context()); err == nil {
							last = start
						}
						return err != nil
					})
					ledgertest.WantKind(t, err, allocator.Unavailable, "room at "+front.address,
						"since "+time.Now().UTC().Format("2006-"))
					var gone *allocator.AwayError
					if !errors.As(err, &gone) || gone.Since.Before(away.Add(-ttl)) || gone.Since.After(time.Now()) {
						t.Errorf("%v does not say since when", err)
					}
					if strict && last.Sub(away) >= ttl {
						t.Errorf("an ID %v after it was leased for %v", last.Sub(away), ttl)
					}
					if s := order.Status(); s.Held != 0 || s.Dropped == 0 || s.Dropped > held {
						t.Errorf("%+v, %d were held", s, held)
					}
					front.fault(nil)
					testcluster.Await(t, "the room is back", func() bool {
						_, err := order.Next(t.Context())
						return err == nil
					})
				})
			})
		}
	}
}

// TestHold: a real room says how long its IDs may be used, for a strict tag and for
// another tag, and then goes away.
func TestHold(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		c.hold = 2 * time.Second
		strict := record.DefaultTag()
		strict.StrictRetract = true
		if _, err := c.Admin.CreateTag(t.Context(), "strict", strict, "test"); err != nil {
			t.Fatal(err)
		}
		a := c.room("a", "a1")
		ids := newClient(t, quick(a.address))
		for _, name := range []string{"order", "strict"} {
			tag := tagOf(t, ids, name)
			leases := tag.Status().Refills
			testcluster.Await(t, "its IDs are replaced", func() bool {
				mustNext(t, tag)
				return tag.Status().Refills > leases+1
			})
		}
		a.end()
		silence(t, a.address)
		for _, name := range []string{"order", "strict"} {
			var err error
			testcluster.Await(t, "the end", func() bool { _, err = ids.Next(t.Context(), name); return err != nil })
			ledgertest.WantKind(t, err, allocator.Unavailable, "tag "+name, "since ", "room at "+a.address)
		}
	})
}

// TestRenewsBeforeTheEnd uses a tag over many times to live: only the first caller
// waits, and no call fails.
func TestRenewsBeforeTheEnd(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		front := newFront(t, c.room("a", "a1"))
		front.setTTL(1500 * time.Millisecond) // a busy machine may stop this process for half a second
		opts := quick(front.address)
		opts.MinStep = 100_000 // more than is used
		order := tagOf(t, newClient(t, opts), "order")
		var got issued
		stop := load(t, order, &got)
		testcluster.Await(t, "ten segments", func() bool { return order.Status().Refills >= 10 })
		if errs := stop(); errs != nil {
			t.Errorf("%d calls failed: %v", len(errs), errs[0])
		}
		if s := order.Status(); s.Waits > 1 || s.Dropped == 0 {
			t.Errorf("%+v", s)
		}
		got.unique(t, "a", testcluster.Halves())
		// The tag is unused now. The client lets its IDs end, and asks no room for more.
		testcluster.Await(t, "nothing is held", func() bool { return order.Status().Held == 0 })
		before := front.calls()
		time.Sleep(3500 * time.Millisecond) // more than a time to live, and than the keeper's second
		if n := front.calls() - before; n != 0 {
			t.Errorf("%d calls for an unused tag", n)
		}
		mustNext(t, order)
	})
}

// TestShortEnds: a client does not storm its room while segments end within a moment of
// each other, such as those of a room that confirmed its layout long ago.
func TestShortEnds(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		front := newFront(t, c.room("a", "a1"))
		opts := quick(front.address)
		opts.MinStep = 100_000
		end := time.Now().Add(3 * time.Second)
		front.alter(func(r *marchv1.LeaseResponse) { r.Ttl = ttlUntil(end) })
		order := tagOf(t, newClient(t, opts), "order")
		var got issued
		stop := load(t, order, &got)
		testcluster.Await(t, "the end is near", func() bool { return time.Until(end) < 300*time.Millisecond })
		if n := front.calls(); n > 30 {
			t.Errorf("%d calls for segments that are no better", n)
		}
		front.alter(nil)
		got.some(t, 1000)
		if errs := stop(); errs != nil {
			t.Errorf("%d calls failed: %v", len(errs), errs[0])
		}
		got.unique(t, "a", testcluster.Halves())
	})
}

// TestLayoutChanges changes the layout under load. No call fails, and all tags move to
// the new layout, including unused ones, though only one tag leases.
func TestLayoutChanges(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		front := newFront(t, c.room("a", "a1"))
		ids := newClient(t, quick(front.address))
		busy := tagOf(t, ids, "busy")
		var others []*client.Tag
		for n := range 50 {
			others = append(others, tagOf(t, ids, fmt.Sprintf("other-%d", n)))
		}
		var got issued
		stop := load(t, busy, &got)
		layouts := []allocator.Layout{testcluster.Halves()}
		for _, next := range []allocator.Layout{
			layout(100, 50, 100, 0, 50), layout(1000, 100, 200, 500, 1000), layout(7, 0, 1, 1, 7),
			layout(1<<40, 0, 1<<30, 1<<30, 1<<40),
		} {
			got.some(t, 200)
			c.Change(next, "test")
			layouts = append(layouts, next)
			version := int64(len(layouts))
			testcluster.Await(t, fmt.Sprintf("layout %d", version), func() bool {
				mustNext(t, others[0]) // one of the other tags leases now and then
				_, err := ids.Next(t.Context(), fmt.Sprintf("new-%d", rand.Int64()))
				return err == nil && busy.Status().Version >= version
			})
			for _, tag := range others {
				testcluster.Await(t, "a tag that is not used has moved", func() bool {
					return tag.Status().Version >= version
				})
				if id := mustNext(t, tag); !next.Ranges["a"].Contains(id % next.Boundary) {
					t.Errorf("%d of tag %s is not of layout %d", id, tag.Name(), version)
				}
				if s := tag.Status(); s.Waits > 1 {
					t.Errorf("%+v", s)
				}
			}
		}
		if errs := stop(); errs != nil {
			t.Errorf("%d calls failed: %v", len(errs), errs[0])
		}
		got.unique(t, "a", layouts...)
	})
}

// TestLagging has one of two instances lag behind the layout. The client uses its
// segments while it has no others, does not storm it, and replaces them as soon as the
// other instance is there.
func TestLagging(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		c.Change(layout(100, 50, 100, 0, 50), "test")
		a := c.room("a", "a1")
		lags, knows := newFront(t, a), newFront(t, a)
		lags.alter(func(r *marchv1.LeaseResponse) { r.Segment.Version, r.Serves.Version = 1, 1 })
		knows.alter(func(r *marchv1.LeaseResponse) { r.Serves.Range.Lower = 51 }) // one residue less than in layout 1
		knows.fault(faults["away"])
		ids := newClient(t, quick(lags.address, knows.address))
		order := tagOf(t, ids, "order")
		if v := order.Status().Version; v != 1 {
			t.Fatalf("layout %d", v)
		}
		knows.fault(nil, nil) // for one lease of another tag
		testcluster.Await(t, "layout 2 is heard of", func() bool {
			lags.fault(faults["away"])
			tag, err := ids.Tag(fmt.Sprintf("other-%d", knows.calls()))
			if err == nil {
				err = tag.Warm(t.Context())
			}
			return err == nil && tag.Status().Version == 2
		})
		knows.fault(faults["away"])
		lags.fault(nil)
		before := lags.calls()
		var got issued
		stop := load(t, order, &got)
		got.some(t, 2000)
		if n := lags.calls() - before; n > 20 {
			t.Errorf("%d calls to the instance that lags", n)
		}
		knows.fault(nil)
		testcluster.Await(t, "layout 2", func() bool { return order.Status().Version == 2 })
		if errs := stop(); errs != nil {
			t.Errorf("%d calls failed: %v", len(errs), errs[0])
		}
		got.unique(t, "a", layout(100, 50, 100, 0, 50))
	})
}

// TestLayoutsThatTakeNothing changes the layout to ones that give the room the same
// range, or a larger one. A client hears of them and keeps its IDs. Before, every layout
// made clients replace all their IDs.
func TestLayoutsThatTakeNothing(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		front := newFront(t, c.room("a", "a1"))
		ids := newClient(t, quick(front.address))
		var others []*client.Tag
		for n := range 20 {
			others = append(others, tagOf(t, ids, fmt.Sprintf("other-%d", n)))
			mustNext(t, others[n])
		}
		before := make([]allocator.Status, len(others))
		for i, tag := range others {
			testcluster.Await(t, "it holds its target again", func() bool {
				before[i] = tag.Status()
				return before[i].Held >= before[i].Target
			})
		}
		for n, next := range []allocator.Layout{layout(100, 0, 50, 60, 100), layout(100, 0, 60, 60, 100),
			layout(100, 0, 60, 70, 100)} {
			c.Change(next, "test")
			testcluster.Await(t, "the layout is heard of", func() bool {
				var heard atomic.Bool // other calls are under way at the same time
				front.alter(func(r *marchv1.LeaseResponse) { heard.Store(r.GetServes().GetVersion() == int64(n+2)) })
				_, err := ids.Next(t.Context(), fmt.Sprintf("new-%d", rand.Int64()))
				return err == nil && heard.Load()
			})
		}
		front.alter(nil)
		time.Sleep(100 * time.Millisecond) // the keeper has looked
		for i, tag := range others {
			if s := tag.Status(); s.Refills != before[i].Refills || s.Dropped != 0 || s.Version != 1 {
				t.Errorf("%+v, before %+v", s, before[i])
			}
		}
		c.Change(layout(100, 0, 49, 70, 100), "test")
		testcluster.Await(t, "all are replaced", func() bool {
			_, err := ids.Next(t.Context(), fmt.Sprintf("new-%d", rand.Int64()))
			done := err == nil
			for _, tag := range others {
				done = done && tag.Status().Version == 5
			}
			return done
		})
	})
}

// TestEverythingAtOnce has many callers of many tags, instances that start and stop,
// faults, short times to live and new layouts.
func TestEverythingAtOnce(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a1, a2 := c.room("a", "a1"), c.room("a", "a2")
		fronts := []*front{newFront(t, a1), newFront(t, a2)}
		opts := quick(fronts[0].address, fronts[1].address)
		opts.Reserve = time.Second
		for _, strict := range []bool{false, true} {
			opts.Strict = strict
			ids := newClient(t, opts)
			tags := []*client.Tag{tagOf(t, ids, "order"), tagOf(t, ids, "user"), tagOf(t, ids, "item")}
			got := make([]issued, len(tags))
			var stops []func() []error
			for i, tag := range tags {
				stops = append(stops, load(t, tag, &got[i]))
			}
			names := slices.Collect(maps.Keys(faults))
			swapped := false
			for range 25 {
				front := fronts[rand.IntN(2)]
				switch rand.IntN(4) {
				case 0:
					front.fault(nil, faults[names[rand.IntN(len(names))]])
				case 1:
					front.setTTL(time.Duration(100+rand.IntN(1000)) * time.Millisecond)
				case 2:
					front.down()
					got[0].some(t, 100)
					front.listen()
				case 3:
					if swapped = !swapped; swapped {
						c.Change(layout(100, 50, 100, 0, 50), "test")
					} else {
						c.Change(testcluster.Halves(), "test")
					}
				}
				got[rand.IntN(len(got))].some(t, 100)
			}
			for i, stop := range stops {
				for _, err := range stop() { // both instances may be away for a moment when little is held
					ledgertest.WantKind(t, err, allocator.Unavailable)
				}
				n := got[i].unique(t, "a", testcluster.Halves(), layout(100, 50, 100, 0, 50))
				t.Logf("strict %t, tag %s: %d IDs, %+v", strict, tags[i].Name(), n, tags[i].Status())
			}
			var all sync.WaitGroup
			all.Go(ids.Close)
			all.Go(ids.Close)
			all.Wait()
		}
	})
}

// TestLowerLimit: with its next call to the room a client drops its IDs from a lowered
// limit on, though the room has no IDs left to lease.
func TestLowerLimit(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		order := tagOf(t, newClient(t, quick(a.address)), "order")
		testcluster.Await(t, "it holds its target", func() bool { s := order.Status(); return s.Held >= s.Target })
		limit := order.Status().Last + 1 - 500
		if _, err := c.Admin.UpdateTag(t.Context(), "order", func(s *record.TagSettings) error {
			s.Limit = limit
			return nil
		}, "test"); err != nil {
			t.Fatal(err)
		}
		mustNext(t, order) // it holds less than its target, and asks
		testcluster.Await(t, "the client has heard of it", func() bool { return order.Status().Dropped > 0 })
		for {
			id, err := order.Next(t.Context())
			if err != nil {
				ledgertest.WantKind(t, err, allocator.Exhausted)
				return
			}
			if id >= limit {
				t.Fatalf("%d with a limit of %d", id, limit)
			}
		}
	})
}
