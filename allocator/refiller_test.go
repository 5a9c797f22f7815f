package allocator_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/programs"
)

func TestRefillerConfig(t *testing.T) {
	good := allocator.DefaultRefillerConfig(time.Now, rand.Float64)
	for name, change := range map[string]func(*allocator.RefillerConfig){
		"concurrency": func(c *allocator.RefillerConfig) { c.Concurrency = 0 },
		"timeout":     func(c *allocator.RefillerConfig) { c.Timeout = 0 },
		"back-off":    func(c *allocator.RefillerConfig) { c.BackoffMax = c.BackoffMin - 1 },
		"patience":    func(c *allocator.RefillerConfig) { c.Patience = -1 },
		"clock":       func(c *allocator.RefillerConfig) { c.Now = nil },
		"randomness":  func(c *allocator.RefillerConfig) { c.Rand = nil },
	} {
		cfg := good
		change(&cfg)
		if _, err := allocator.NewRefiller(cfg); !errors.Is(err, allocator.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

// TestThousandChainsAway: the store leaves while a thousand chains want more.
func TestThousandChainsAway(t *testing.T) {
	for name, c := range map[string]struct {
		fault    fault
		timeout  time.Duration
		most     int64 // leases in a minute of outage
		recovery time.Duration
	}{
		"away":             {away, 5 * time.Second, 300, time.Second},
		"lost":             {lost, 5 * time.Second, 300, time.Second},
		"hang":             {hang, 5 * time.Second, 40, 6 * time.Second},
		"hang, one second": {hang, time.Second, 80, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				chains := 1000
				if !programs.All() { // .ci/run has a thousand
					chains = 200
				}
				var g gauge
				all, sources := make([]*allocator.Chain, chains), make([]*memory, chains)
				for i := range all {
					all[i], sources[i] = w.chain(settings(1000, 1_000_000, time.Minute))
					sources[i].gauge, sources[i].latency = &g, 2*time.Millisecond
					if i%2 == 0 { // the others are cold
						w.take(all[i], 1)
					}
				}
				for _, m := range sources {
					m.fault(c.fault)
				}
				g.asked.Store(0)
				g.most.Store(0)
				start := time.Now()
				var callers sync.WaitGroup
				for _, chain := range all {
					callers.Go(func() {
						var gone *allocator.AwayError
						if held := chain.Status().Held; held > 0 {
							w.take(chain, held)
						}
						for time.Since(start) < time.Minute {
							_, err := chain.Next(w.Context())
							if !errors.As(err, &gone) || gone.Since.Before(start) ||
								gone.Since.After(start.Add(10*time.Millisecond)) {
								w.Errorf("after %v: %v", time.Since(start), err)
							}
							time.Sleep(250 * time.Millisecond)
						}
					})
				}
				callers.Wait()
				if n := g.asked.Load(); n > c.most {
					w.Errorf("%d leases in a minute of outage, want at most %d", n, c.most)
				}
				if most := g.most.Load(); most > 16 {
					w.Errorf("%d leases at once", most)
				}
				if n := w.refiller.Queued(); n > 3*chains {
					w.Errorf("%d entries queued", n)
				}
				for _, m := range sources {
					m.fault(nil)
				}
				g.most.Store(0)
				start = time.Now()
				for _, chain := range all {
					callers.Go(func() {
						for {
							if _, err := chain.Next(w.Context()); err == nil {
								break
							}
							time.Sleep(10 * time.Millisecond)
						}
						if took := time.Since(start); took > c.recovery {
							w.Errorf("recovered %v after the store", took)
						}
					})
				}
				callers.Wait()
				if most := g.most.Load(); most > 16 {
					w.Errorf("%d leases at once after the return", most)
				}
			}, func(cfg *allocator.RefillerConfig) { cfg.Timeout, cfg.Rand = c.timeout, rand.Float64 })
		})
	}
}

