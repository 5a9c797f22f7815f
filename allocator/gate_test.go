package allocator_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// door is a gate that the test opens and closes. It lets no IDs of layouts below
// least through, and reports newest as the newest known layout.
type door struct{ least, newest atomic.Int64 }

var errShut = allocator.Errorf(allocator.Unavailable, "shut")

func (d *door) gate(s allocator.Segment) (allocator.Part, error) {
	if s.Version < d.least.Load() {
		return part(d.newest.Load()), errShut
	}
	return part(d.newest.Load()), nil
}

func gated(t tb, r *allocator.Refiller, s allocator.Source, settings allocator.Settings,
	gate allocator.Gate) *allocator.Chain {
	t.Helper()
	c, err := allocator.NewChain(allocator.ChainConfig{Tag: "order", Source: s, Refiller: r,
		Settings: settings, Gate: gate})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// takes are the ways to take IDs. Each function returns the first ID and their count.
var takes = map[string]func(ctx context.Context, c *allocator.Chain) (first, n int64, err error){
	"Next": func(ctx context.Context, c *allocator.Chain) (int64, int64, error) {
		id, err := c.Next(ctx)
		return id, 1, err
	},
	"NextN": func(ctx context.Context, c *allocator.Chain) (int64, int64, error) {
		runs, err := c.NextN(ctx, 7, nil)
		if len(runs) == 0 {
			return 0, 0, err
		}
		return runs[0].First, 7, err
	},
	"Lease": func(ctx context.Context, c *allocator.Chain) (int64, int64, error) {
		seg, err := c.Lease(ctx, 7)
		return seg.First, seg.Count, err
	},
}

// TestGate shuts a gate while no newer layout is known. Callers get the gate's
// error. The chain keeps its IDs, and issues them when the gate opens.
func TestGate(t *testing.T) {
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				m, d := newMemory(w, strided()), &door{}
				c := gated(w, w.refiller, m, settings(1000, 1000, time.Minute), d.gate)
				if _, ok := c.TryNext(); ok {
					w.Error("TryNext went past the gate")
				}
				first, n, err := take(w.Context(), c)
				if err != nil || first != 300 {
					w.Fatalf("%d, %v", first, err)
				}
				if _, ok := c.TryNext(); ok {
					w.Error("TryNext went past the gate")
				}
				d.newest.Store(1)
				d.least.Store(2)
				before := c.Status()
				if _, _, err := take(w.Context(), c); !errors.Is(err, error(errShut)) {
					w.Errorf("a shut gate: %v", err)
				}
				// Lease takes IDs before it asks the gate; the other calls ask first.
				lost := c.Status().Issued - before.Issued
				if name != "Lease" && lost != 0 || lost > 7 || c.Status().Dropped != 0 {
					w.Errorf("IDs were lost at a shut gate: %+v, then %+v", before, c.Status())
				}
				d.least.Store(0)
				if next, _, err := take(w.Context(), c); err != nil || next != first+n+lost {
					w.Errorf("%d, %v; want %d", next, err, first+n+lost)
				}
				w.balance(c, m)
			})
		})
	}
}

// TestGateNewer shuts the gate while a newer layout is known. Callers wait for a
// fresh segment, and the chain drops the old ones.
func TestGateNewer(t *testing.T) {
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				m, d := newMemory(w, strided()), &door{}
				c := gated(w, w.refiller, m, settings(1000, 1000, time.Minute), d.gate)
				if _, _, err := take(w.Context(), c); err != nil {
					w.Fatal(err)
				}
				time.Sleep(time.Second)
				m.mu.Lock()
				m.latency = 50 * time.Millisecond
				m.mu.Unlock()
				m.setVersion(2)
				border := m.nextID()
				d.newest.Store(2)
				d.least.Store(2)
				start := time.Now()
				id, _, err := take(w.Context(), c)
				if took := time.Since(start); err != nil || id < border || took != 50*time.Millisecond {
					w.Errorf("%d after %v, %v; the new begin at %d", id, took, err, border)
				}
				if s := c.Status(); s.Version != 2 || s.Dropped == 0 || !c.Renewed(part(2)) {
					w.Errorf("%+v", s)
				}
				w.balance(c, m)
			})
		})
	}
}

