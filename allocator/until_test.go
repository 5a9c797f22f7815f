package allocator_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

const longest = time.Hour // longer than any chain here stays unused

// TestExpire lets segments end. A chain drops a segment at its end and not before,
// whether the source is away or not.
func TestExpire(t *testing.T) {
	for name, f := range map[string]fault{"there": nil, "away": away, "lost": lost} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				c, m := w.chain(settings(1000, 1_000_000, time.Minute))
				m.setTTL(time.Minute)
				end := time.Now().Add(time.Minute)
				if err := c.Warm(w.Context()); err != nil {
					w.Fatal(err)
				}
				m.fault(f)
				time.Sleep(time.Until(end) - 1)
				if next := c.Expire(longest); !next.Equal(end) || c.Status().Held != 1000 {
					w.Errorf("the next end is at %v, want %v; %+v", next, end, c.Status())
				}
				if _, err := c.Next(w.Context()); err != nil {
					w.Errorf("just before the end: %v", err)
				}
				border := m.nextID()
				time.Sleep(time.Nanosecond)
				c.Expire(longest)
				id, err := c.Next(w.Context())
				if f == nil && (err != nil || id < border) {
					w.Errorf("%d, %v after the end; the new begin at %d", id, err, border)
				}
				var gone *allocator.AwayError
				if f != nil && (!errors.As(err, &gone) || gone.Since.Before(end) || time.Now().Before(gone.Since)) {
					w.Errorf("%d, %v after the end, with the source away", id, err)
				}
				if s := c.Status(); s.Dropped != 999 {
					w.Errorf("%+v", s)
				}
				m.fault(nil)
				time.Sleep(time.Second)
				w.take(c, 1)
				if f == nil { // lost IDs are neither issued nor dropped
					w.balance(c, m)
				}
			})
		})
	}
}

// An unused chain lets its segments end, and leases no more until its next caller.
func TestExpireUnused(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.setTTL(time.Minute)
		w.take(c, 10)
		for range 60 {
			time.Sleep(10 * time.Second)
			c.Observe()
			c.Expire(time.Minute)
		}
		if s := c.Status(); s.Held != 0 || s.Refills > 3 {
			w.Errorf("%+v", s)
		}
		before := m.leases()
		time.Sleep(longest)
		c.Observe()
		if next := c.Expire(time.Minute); m.leases() != before || !next.IsZero() {
			w.Errorf("an unused chain made %d leases; the next end is at %v", m.leases()-before, next)
		}
		w.take(c, 1)
		time.Sleep(time.Second)
		if s := c.Status(); s.Held < 999 {
			w.Errorf("%+v after its next caller", s)
		}
		w.balance(c, m)
	})
}

// TestReplace replaces a segment that ends soon: no caller waits. A new segment that
// ends no later replaces nothing, and the chain does not ask for another.
func TestReplace(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.setTTL(time.Minute)
		w.take(c, 10)
		time.Sleep(40 * time.Second)
		m.mu.Lock()
		m.latency = 50 * time.Millisecond
		m.mu.Unlock()
		m.setTTL(time.Second) // no better: it ends even earlier
		held, leases := c.Status().Held, m.leases()
		c.Replace(allocator.Part{}, time.Now().Add(20*time.Second))
		time.Sleep(500 * time.Millisecond)
		if s := c.Status(); s.Held != held+1000 || s.Dropped != 0 || m.leases() != leases+1 {
			w.Errorf("%d leases, %+v after a segment that ends no later; held %d", m.leases()-leases, s, held)
		}
		m.setTTL(time.Minute)
		border, taken := m.nextID(), int64(0)
		c.Replace(allocator.Part{}, time.Now().Add(20*time.Second))
		for range 100 {
			start := time.Now()
			id, err := c.Next(w.Context())
			if fresh := id >= border; err != nil || time.Since(start) != 0 || fresh != (c.Status().Dropped > 0) {
				w.Fatalf("%d after %v, %v; the new begin at %d", id, time.Since(start), err, border)
			}
			if id >= border {
				taken++
			}
			time.Sleep(time.Millisecond)
		}
		if s := c.Status(); s.Held != 1000-taken || taken < 40 || s.Waits != 1 {
			w.Errorf("%+v", s)
		}
		w.balance(c, m)
	})
}

