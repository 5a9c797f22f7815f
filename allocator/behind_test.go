package allocator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// ways are takes, and the run.
func ways() map[string]func(context.Context, *allocator.Chain) (first, n int64, err error) {
	ways := map[string]func(context.Context, *allocator.Chain) (first, n int64, err error){
		"NextRun": func(ctx context.Context, c *allocator.Chain) (int64, int64, error) {
			run, _, err := c.NextRun(ctx, 7)
			return run.First, 7, err
		},
	}
	for name, take := range takes {
		ways[name] = take
	}
	return ways
}

func open(allocator.Segment) (allocator.Part, error) { return allocator.Part{}, nil }

// behind calls f with a chain that holds 1,999 IDs and had no caller for a minute, for each way to take an ID from it,
// with a gate and without. A lease takes 50 ms, and leases from 100,300 on.
func behind(t *testing.T, f func(w *world, c *allocator.Chain, m *memory, take func(time.Duration) int64)) {
	for gate, asks := range map[string]allocator.Gate{"": nil, "gated-": open} {
		for name, way := range ways() {
			t.Run(gate+name, func(t *testing.T) {
				virtual(t, func(w *world) {
					m := newMemory(w, strided())
					c := gated(w, w.refiller, m, settings(1000, 1_000_000, time.Minute), asks)
					w.take(c, 1)
					time.Sleep(time.Minute)
					c.Observe()
					time.Sleep(time.Second)
					m.setNext(100_000)
					m.latency = 50 * time.Millisecond
					f(w, c, m, func(limit time.Duration) int64 {
						ctx, cancel := context.WithTimeout(w.Context(), limit)
						defer cancel()
						id, _, err := way(ctx, c)
						if err != nil {
							w.Errorf("%v", err)
						}
						return id
					})
					time.Sleep(time.Second)
					if _, err := c.Next(w.Context()); !errors.Is(err, error(allocator.ErrClosed)) {
						w.balance(c, m)
					}
				})
			})
		}
	}
}

// A chain that is behind leases nothing without a caller. Its next one waits for one lease, after which the chain has
// dropped what lay below. Its target stays.
func TestBehind(t *testing.T) {
	behind(t, func(w *world, c *allocator.Chain, m *memory, take func(time.Duration) int64) {
		before := c.Status()
		c.Behind(100_000, 0, 0)
		for range 100 {
			time.Sleep(5 * time.Second)
			c.Observe()
			c.Behind(100_000, 0, 0)
		}
		if s := c.Status(); s.Held != before.Held || s.Dropped != 0 || s.Refills != 2 {
			w.Errorf("without a caller: %+v, before %+v", s, before)
		}
		if _, ok := c.TryRun(1); ok {
			w.Error("TryRun has a run")
		}
		start := time.Now()
		if id := take(time.Minute); id < 100_000 || time.Since(start) != 50*time.Millisecond {
			w.Errorf("%d after %v", id, time.Since(start))
		}
		start = time.Now()
		take(time.Minute)
		s := c.Status()
		if s.Refills != 3 || s.Dropped != before.Held || s.Target != 1000 || s.Excess != 0 || time.Since(start) != 0 {
			w.Errorf("%+v; the next caller waited %v", s, time.Since(start))
		}
	})
}

// Where a lease fails, or takes long, callers get what is held after a second or half of their time, and nothing is
// dropped; what a late lease replaces is, when that comes.
func TestBehindGoesOn(t *testing.T) {
	for name, f := range map[string]fault{"away": away, "hang": hang, "exhausted": exhausted, "late": late} {
		for limit, wait := range map[time.Duration]time.Duration{time.Minute: time.Second,
			400 * time.Millisecond: 200 * time.Millisecond} {
			t.Run(name+" "+limit.String(), func(t *testing.T) {
				behind(t, func(w *world, c *allocator.Chain, m *memory, take func(time.Duration) int64) {
					m.fault(f)
					held, start := c.Status().Held, time.Now()
					c.Behind(100_000, 0, 0)
					first := take(limit)
					if took := time.Since(start); first >= 10_000 || took > wait || took < 50*time.Millisecond {
						w.Errorf("%d after %v", first, took)
					}
					start = time.Now()
					second := take(limit)
					if s := c.Status(); second >= 10_000 || second <= first || s.Dropped != 0 || s.Held < held-14 ||
						time.Since(start) != 0 {
						w.Errorf("%d after %v; %+v", second, time.Since(start), s)
					}
					m.fault(nil)
					time.Sleep(2 * time.Second)
					if s := c.Status(); (name == "late") != (s.Dropped > 0) {
						w.Errorf("%+v", s)
					}
				})
			})
		}
	}
}

