package room_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/internal/testcluster"
)

// An etcd that is restored to a time before midnight, after rooms have begun the next day:
// after a recover the rooms go on above their IDs of that day, and none comes twice.
func TestRestoreOverMidnight(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "order")
		_, today, tomorrow := c.midnight(8 * time.Second)
		all := []*instance{c.start("a", "a1", nil), c.start("b", "b1", nil)}
		last := map[*instance]int64{}
		seen := map[int64]bool{}
		take := func(i *instance, id int64) {
			t.Helper()
			if seen[id] || id <= last[i] {
				t.Fatalf("ID %d after %d, seen before: %v", id, last[i], seen[id])
			}
			seen[id], last[i] = true, id
		}
		for _, i := range all {
			for range 10 {
				id := i.mustNext("order")
				if id < today.First || id >= today.End {
					t.Fatalf("ID %d of another day", id)
				}
				take(i, id)
			}
		}
		backup := c.Mem.Revision()
		for _, i := range all {
			i.await("the new day", func() bool {
				id := i.mustNext("order")
				take(i, id)
				return id >= tomorrow.First
			})
			for range 2500 { // more than one lease
				take(i, i.mustNext("order"))
			}
		}
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		c.recover(c.report, nil)
		for _, i := range all {
			for n := 0; n < 5000; {
				id, err := i.next("order")
				if err != nil { // it has not heard of the recover yet
					time.Sleep(10 * time.Millisecond)
					continue
				}
				if id < tomorrow.First || id >= tomorrow.End {
					t.Fatalf("ID %d of another day", id)
				}
				take(i, id)
				n++
			}
		}
	})
}

// A migration that begins before midnight and ends after it, under load: no call fails, no
// ID comes twice, and each is in its room's range under one of the layouts.
func TestMigrationOverMidnight(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(daily, "order", "user")
		now, today, tomorrow := c.midnight(time.Second)
		all := []*instance{c.start("a", "a1", nil), c.start("a", "a2", nil), c.start("b", "b1", nil)}
		swapped := layout(100,
			map[allocator.Room]allocator.Range{"a": {Lower: 50, Upper: 100}, "b": {Lower: 0, Upper: 50}})
		layouts := []allocator.Layout{testcluster.Halves(), swapped}
		var before, after atomic.Int64
		var seen sync.Map
		var callers sync.WaitGroup
		done := make(chan struct{})
		for _, i := range all {
			for _, tag := range []string{"order", "user"} {
				callers.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
						}
						id, err := i.next(tag)
						if err != nil {
							t.Errorf("%v: %v", now(), err)
							return
						}
						if _, twice := seen.LoadOrStore(fmt.Sprint(tag, id), true); twice {
							t.Errorf("%s: ID %d came twice", tag, id)
						}
						switch {
						case !ofSome(layouts, i.In, id):
							t.Errorf("%s: ID %d is in no range of room %s", tag, id, i.In)
						case id >= tomorrow.First && id < tomorrow.End:
							after.Add(1)
						case id >= today.First && id < today.End:
							before.Add(1)
						default:
							t.Errorf("%s: ID %d is of neither day", tag, id)
						}
					}
				})
			}
		}
		// swapped, back, and again
		for version := int64(2); now().Before(tomorrow.Begins.Add(time.Second)) && !t.Failed(); version++ {
			c.Change(layouts[(version+1)%2], "test")
			for _, i := range all {
				i.await(fmt.Sprintf("version %d", version), func() bool {
					return c.registered(i.In, i.Instance).Version >= version
				})
			}
		}
		for _, i := range all {
			i.await("the new day", func() bool {
				return i.mustNext("order") >= tomorrow.First && i.mustNext("user") >= tomorrow.First
			})
		}
		close(done)
		callers.Wait()
		if before.Load() == 0 || after.Load() == 0 {
			t.Errorf("%d IDs of the day before, %d of the day after", before.Load(), after.Load())
		}
	})
}

// Days of 23 and 25 hours, and one that begins at 1 o'clock: the day ends where the zone's
// does. Of two instances whose clocks are a minute apart, the late one follows.
func TestMidnightWithSummerTime(t *testing.T) {
	for _, tt := range []struct{ zone, border, was, is string }{
		{"Europe/Berlin", "2030-03-31T22:00:00Z", "2030-03-31", "2030-04-01"},
		{"Europe/Berlin", "2030-10-27T23:00:00Z", "2030-10-27", "2030-10-28"},
		{"America/Santiago", "2030-09-08T04:00:00Z", "2030-09-07", "2030-09-08"},
	} {
		t.Run(tt.was+" in "+tt.zone, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				border, err := time.Parse(time.RFC3339, tt.border)
				if err != nil {
					t.Fatal(err)
				}
				its := period.Period{Unit: period.Day, Digits: 9, Zone: tt.zone}
				was, is := its.At(border.Add(-time.Millisecond)), its.At(border)
				if was.String() != tt.was || is.String() != tt.is || !is.Begins.Equal(border) {
					t.Fatalf("%v ends at %v, %v begins at %v; want %s", was, was.Ends, is, is.Begins, tt.border)
				}
				c := newCluster(t, testcluster.Halves())
				c.tag(func(s *record.TagSettings) { s.Period = its }, "order")
				c.before(border, 3*time.Second)
				early := c.start("a", "early", nil)
				c.before(border, time.Minute+3*time.Second)
				late := c.start("a", "late", nil)
				seen := map[int64]bool{}
				take := func(i *instance) int64 {
					id := i.mustNext("order")
					if seen[id] || id < was.First || id >= is.End || id >= was.End && id < is.First {
						t.Fatalf("ID %d, seen before: %v", id, seen[id])
					}
					seen[id] = true
					return id
				}
				for _, i := range []*instance{early, late} {
					if id := take(i); id >= was.End {
						t.Errorf("instance %s: ID %d before the border", i.Instance, id)
					}
				}
				early.await("the early instance turns", func() bool { return take(early) >= is.First })
				for take(late) < is.First { // what it holds of the day before comes to an end
				}
			})
		})
	}
}
