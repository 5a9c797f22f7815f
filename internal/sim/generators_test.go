package sim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

// generators are an instance's generators of time-ordered IDs, and their worker. They are
// what package timetags is to a room. That one keeps a mutex while etcd answers, and a
// bubble's clock stands still while a goroutine waits for a mutex; so these have a
// channel for a lock.
type generators struct {
	workers *worker.Workers
	request worker.Request
	clock   *wallClock

	lock   chan struct{}  // holds one while the worker is taken, renewed or given back
	worker *worker.Worker // under lock; nil for none
	used   int64          // under lock: the end of the last tick that a closed generator may have used
	ended  bool           // under lock

	mu struct {
		sync.Mutex
		open map[allocator.Tag]*timeid.Generator
	}
}

func newGenerators(workers *worker.Workers, request worker.Request, clock *wallClock) *generators {
	g := &generators{workers: workers, request: request, clock: clock, lock: make(chan struct{}, 1)}
	g.mu.open = make(map[allocator.Tag]*timeid.Generator)
	return g
}

// locked calls f under the lock. It returns false when ctx ended first.
func (g *generators) locked(ctx context.Context, f func()) bool {
	select {
	case g.lock <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-g.lock }()
	f()
	return true
}

// of returns the generator of a tag, nil for none.
func (g *generators) of(tag allocator.Tag) *timeid.Generator {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.open[tag]
}

// next calls use with a tag's generator, and with the next one where that was closed.
func (g *generators) next(ctx context.Context, tag timeTag, use func(*timeid.Generator) error) error {
	for {
		now := g.of(tag.name)
		if now != nil {
			if err := use(now); !errors.Is(err, error(timeid.ErrClosed)) {
				return err
			}
		}
		var err error = allocator.Errorf(allocator.Unavailable, "sim: no worker within the caller's deadline")
		g.locked(ctx, func() { err = g.begin(ctx, tag, now) })
		if err != nil {
			return err
		}
	}
}

// begin makes a generator in the place of one that is closed. The lock is held.
func (g *generators) begin(ctx context.Context, tag timeTag, closed *timeid.Generator) (err error) {
	if g.ended {
		return allocator.Errorf(allocator.Unavailable, "sim: the instance has ended")
	}
	if g.of(tag.name) != closed {
		return nil
	}
	g.shut(tag.name)
	if g.worker != nil && !g.workers.Holds(g.worker) {
		g.shutAll()
		g.worker = nil
	}
	if g.worker == nil {
		if g.worker, err = g.workers.Take(ctx, g.request); err != nil {
			g.worker = nil
			return err
		}
	}
	return g.generate(tag)
}

// generate makes a tag's generator, above all that were closed. The lock is held.
func (g *generators) generate(tag timeTag) error {
	window := g.worker.Window()
	window.From = max(window.From, g.used)
	cfg := tag.settings.Config(g.worker.ID().Number, window)
	cfg.Clock = func() int64 { return g.clock.now().UnixMilli() }
	cfg.Rand = func(n uint64) uint64 {
		w := g.clock.w
		return w.dice(fmt.Sprint("sequence ", tag.name, time.Since(w.began))).Uint64N(n)
	}
	made, err := timeid.New(cfg)
	if err != nil { // the window has no whole tick left
		return allocator.Errorf(allocator.Unavailable, "sim: %w", err)
	}
	g.mu.Lock()
	g.mu.open[tag.name] = made
	g.mu.Unlock()
	if !g.workers.Holds(g.worker) {
		g.shut(tag.name) // drop may have looked before
	}
	return nil
}

// shut closes a tag's generator, if it has one. The lock is held.
func (g *generators) shut(tag allocator.Tag) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.mu.open[tag]; now != nil {
		g.used = max(g.used, now.Close())
		delete(g.mu.open, tag)
	}
}

// shutAll closes all generators. The lock is held.
func (g *generators) shutAll() {
	g.mu.Lock()
	open := slices.Sorted(maps.Keys(g.mu.open))
	g.mu.Unlock()
	for _, tag := range open {
		g.shut(tag)
	}
}

// drop closes all generators at once: a recover went on without the instance.
func (g *generators) drop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, now := range g.mu.open {
		now.Close()
	}
}

// run renews the worker's window until ctx ends.
func (g *generators) run(ctx context.Context) error {
	const every = 250 * time.Millisecond // as package timetags does
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			g.locked(ctx, func() { g.look(ctx) })
		}
	}
}

// look renews the window when half of it is over. The lock is held.
func (g *generators) look(ctx context.Context) {
	if g.worker == nil || g.clock.now().Before(g.worker.RenewAt()) && g.workers.Holds(g.worker) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := g.workers.Renew(ctx, g.worker); err == nil {
		window := g.worker.Window()
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, now := range g.mu.open {
			_ = now.Extend(window) // one that drop closed
		}
	} else if g.worker.Lost() != nil {
		g.exchange(ctx)
	}
}

// exchange gives back a worker that is lost. Callers take another one. The lock is held.
func (g *generators) exchange(ctx context.Context) {
	old := g.worker
	g.shutAll()
	g.worker = nil
	_ = g.workers.GiveBack(ctx, old, max(g.used, old.Window().From)) // else its window ends by itself
}

// adopt exchanges a worker that the room's slice does not have any longer. It returns
// false when ctx ended first.
func (g *generators) adopt(ctx context.Context) bool {
	for {
		known := false
		g.locked(ctx, func() {
			if known = g.worker == nil; known {
				return
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			err := g.workers.Check(ctx, g.worker)
			if _, moved := errors.AsType[*worker.MovedError](err); moved {
				g.exchange(ctx)
				known = true
			}
			known = known || err == nil
		})
		if known {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// close ends all generators, and gives the worker back.
func (g *generators) close(ctx context.Context) {
	g.locked(ctx, func() {
		g.ended = true
		g.shutAll()
		if g.worker != nil {
			g.exchange(ctx)
		}
	})
}