// A refiller forgets an old outage: callers that come an hour later do not get its
// error, because the store may be back by then.
func TestOutageIsForgottenWhenNobodyAsks(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.fault(away)
		var gone *allocator.AwayError
		if _, err := c.Next(w.Context()); !errors.As(err, &gone) {
			t.Fatal(err)
		}
		c.Close() // as a room does with unused chains
		time.Sleep(600 * time.Millisecond)
		if since, _ := w.refiller.Outage(); since.IsZero() {
			w.Error("a chain that needs nothing ends an outage")
		}
		time.Sleep(time.Hour)
		if since, err := w.refiller.Outage(); !since.IsZero() {
			w.Errorf("an outage since %v is remembered, though no chain asks the store: %v", since, err)
		}
		fresh, _ := w.chain(settings(1000, 1_000_000, time.Minute))
		if _, err := fresh.Next(w.Context()); err != nil {
			w.Errorf("an hour later: %v", err)
		}
		// An outage that is still there begins anew.
		c, m = w.chain(settings(1000, 1_000_000, time.Minute))
		m.fault(away)
		start := time.Now()
		if _, err := c.Next(w.Context()); !errors.As(err, &gone) || !gone.Since.Equal(start) {
			w.Errorf("%v since %v, want %v", err, gone.Since, start)
		}
	})
}

// One lease that hangs, while others are answered, is no outage.
func TestOneHungLeaseIsNoOutage(t *testing.T) {
	virtual(t, func(w *world) {
		stuck, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.fault(nil, hang)
		start := time.Now()
		time.AfterFunc(1900*time.Millisecond, func() {
			c, _ := w.chain(settings(1000, 1_000_000, time.Minute))
			w.take(c, 1)
		})
		if _, err := stuck.Next(w.Context()); err != nil || time.Since(start) > 2100*time.Millisecond {
			w.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

func TestCallersWaitInOrderOfUrgency(t *testing.T) {
	virtual(t, func(w *world) {
		var g gauge
		var calm []*allocator.Chain
		for range 200 {
			c, m := w.chain(settings(1000, 1_000_000, time.Minute))
			w.take(c, 1)
			m.gauge, m.latency = &g, 10*time.Millisecond
			calm = append(calm, c)
		}
		for _, c := range calm {
			w.take(c, c.Status().Held/4) // wants a refill in the background
		}
		hasty, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.latency = 10 * time.Millisecond
		start := time.Now()
		w.take(hasty, 1)
		if took := time.Since(start); took > 25*time.Millisecond {
			w.Errorf("a caller waited %v behind background refills", took)
		}
		if most := g.most.Load(); most > 16 {
			w.Errorf("%d leases at once", most)
		}
	})
}

func TestEndOfRunLetsWaitersGo(t *testing.T) {
	for name, f := range map[string]fault{"away": away, "hang": hang} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				c, m := w.chain(settings(1000, 1_000_000, time.Minute))
				m.fault(f)
				time.AfterFunc(500*time.Millisecond, w.stop)
				start := time.Now()
				errs := together(50, func(int) error {
					_, err := c.Next(w.Context())
					if !errors.Is(err, allocator.Unavailable) {
						return err
					}
					return nil
				})
				if len(errs) > 0 || time.Since(start) > time.Second {
					w.Errorf("after %v: %v", time.Since(start), errs)
				}
				time.Sleep(time.Hour)
				start = time.Now()
				if _, err := c.Next(w.Context()); !errors.Is(err, allocator.Unavailable) || time.Since(start) != 0 {
					w.Errorf("long after: %v, told after %v", err, time.Since(start))
				}
			})
		})
	}
}

// A chain waits for a refiller that is not running yet.
func TestCallersBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefiller(t, allocator.DefaultRefillerConfig(time.Now, rand.Float64))
		m := newMemory(t, dense())
		c := newChain(t, r, m, settings(1000, 1_000_000, time.Minute))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		time.AfterFunc(time.Second, func() { done <- r.Run(ctx) })
		if _, err := c.Next(t.Context()); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
