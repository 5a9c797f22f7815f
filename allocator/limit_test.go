package allocator_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
)

// TestLimit lowers a limit below IDs that a chain holds. Before, a lowered limit did
// not bind these: a chain issued 900,000 IDs above it in six seconds.
func TestLimit(t *testing.T) {
	for name, limit := range map[string]int64{
		"within the head": 320, "at a block's end": 700, "within a gap": 900, "within the tail": 3350, "below all": 5,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				c, m := w.chain(settings(1000, 1_000_000, time.Minute))
				w.take(c, 10)
				time.Sleep(time.Second)
				c.Observe()
				time.Sleep(time.Second)                                      // the chain gets a tail
				c.Renew(m.setRange(allocator.Range{Lower: 300, Upper: 800})) // the new layout keeps the tail
				var want int64
				for _, s := range c.Segments() {
					for id := range s.IDs() {
						if id < limit {
							want++
						}
					}
				}
				m.fault(exhausted)
				c.Limit(limit)
				if s := c.Status(); s.Held != want {
					w.Errorf("%d are held, want %d: %v", s.Held, want, c.Segments())
				}
				for range want {
					if id, err := c.Next(w.Context()); err != nil || id >= limit {
						w.Fatalf("%d, %v", id, err)
					}
				}
				if id, err := c.Next(w.Context()); !errors.Is(err, allocator.Exhausted) {
					w.Errorf("%d, %v at the limit", id, err)
				}
				m.fault(nil)
				c.Limit(allocator.MaxID)
				border := m.nextID()
				time.Sleep(2 * time.Second) // the chain repeats the failure for a moment
				if id, err := c.Next(w.Context()); err != nil || id < border {
					w.Errorf("%d, %v after the limit was raised; the new begin at %d", id, err, border)
				}
				w.balance(c, m)
			})
		})
	}
}

// A chain cuts a segment at the limit if the limit was lowered while the lease was
// under way.
func TestLimitWithALeaseUnderWay(t *testing.T) {
	for _, below := range []int64{0, 700} {
		virtual(t, func(w *world) {
			c, m := w.chain(settings(1000, 1_000_000, time.Minute))
			w.take(c, 1)
			time.Sleep(time.Second)
			m.fault(exhausted, late)
			border := m.nextID()       // the segment under way lies above
			w.take(c, c.Status().Held) // asks for more
			time.Sleep(time.Millisecond)
			limit := border + below
			c.Limit(limit)
			time.Sleep(2 * time.Second)
			if s := c.Status(); s.Held > below {
				w.Errorf("%+v with a limit of %d", s, limit)
			}
			for {
				id, err := c.Next(w.Context())
				if err != nil {
					if !errors.Is(err, allocator.Exhausted) {
						w.Error(err)
					}
					break
				}
				if id >= limit {
					w.Fatalf("%d with a limit of %d", id, limit)
				}
			}
			w.balance(c, m)
		})
	}
}

// TestLimitAgainstAList compares the part of a segment below a limit with a list of IDs.
func TestLimitAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		boundary := rapid.Int64Range(1, 20).Draw(t, "boundary")
		lower := rapid.Int64Range(0, boundary-1).Draw(t, "lower")
		l := allocator.Layout{Version: 1, Boundary: boundary, Ranges: map[allocator.Room]allocator.Range{
			room: {Lower: lower, Upper: rapid.Int64Range(lower+1, boundary).Draw(t, "upper")},
		}}
		seg, err := l.Segment(room, rapid.Int64Range(0, 50).Draw(t, "base"),
			rapid.Int64Range(1, 50).Draw(t, "n"), allocator.MaxID)
		if err != nil {
			t.Fatal(err)
		}
		limit := rapid.Int64Range(1, seg.Last()+5).Draw(t, "limit")
		var want []int64
		for id := range seg.IDs() {
			if id < limit {
				want = append(want, id)
			}
		}
		got := allocator.Below(seg, limit)
		if got.Count != int64(len(want)) || len(want) > 0 && (got.First != want[0] || got.Last() != want[len(want)-1]) {
			t.Fatalf("%v below %d: %v, want %v", seg, limit, got, want)
		}
	})
}
