package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

func TestBurstOnAColdTag(t *testing.T) {
	for _, minStep := range []int64{1, 10, 1000} {
		t.Run(fmt.Sprint("min_step ", minStep), func(t *testing.T) {
			virtual(t, func(w *world) {
				c, m := w.chain(settings(minStep, 1_000_000, time.Minute))
				m.latency = 5 * time.Millisecond
				var mu sync.Mutex
				seen := make(map[int64]bool)
				errs := together(1000, func(int) error {
					ctx, cancel := context.WithTimeout(w.Context(), time.Second)
					defer cancel()
					id, err := c.Next(ctx)
					mu.Lock()
					defer mu.Unlock()
					if seen[id] {
						w.Errorf("%d twice", id)
					}
					seen[id] = true
					return err
				})
				if len(errs) > 0 || len(seen) != 1000 {
					w.Errorf("%d IDs, errors %v", len(seen), errs)
				}
				// Steps that only double, from 1 on, would take ten leases.
				if n := m.leases(); n > 7 {
					w.Errorf("%d leases for a burst of 1000: %v", n, m.asked)
				}
				w.balance(c, m)
			})
		})
	}
}

// Callers do not notice a single failed refill, whether or not the source leased the segment.
func TestRefillFailsOnce(t *testing.T) {
	for name, f := range map[string]fault{"away": away, "lost": lost} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				c, m := w.chain(settings(1000, 1_000_000, time.Minute))
				m.fault(nil, f)
				errs := together(100, func(int) error {
					_, err := c.Next(w.Context())
					return err
				})
				if len(errs) > 0 {
					w.Errorf("errors %v", errs)
				}
				if n := m.leases(); n > 3 {
					w.Errorf("%d leases", n)
				}
			})
		})
	}
}

func TestRefillHangs(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.fault(nil, hang)
		start := time.Now()
		errs := together(100, func(i int) error {
			ctx, cancel := context.WithTimeout(w.Context(), time.Duration(i+1)*10*time.Millisecond)
			defer cancel()
			begin := time.Now()
			_, err := c.Next(ctx)
			if !errors.Is(err, allocator.Unavailable) || !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("got %w", err)
			}
			if took := time.Since(begin); took != time.Duration(i+1)*10*time.Millisecond {
				return fmt.Errorf("waited %v", took)
			}
			return nil
		})
		if len(errs) > 0 {
			w.Errorf("errors %v", errs)
		}
		if got := c.Wanted(); got != 0 {
			w.Errorf("the chain still wants %d IDs, but no caller waits", got)
		}
		// A caller without a deadline gets an error when the lease times out. Then the chain goes on.
		if _, err := c.Next(w.Context()); !errors.Is(err, allocator.Unavailable) || time.Since(start) != 2*time.Second {
			w.Errorf("after %v: %v", time.Since(start), err)
		}
		time.Sleep(100 * time.Millisecond)
		if _, err := c.Next(w.Context()); err != nil {
			w.Errorf("after the lease that hung: %v", err)
		}
	})
}

func TestStoreAway(t *testing.T) {
	for name, f := range map[string]fault{"away": away, "lost": lost, "hang": hang} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				c, m := w.chain(settings(1000, 1_000_000, time.Minute))
				w.take(c, 1)
				time.Sleep(time.Second)
				m.fault(f)
				held := c.Status().Held
				start := time.Now()
				for i := range held {
					if _, err := c.Next(w.Context()); err != nil {
						w.Fatalf("with %d of %d IDs left: %v", held-i, held, err)
					}
				}
				if time.Since(start) != 0 {
					w.Errorf("callers of a full chain waited %v", time.Since(start))
				}
				_, err := c.Next(w.Context()) // returns although it has no deadline
				var gone *allocator.AwayError
				if !errors.As(err, &gone) || !errors.Is(err, allocator.Unavailable) || gone.Tag != "order" ||
					!gone.Since.Equal(start) {
					t.Fatalf("%v since %v, want an AwayError since %v", err, gone, start)
				}
				if took := time.Since(start); took < time.Second || took > 7*time.Second {
					w.Errorf("told after %v", took)
				}
				if since, err := w.refiller.Outage(); !since.Equal(start) || err == nil {
					w.Errorf("outage since %v: %v", since, err)
				}
				time.Sleep(time.Hour)
				start = time.Now()
				if _, err := c.Next(w.Context()); !errors.As(err, &gone) || time.Since(start) != 0 {
					w.Errorf("told after %v: %v", time.Since(start), err)
				}
				// A day's outage costs no memory, and at most one lease per back-off.
				leases := m.leases()
				for range 10_000 {
					_, _ = c.Next(w.Context())
					time.Sleep(10 * time.Millisecond)
				}
				if n := m.leases() - leases; n > 500 || w.refiller.Queued() > 2 {
					w.Errorf("%d leases in 100 s, %d entries queued", n, w.refiller.Queued())
				}
				m.fault(nil)
				start = time.Now()
				for {
					if _, err := c.Next(w.Context()); err == nil {
						break
					}
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(start); took > 2*time.Second && name != "hang" || took > 6*time.Second {
					w.Errorf("recovered %v after the store", took)
				}
				if since, _ := w.refiller.Outage(); !since.IsZero() {
					w.Errorf("an outage since %v, after it", since)
				}
			})
		})
	}
}

