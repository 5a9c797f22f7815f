package room

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/internal/skew"
)

// WindowsConfig are the settings of an instance's time-ordered IDs.
type WindowsConfig struct {
	// Workers leases the workers.
	Workers *worker.Workers
	// Pin chooses the number of the instance's workers; the zero value chooses none.
	Pin worker.Pin
	// Hold bounds the windows of callers, down to worker.Shortest; 0 is no bound.
	Hold time.Duration
	// Clock returns the present time in Unix ms; nil is the computer's clock.
	Clock func() int64
	// Rand returns a random number below n, for tags with sequences that begin at random. nil is
	// math/rand/v2's.
	Rand func(n uint64) uint64
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// Windows are the workers of an instance with their windows, in which its TimeTags issue IDs: one
// worker for each width, which all tags of that width share. Package worker leases the workers;
// package timeid makes the IDs. Its methods are safe for concurrent use.
//
// # Invariants
//
//  1. A generator issues only ticks that lie in the window of its worker as a whole.
//     Run renews windows, and extends all generators of the worker.
//  2. At most one generator of a tag is open, and a new one begins where the last one
//     ended, whatever its worker is. So the IDs of a tag only grow.
//  3. A worker is given back after all of its generators are closed.
//  4. Issuing an ID takes no lock except to look the tag up.
//
// A worker is taken when a caller first asks for a tag of its width. It is exchanged if
// a layout takes it out of the room's slice, or if another process has it.
type Windows struct {
	cfg  WindowsConfig
	wake chan struct{} // makes Run look at once
	lent lent

	mu struct {
		sync.RWMutex
		pools map[int]*pool // by width
	}
}

// startWindows makes the windows of the instance. Its error is Invalid.
func (p *process) startWindows() error {
	cfg := worker.DefaultConfig()
	cfg.CallerWorkers = p.cfg.ClientWorkers
	cfg.PinnedWindow, cfg.AgreeClock, cfg.Logger = p.cfg.WorkerWindow, p.cfg.AgreeClock, p.log
	cfg.Span = p.workerSpan
	cfg.Now = p.instance.Now
	if now := skew.Now(); now != nil {
		cfg.Now = now
	}
	workers, err := worker.New(p.instance, cfg)
	if err == nil {
		p.instance.OnPeriod(workers.CheckClock)
		p.windows = NewWindows(WindowsConfig{Workers: workers, Pin: p.cfg.Worker, Hold: p.cfg.Hold, Logger: p.log,
			Clock: func() int64 { return cfg.Now().UnixMilli() }})
	}
	return err
}

// pinned returns the number of a pin, or nil if none is chosen.
func pinned(p worker.Pin) *int64 {
	if number, is := p.Number(); is {
		return &number
	}
	return nil
}

// NewWindows returns windows without workers, which the first callers of tags take.
func NewWindows(cfg WindowsConfig) *Windows {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	w := &Windows{cfg: cfg, wake: make(chan struct{}, 1)}
	w.mu.pools = make(map[int]*pool)
	w.lent.workers, w.lent.taking = make(map[record.WorkerID]*lentWorker), make(map[string]int64)
	return w
}

// Add returns a tag that has no generator yet: Warm, or its first caller, makes one. The caller closes any
// other TimeTag of the name before.
func (w *Windows) Add(name allocator.Tag, settings record.TimeTag, text *texts.Text) *TimeTag {
	w.mu.Lock()
	p := w.mu.pools[settings.WorkerBits]
	if p == nil {
		p = newPool(w, settings.WorkerBits)
		w.mu.pools[settings.WorkerBits] = p
	}
	w.mu.Unlock()
	tag := &TimeTag{name: name, bits: settings.Layout(), wide: settings.Wide(), text: text, pool: p}
	tag.settings.Store(&settings)
	p.add(tag)
	return tag
}

// wakeUp makes Run look after the workers now.
func (w *Windows) wakeUp() { allocator.Wake(w.wake) }

// renewEvery is how often Run checks whether a window has to be renewed. The
// shortest window is three seconds.
const renewEvery = 250 * time.Millisecond

// Run renews windows until ctx ends.
func (w *Windows) Run(ctx context.Context) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-w.wake:
		}
		w.Look(ctx)
	}
}

