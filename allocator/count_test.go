package allocator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

func TestNextNAndLeaseBounds(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(10, 1000, time.Minute))
		for _, n := range []int64{-1, 0, allocator.LargestStep + 1, allocator.MaxID} {
			if runs, err := c.NextN(w.Context(), n, nil); !errors.Is(err, allocator.Invalid) || len(runs) > 0 {
				w.Errorf("NextN(%d): %v, %v", n, runs, err)
			}
			if seg, err := c.Lease(w.Context(), n); !errors.Is(err, allocator.Invalid) {
				w.Errorf("Lease(%d): %v, %v", n, seg, err)
			}
		}
		if m.leases() > 0 {
			w.Errorf("%d leases", m.leases())
		}
		runs := w.take(c, 25_500) // many refills of max_step
		var sum int64
		for _, r := range runs {
			sum += r.Count
		}
		if sum != 25_500 {
			w.Errorf("%d IDs in %v", sum, runs)
		}
		w.balance(c, m)
	})
}

// A lease comes from one segment, wherever the head stands in that segment.
func TestLeaseTakesWholeSegments(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 1)
		last := int64(-1)
		for range 5 {
			if _, err := c.Next(w.Context()); err != nil {
				t.Fatal(err)
			}
			seg, err := c.Lease(w.Context(), 150)
			if err != nil || seg.Count != 150 || seg.Validate() != nil || seg.First <= last {
				t.Fatalf("%v, %v, want 150 IDs above %d", seg, err, last)
			}
			last = seg.Last()
		}
		w.balance(c, m)
	})
}

// The IDs between two segments may belong to another room, so no lease spans the gap.
func TestLeaseDoesNotCrossAGap(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 1)
		m.skip(5000)
		time.Sleep(time.Hour) // otherwise the step doubles, as it was issued so quickly
		w.take(c, 900)        // the head is the last link of the first segment
		time.Sleep(time.Second)
		if s := c.Status(); s.Refills != 2 {
			t.Fatalf("%+v, want two segments", s)
		}
		for _, want := range []int64{99, 1000} {
			seg, err := c.Lease(w.Context(), 10_000)
			if err != nil || seg.Count != want {
				t.Fatalf("%v, %v, want %d IDs", seg, err, want)
			}
		}
		w.balance(c, m)
	})
}

// The target doubles once, however many callers wait for one refill.
func TestWaitersDoubleTheTargetOnce(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 1)
		time.Sleep(time.Second)
		m.fault(nil, late)
		w.take(c, c.Status().Held)
		errs := together(100, func(int) error {
			_, err := c.Next(w.Context())
			return err
		})
		if s := c.Status(); len(errs) > 0 || s.Waits != 101 || s.Target != 2000 {
			w.Errorf("%+v, errors %v", s, errs)
		}
	})
}
