package allocator_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// What a chain holds when it is closed goes on in another one. Each ID is taken by a caller of the first, or left for
// the second; the second issues them in order before it leases anything, and leases ahead so that no caller waits.
func TestCloseKept(t *testing.T) {
	for range 50 {
		virtual(t, func(w *world) {
			s := settings(1000, 1000, time.Minute)
			first, m := w.chain(s)
			m.latency = time.Millisecond
			all := []int64{w.take(first, 1)[0].First}
			time.Sleep(time.Second) // no lease is under way
			var mu sync.Mutex
			var callers sync.WaitGroup
			for range 4 {
				callers.Go(func() {
					for range 200 {
						if id, ok := first.TryNext(); ok {
							mu.Lock()
							all = append(all, id)
							mu.Unlock()
						}
					}
				})
			}
			kept := first.CloseKept()
			callers.Wait()
			if _, err := first.Next(w.Context()); allocator.KindOf(err) != allocator.Unavailable {
				w.Errorf("a closed chain: %v", err)
			}
			if again := first.CloseKept(); len(again) > 0 {
				w.Errorf("kept twice: %v", again)
			}
			second, m2 := w.chain(s)
			m2.latency, m2.next = m.latency, m.next
			second.Seed(kept)
			last := slices.Max(all)
			for _, seg := range kept {
				for range seg.Count {
					id, err := second.Next(w.Context())
					if err != nil || id <= last {
						w.Fatalf("%d after %d, %v", id, last, err)
					}
					all, last = append(all, id), id
					time.Sleep(10 * time.Millisecond)
				}
			}
			slices.Sort(all)
			if n := int64(len(all)); n != m.total() || int64(len(slices.Compact(all))) != n {
				w.Errorf("%d IDs, some of them twice, of %d leased", n, m.total())
			}
			if s := second.Status(); s.Waits > 0 || s.Dropped > 0 {
				w.Errorf("%d callers waited, %d IDs were dropped", s.Waits, s.Dropped)
			}
		})
	}
}

// Kept IDs from the limit on are no IDs of the chain, and those below earlier ones are not, either.
func TestSeedIsCut(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(10, 10, time.Minute))
		c.Limit(315)
		seg := func(first, n int64) allocator.Segment {
			s, err := m.layout.Segment(room, first, n, allocator.MaxID)
			if err != nil {
				w.Fatal(err)
			}
			return s
		}
		c.Seed([]allocator.Segment{seg(310, 3), seg(311, 1), seg(314, 10), seg(330, 1)})
		runs, err := c.NextN(w.Context(), 4, nil)
		if err != nil || len(runs) != 2 || runs[0] != (allocator.Run{First: 310, Count: 3}) || runs[1].First != 314 {
			w.Errorf("%v, %v", runs, err)
		}
	})
}