// Look renews the windows that are due now, as Run does time and again.
func (w *Windows) Look(ctx context.Context) {
	var looks sync.WaitGroup
	for _, p := range w.pools() {
		looks.Go(func() { p.renewDue(ctx) })
	}
	if w.ClockOff() != 0 { // to see when it is right again: windows are renewed too seldom for that
		looks.Go(func() { _ = w.cfg.Workers.CheckClock(ctx, time.UnixMilli(w.now())) })
	}
	looks.Wait()
}

func (w *Windows) pools() []*pool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return slices.Collect(maps.Values(w.mu.pools))
}

// ExchangeMoved exchanges the workers that the room's slice no longer has, and returns when
// none of them is used. It returns false if ctx ended first.
func (w *Windows) ExchangeMoved(ctx context.Context) bool {
	for _, p := range w.pools() {
		for pause := 5 * time.Millisecond; !p.exchangeMoved(ctx); pause = min(2*pause, time.Second) {
			select {
			case <-ctx.Done():
				return false
			case <-time.After(pause):
			}
		}
	}
	return true
}

// Drop ends all generators at once, because a recover went on without this instance.
// Workers are then taken anew. Drop takes no pool's lock: the ledger may call it within
// a Take, which has that lock. A generator that is made meanwhile is closed where it is
// made, because Drop informs the workers first.
func (w *Windows) Drop() { w.drop(func(*pool) bool { return true }) }

// DropLost ends the generators of workers that this process no longer holds. As Drop, it takes
// no pool's lock.
func (w *Windows) DropLost() {
	w.drop(func(p *pool) bool {
		s := p.show()
		return s.worker == nil || !w.cfg.Workers.Holds(s.worker)
	})
}

// drop ends the generators of some pools.
func (w *Windows) drop(lost func(*pool) bool) {
	for _, p := range w.pools() {
		if !lost(p) {
			continue
		}
		for tag := range p.all {
			if g := tag.generator.Load(); g != nil {
				g.Close()
			}
		}
	}
	w.wakeUp()
}

// Close ends all generators, and gives the workers back. After an error a worker's
// window ends by itself.
func (w *Windows) Close(ctx context.Context) error {
	var errs []error
	for _, p := range w.pools() {
		errs = append(errs, p.close(ctx))
	}
	return errors.Join(errs...)
}

// Trouble returns whether some tag in memory can issue IDs now, and why another cannot, nil if all can. What requests
// met decides, besides the workers: a generator under a clock that went back has a worker, and issues nothing.
func (w *Windows) Trouble() (can bool, why error) {
	now := time.Now()
	for _, p := range w.pools() {
		of := p.trouble(w.now())
		for tag := range p.all {
			err := of
			if err == nil {
				err = tag.trouble(now)
			}
			if err == nil {
				can = true
			} else if why == nil {
				why = allocator.Errorf(allocator.KindOf(err), "tag %s: %w", tag.name, err)
			}
		}
	}
	return can, why
}

// ClockOff returns how far the clock is ahead of the other instances', negative if it is behind: 0 if the instance
// has no workers, to which that matters.
func (w *Windows) ClockOff() time.Duration {
	if len(w.pools()) == 0 {
		return 0
	}
	return w.cfg.Workers.ClockOff()
}

func (w *Windows) now() int64 {
	if w.cfg.Clock != nil {
		return w.cfg.Clock()
	}
	return time.Now().UnixMilli()
}

// workersStatus is the state of an instance's workers.
type workersStatus struct {
	exchanges int64 // workers that were exchanged because a layout took them away or another process had them
	conflicts int64 // of them: another process had the worker
	// clockAhead is how far the clock was ahead of the other instances', when a window was
	// last taken or renewed.
	clockAhead time.Duration

	// remaining is, by width, how long a worker's window lasts if it is not renewed; 0 if it
	// has ended, or the instance has no worker of the width and needs one.
	remaining map[int]time.Duration
	// lent is, by width, how many workers callers have.
	lent map[int]int
}

func (w *Windows) status() workersStatus {
	all := workersStatus{clockAhead: w.cfg.Workers.ClockAhead(), remaining: make(map[int]time.Duration),
		lent: w.lentNow()}
	for _, p := range w.pools() {
		s := p.show()
		if s.worker != nil || s.failed != nil { // else no tag needs a worker
			all.remaining[p.bits] = s.remaining(w.now())
		}
		all.lent[p.bits] += 0 // also if there are none
		all.exchanges += s.exchanges
		all.conflicts += s.conflicts
	}
	return all
}