// TestReplaceVersion asks for a newer layout. The source is away at first, then behind,
// and then has the layout.
func TestReplaceVersion(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 10)
		time.Sleep(time.Second)
		m.fault(away)
		c.Replace(part(2), time.Time{})
		time.Sleep(time.Minute)
		held := c.Status().Held
		m.fault(nil)
		time.Sleep(time.Second)
		if s := c.Status(); s.Version != 1 || s.Held != held+1000 || s.Failure != nil {
			w.Errorf("%+v with a source that is behind, %d held before", s, held)
		}
		m.setVersion(2)
		c.Replace(part(2), time.Time{})
		time.Sleep(time.Second)
		if s := c.Status(); s.Version != 2 || s.Held != 1000 || s.Dropped != held+1000 {
			w.Errorf("%+v", s)
		}
		w.balance(c, m)
	})
}

// TestUnordered leases from a source that goes back and forth between layouts, as if
// two instances of a room answered in turn. The chain still refuses the same IDs again.
func TestUnordered(t *testing.T) {
	virtual(t, func(w *world) {
		m := newMemory(w, strided())
		c, err := allocator.NewChain(allocator.ChainConfig{
			Tag: "order", Source: m, Refiller: w.refiller, Settings: settings(100, 100, time.Minute), Unordered: true,
		})
		if err != nil {
			w.Fatal(err)
		}
		seen := make(map[int64]bool)
		take := func(n int64) {
			w.Helper()
			for _, run := range w.take(c, n) {
				for id := run.First; id < run.First+run.Count; id++ {
					if seen[id] {
						w.Errorf("%d came twice", id)
					}
					seen[id] = true
				}
			}
		}
		for _, next := range []int64{1_000_000, 300, 2_000_000, 10_000, 1_500_000} {
			m.setNext(next)
			take(250)
		}
		if s := c.Status(); s.Failure != nil || s.Dropped != 0 {
			w.Errorf("%+v", s)
		}
		w.balance(c, m)
		m.setNext(300)
		before := c.Status()
		_, err = c.NextN(w.Context(), before.Held+1, nil)
		if s := c.Status(); !errors.Is(err, allocator.WentBack) || s.Dropped != 100 {
			w.Errorf("%v for IDs that were leased before: %+v", err, s)
		}
		m.setNext(3_000_000)
		time.Sleep(2 * time.Second)
		take(500)
	})
}

// TestGateUntil suspends the process, in effect, between the taking of an ID and its
// return, until the segment has ended.
func TestGateUntil(t *testing.T) {
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				m := newMemory(w, strided())
				m.setTTL(time.Minute)
				var stop time.Duration
				c := gated(w, w.refiller, m, settings(1000, 1000, time.Minute),
					func(allocator.Segment) (allocator.Part, error) {
						time.Sleep(stop)
						stop = 0
						return allocator.Part{}, nil
					})
				if _, _, err := take(w.Context(), c); err != nil {
					w.Fatal(err)
				}
				time.Sleep(time.Second)
				border := m.nextID()
				stop = time.Hour
				if name == "Lease" { // Lease asks the gate once, after it took the IDs: so the end comes first
					time.Sleep(stop)
					stop = 0
				}
				id, _, err := take(w.Context(), c)
				if err != nil || id < border {
					w.Errorf("%d, %v; the new begin at %d", id, err, border)
				}
				if s := c.Status(); s.Dropped == 0 {
					w.Errorf("%+v", s)
				}
				w.balance(c, m)
			})
		})
	}
}