// A look while the lease is under way does not end what the look before it demanded: the mark that it sees may be that
// of the lease, or another instance's.
func TestBehindLookedAtWhileLeasing(t *testing.T) {
	behind(t, func(w *world, c *allocator.Chain, m *memory, take func(time.Duration) int64) {
		m.setNext(200_000)
		c.Behind(0, 200_000, 1000)
		taken := make(chan int64)
		go func() { taken <- take(time.Minute) }()
		time.Sleep(20 * time.Millisecond)
		c.Behind(0, 201_000, 1000)
		if id := <-taken; id < 199_000 {
			w.Errorf("%d was issued", id)
		}
	})
}

// A lease that was under way when the chain fell behind may lie lower: the caller waits for another one, and not
// for a third where the source demands less by now.
func TestBehindWhileLeasing(t *testing.T) {
	behind(t, func(w *world, c *allocator.Chain, m *memory, take func(time.Duration) int64) {
		m.setNext(10_000)
		m.fault(nil, func(_ context.Context, m *memory, n int64) (allocator.Segment, error) {
			seg, err := m.lease(n)
			m.setNext(100_000)
			c.Behind(100_000, 0, 0)
			time.Sleep(100 * time.Millisecond)
			return seg, err
		})
		c.Behind(10_000, 0, 0)
		start := time.Now()
		id, took := take(time.Minute), time.Since(start)
		if s := c.Status(); id < 100_000 || took != 200*time.Millisecond || s.Refills != 4 {
			w.Errorf("%d after %v; %+v", id, took, s)
		}
	})
	behind(t, func(w *world, c *allocator.Chain, _ *memory, take func(time.Duration) int64) {
		c.Behind(1_000_000, 0, 0)
		if id := take(time.Minute); id < 100_000 || id >= 1_000_000 || c.Status().Refills != 3 {
			w.Errorf("%d; %+v", id, c.Status())
		}
	})
}

// A chain is behind no longer when less is demanded; a stop keeps what it held; and a layout replaces it without a
// caller.
func TestBehindEnds(t *testing.T) {
	behind(t, func(w *world, c *allocator.Chain, m *memory, take func(time.Duration) int64) {
		start := time.Now()
		c.Behind(100_000, 0, 0)
		c.Behind(0, 0, 0)
		if id := take(time.Minute); id >= 10_000 || time.Since(start) != 0 {
			w.Errorf("%d after %v", id, time.Since(start))
		}
		c.Behind(100_000, 0, 0)
		m.setVersion(2)
		c.Renew(part(2))
		time.Sleep(time.Second)
		if s := c.Status(); !c.Renewed(part(2)) || s.Version != 2 || s.Refills != 3 {
			w.Errorf("%+v", s)
		}
		before := c.Status()
		take(time.Minute)
		if s := c.Status(); s.Waits != before.Waits {
			w.Errorf("a caller waited: %+v", s)
		}
		c.Behind(1_000_000, 0, 0)
		kept := int64(0)
		for _, seg := range c.CloseKept() {
			kept += seg.Count
		}
		if s := c.Status(); s.Issued+s.Dropped+kept != m.total() || kept < 900 {
			w.Errorf("%d IDs were kept: %+v", kept, s)
		}
	})
}

// The lease that a caller of a chain asked for is made though the caller waits no longer, where many chains are behind.
func TestManyBehind(t *testing.T) {
	virtual(t, func(w *world) {
		var chains []*allocator.Chain
		for range 8 {
			c, m := w.chain(settings(1000, 1_000_000, time.Minute))
			w.take(c, 1)
			time.Sleep(time.Minute)
			c.Observe()
			time.Sleep(time.Second)
			m.setNext(100_000)
			m.latency = 900 * time.Millisecond
			c.Behind(100_000, 0, 0)
			chains = append(chains, c)
		}
		together(len(chains), func(i int) error { w.take(chains[i], 1); return nil })
		time.Sleep(time.Minute)
		for i, c := range chains {
			if s := c.Status(); s.Refills != 3 || s.Dropped < 1998 {
				w.Errorf("chain %d: %+v", i, s)
			}
		}
	}, func(cfg *allocator.RefillerConfig) { cfg.Concurrency = 1 })
}

// Once a lease of any chain found the store away, callers of other chains that are behind do not wait for theirs, also
// before that counts as an outage.
func TestManyBehindWhileTheStoreIsAway(t *testing.T) {
	virtual(t, func(w *world) {
		var chains []*allocator.Chain
		for range 8 {
			c, m := w.chain(settings(1000, 1_000_000, time.Minute))
			w.take(c, 1)
			m.fault(away)
			chains = append(chains, c)
		}
		for i, c := range chains {
			c.Behind(100_000, 0, 0)
			start := time.Now()
			w.take(c, 1)
			if waited := time.Since(start); i > 0 && waited > 0 {
				w.Errorf("a caller of chain %d waited for %v", i, waited)
			}
		}
	})
}