// All callers get a tag's own failure, and the chain seldom asks the source again.
func TestExhausted(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.fault(exhausted)
		start := time.Now()
		var wrong sync.Map
		errs := together(100, func(i int) error {
			for time.Since(start) < 10*time.Second {
				_, err := c.Next(w.Context())
				if !errors.Is(err, allocator.Exhausted) {
					wrong.Store(fmt.Sprint(err), true)
				}
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
		wrong.Range(func(err, _ any) bool { errs[err.(string)]++; return true })
		if n := m.leases(); len(errs) > 0 || n < 9 || n > 11 {
			w.Errorf("%d leases in 10 s, errors %v", n, errs)
		}
		if s := c.Status(); !errors.Is(s.Failure, allocator.Exhausted) {
			w.Errorf("status says %v", s.Failure)
		}
		if since, _ := w.refiller.Outage(); !since.IsZero() {
			w.Error("a failure of one tag counts as an outage")
		}
		m.fault(nil)
		time.Sleep(time.Second)
		w.take(c, 1)
		if s := c.Status(); s.Failure != nil {
			w.Errorf("status says %v after a success", s.Failure)
		}
	})
}

// A failure of one tag is not a failure of the store, even if its cause says Unavailable.
func TestFailureKindIsTheOutermost(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.fault(func(context.Context, *memory, int64) (allocator.Segment, error) {
			return allocator.Segment{}, allocator.Errorf(allocator.Refused, "layout: %w", allocator.Unavailable)
		})
		for range 5 {
			if _, err := c.Next(w.Context()); allocator.KindOf(err) != allocator.Refused {
				w.Errorf("%v", err)
			}
			time.Sleep(time.Second)
		}
		if since, err := w.refiller.Outage(); !since.IsZero() {
			w.Errorf("outage: %v", err)
		}
	})
}

func TestEndOfTheSpace(t *testing.T) {
	for name, layout := range map[string]allocator.Layout{"dense": dense(), "strided": strided()} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				m := newMemory(w, layout)
				m.next = allocator.MaxID - 5000
				c := newChain(w, w.refiller, m, settings(1000, 1_000_000, time.Minute))
				all, err := layout.Segment(room, m.next, allocator.MaxID, allocator.MaxID)
				if err != nil {
					t.Fatal(err)
				}
				var got []int64
				for {
					id, err := c.Next(w.Context())
					if errors.Is(err, allocator.Exhausted) {
						break
					} else if err != nil {
						t.Fatal(err)
					}
					got = append(got, id)
				}
				if want := slices.Collect(all.IDs()); !slices.Equal(got, want) {
					w.Errorf("%d IDs up to %d, want %d up to %d", len(got), slices.Max(got), len(want), all.Last())
				}
				for range 3 {
					if _, err := c.NextN(w.Context(), 2, nil); !errors.Is(err, allocator.Exhausted) {
						w.Errorf("%v after the end", err)
					}
					time.Sleep(2 * time.Second)
				}
			})
		})
	}
}