// TestGateUntilInABatch suspends it in the middle of a batch that takes from several
// links: the call returns no ID past its end.
func TestGateUntilInABatch(t *testing.T) {
	for stopAt := 1; stopAt < 12; stopAt++ {
		virtual(t, func(w *world) {
			m := newMemory(w, strided())
			m.setTTL(time.Minute)
			asked := 0
			c := gated(w, w.refiller, m, settings(1000, 1000, time.Minute),
				func(allocator.Segment) (allocator.Part, error) {
					if asked++; asked == stopAt {
						time.Sleep(time.Hour)
					}
					return allocator.Part{}, nil
				})
			if err := c.Warm(w.Context()); err != nil {
				w.Fatal(err)
			}
			border := m.nextID()
			runs, err := c.NextN(w.Context(), 900, nil)
			var n int64
			for _, run := range runs {
				if n += run.Count; run.First < border {
					w.Errorf("stopped at question %d: %v; the new begin at %d", stopAt, run, border)
				}
			}
			if err != nil || n != 900 || asked < stopAt {
				w.Errorf("stopped at question %d of %d: %d IDs, %v", stopAt, asked, n, err)
			}
			w.balance(c, m)
		})
	}
}

// TestUntilIsCarried cuts a segment in pieces, puts them together, and expects the same end.
func TestUntilIsCarried(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1000, time.Minute))
		m.setTTL(time.Minute)
		end := time.Now().Add(time.Minute)
		for range 5 {
			seg, err := c.Lease(w.Context(), 10)
			if err != nil || !seg.Until.Equal(end) {
				w.Errorf("%v until %v, %v; want %v", seg, seg.Until, err, end)
			}
			w.take(c, 1)
		}
	})
}

// TestExpireStress lets segments end and replaces them under load: each ID comes once,
// and every leased ID is accounted for.
func TestExpireStress(t *testing.T) {
	for name, gate := range map[string]allocator.Gate{"open": nil,
		"gated": func(allocator.Segment) (allocator.Part, error) {
			return allocator.Part{}, nil
		}} {
		t.Run(name, func(t *testing.T) {
			refiller := newRefiller(t, allocator.DefaultRefillerConfig(time.Now, rand.Float64))
			m := newMemory(t, strided())
			m.setTTL(time.Millisecond)
			c := gated(t, refiller, m, settings(1000, 20_000, time.Second), gate)
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			run := make(chan error)
			go func() { run <- refiller.Run(ctx) }()
			const workers, each = 4, 100_000
			taken := make([][]int64, workers)
			var working atomic.Int64
			var all sync.WaitGroup
			for i := range taken {
				working.Add(1)
				all.Go(func() {
					defer working.Add(-1)
					var runs []allocator.Run
					var err error
					for len(taken[i]) < each && err == nil {
						if runs, err = c.NextN(ctx, 1+int64(len(taken[i])%7), runs[:0]); err != nil {
							t.Error(err)
						}
						for _, r := range runs {
							for id := r.First; id < r.First+r.Count; id++ {
								taken[i] = append(taken[i], id)
							}
						}
					}
				})
			}
			// On a busy machine the callers may have ended before anything was dropped.
			for n := 0; working.Load() > 0 || c.Status().Dropped == 0; n++ {
				c.Expire(time.Hour)
				if n%10 == 0 {
					c.Replace(allocator.Part{}, time.Now().Add(time.Millisecond))
				}
				time.Sleep(100 * time.Microsecond)
			}
			all.Wait()
			stop()
			if err := <-run; err != nil {
				t.Error(err)
			}
			ids := slices.Concat(taken...)
			slices.Sort(ids)
			if unique := len(slices.Compact(slices.Clone(ids))); unique != len(ids) {
				t.Errorf("%d of %d IDs came twice", len(ids)-unique, len(ids))
			}
			s := c.Status()
			if total := m.total(); s.Issued+s.Held+s.Dropped != total || s.Dropped == 0 {
				t.Errorf("%+v, but %d were leased", s, total)
			}
		})
	}
}