// TestGateShutsMeanwhile shuts the gate after a call took an ID and before it
// returns it, as if the process had been suspended in between.
func TestGateShutsMeanwhile(t *testing.T) {
	for _, newest := range []int64{1, 2} {
		for name, take := range takes {
			virtual(t, func(w *world) {
				m := newMemory(w, strided())
				asked, shutAt := 0, 0
				c := gated(w, w.refiller, m, settings(1000, 1000, time.Minute),
					func(s allocator.Segment) (allocator.Part, error) {
						if asked++; shutAt > 0 && asked >= shutAt && s.Version < 2 {
							return part(newest), errShut
						}
						return part(newest), nil
					})
				if _, _, err := take(w.Context(), c); err != nil {
					w.Fatal(err)
				}
				perTake := asked
				if name != "Lease" && perTake < 2 {
					w.Fatalf("%s: a gate that was asked %d times", name, perTake)
				}
				time.Sleep(time.Second)
				m.setVersion(newest)
				border := m.nextID()
				shutAt = asked + perTake // the last question of the next take
				id, _, err := take(w.Context(), c)
				if newest == 1 && !errors.Is(err, error(errShut)) {
					w.Errorf("%s: %d, %v from a gate that shut", name, id, err)
				}
				if newest == 2 && (err != nil || id < border) {
					w.Errorf("%s: %d, %v; the new begin at %d", name, id, err, border)
				}
				w.balance(c, m)
			})
		}
	}
}

// TestGateStress shuts the gate for one layout after another under load. A call
// that begins after the gate was shut for a layout returns no ID of that layout.
func TestGateStress(t *testing.T) {
	refiller := newRefiller(t, allocator.DefaultRefillerConfig(time.Now, rand.Float64))
	m, d := newMemory(t, strided()), &door{}
	c := gated(t, refiller, m, settings(1000, 50_000, time.Second), d.gate)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	run := make(chan error)
	go func() { run <- refiller.Run(ctx) }()
	var all sync.WaitGroup
	var shut, border atomic.Int64 // IDs of layouts below shut lie below border
	const versions = 60
	for _, take := range takes {
		for range 2 {
			all.Go(func() {
				for shut.Load() < versions && !t.Failed() {
					least := border.Load()
					if id, n, err := take(ctx, c); err != nil || n > 0 && id < least {
						t.Errorf("%d, %v; the IDs that are not shut begin at %d", id, err, least)
					}
				}
			})
		}
	}
	all.Go(func() {
		for version := int64(2); version <= versions && !t.Failed(); version++ {
			for before := m.leases(); m.leases() < before+3 && !t.Failed(); { // some load in between
				time.Sleep(time.Millisecond)
			}
			from := m.setVersion(version)
			d.newest.Store(version)
			d.least.Store(version)
			border.Store(from)
			shut.Store(version)
		}
		shut.Store(versions)
	})
	all.Wait()
	stop()
	if err := <-run; err != nil {
		t.Error(err)
	}
	s := c.Status()
	if total := m.total(); s.Issued+s.Held+s.Dropped != total || s.Dropped == 0 {
		t.Errorf("%+v, but %d were leased", s, total)
	}
}

func TestElapsed(t *testing.T) {
	start := time.Now()
	later := start.Add(time.Minute) // both clocks
	if got := allocator.Elapsed(start, later); got != time.Minute {
		t.Errorf("%v", got)
	}
	wall := func(at time.Time, by time.Duration) time.Time { return at.Round(0).Add(by) } // without a monotonic reading
	if got := allocator.Elapsed(start, wall(start, time.Hour)); got != time.Hour {
		t.Errorf("a machine that slept: %v", got)
	}
}