// A chain answers a source that breaks its promise with an error. It does not issue
// an ID twice, crash or storm the source.
func TestSourceThatLies(t *testing.T) {
	for name, c := range map[string]struct {
		lie  fault
		want allocator.Kind
	}{
		"goes backwards": {backwards, allocator.WentBack},
		"nothing":        {empty, allocator.Internal},
		"old layout":     {oldVersion, allocator.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				chain, m := w.chain(settings(100, 1_000_000, time.Minute))
				m.latency = time.Millisecond
				last := w.take(chain, 50)
				chain.Renew(part(1))
				m.fault(c.lie)
				for i := int64(0); ; {
					id, err := chain.Next(w.Context())
					if err != nil {
						if allocator.KindOf(err) != c.want {
							w.Errorf("%v, want %v", err, c.want)
						}
						break
					}
					if id <= last[len(last)-1].First {
						w.Fatalf("ID %d came twice", id)
					}
					if i++; i > 1_000_000 {
						t.Fatal("the chain does not stop issuing")
					}
				}
				leases := m.leases()
				for range 100 {
					_, _ = chain.Next(w.Context())
					time.Sleep(100 * time.Millisecond)
				}
				if n := m.leases() - leases; n > 22 {
					w.Errorf("%d leases in 10 s", n)
				}
				m.fault(nil)
				time.Sleep(time.Second)
				w.take(chain, 1)
				if s := chain.Status(); s.Failure != nil {
					w.Errorf("failure %v after a success", s.Failure)
				}
			})
		})
	}
}

func TestClose(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 100)
		full, fullSource := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(full, 100)
		full.Close()
		full.Close()
		if s := full.Status(); s.Held != 0 || s.Issued != 100 {
			w.Errorf("%+v after close", s)
		}
		w.balance(full, fullSource)

		m.fault(hang)
		time.Sleep(time.Second)
		w.take(c, c.Status().Held)
		time.AfterFunc(time.Second, c.Close)
		start := time.Now()
		errs := together(100, func(i int) error {
			ctx := w.Context()
			_, err := c.Next(ctx)
			if i%3 == 1 {
				_, err = c.NextN(ctx, 5, nil)
			} else if i%3 == 2 {
				_, err = c.Lease(ctx, 5)
			}
			return err
		})
		if errs[allocator.ErrClosed.Error()] != 100 || time.Since(start) > time.Second {
			w.Errorf("after %v: %v", time.Since(start), errs)
		}
		if _, ok := c.TryNext(); ok {
			w.Error("a closed chain issues")
		}
		m.fault(nil)
		time.Sleep(time.Minute) // the chain drops the answer of the lease that was under way
		if err := c.Warm(w.Context()); !errors.Is(err, allocator.ErrClosed) || c.Status().Held != 0 {
			w.Errorf("%v, %+v", err, c.Status())
		}
		w.balance(c, m)
	})
}

// A chain does not hold a segment that arrives after Close.
func TestCloseWithALeaseUnderWay(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 100)
		time.Sleep(time.Second)
		m.fault(nil, late)
		w.take(c, 500)
		time.Sleep(time.Millisecond)
		c.Close()
		time.Sleep(time.Minute)
		if _, ok := c.TryNext(); ok || c.Status().Held != 0 || c.Status().Dropped != 1400 {
			w.Errorf("%+v", c.Status())
		}
		w.balance(c, m)
	})
}

// WarmN returns when the chain holds so many IDs, takes none of them, and asks the gate.
func TestWarmN(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		for _, n := range []int64{1, 1000, 2500} {
			if err := c.WarmN(w.Context(), n); err != nil || c.Status().Held < n || c.Status().Issued != 0 {
				w.Errorf("%d: %v, %+v", n, err, c.Status())
			}
		}
		for _, n := range []int64{-1, 0, allocator.LargestStep + 1} {
			if err := c.WarmN(w.Context(), n); !errors.Is(err, allocator.Invalid) {
				w.Errorf("%d: %v, want invalid", n, err)
			}
		}
		w.balance(c, m)
		var d door
		strict := gated(w, w.refiller, m, settings(1000, 1_000_000, time.Minute), d.gate)
		if err := strict.WarmN(w.Context(), 5); err != nil {
			w.Error(err)
		}
		d.least.Store(100)
		if err := strict.WarmN(w.Context(), 5); !errors.Is(err, error(errShut)) {
			w.Errorf("with the gate shut: %v", err)
		}
	})
}
