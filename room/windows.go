package room

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/allocator/timeid"
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

// pool is the worker of a width, and the tags whose generators issue in its windows.
type pool struct {
	windows *Windows
	bits    int
	tags    struct { // in memory
		sync.Mutex
		all map[*TimeTag]struct{}
	}

	// busy holds a token while a call uses the fields below. It is not a mutex, because the
	// call may wait for etcd, and callers of open wait no longer than their deadline.
	busy   chan struct{}
	worker *worker.Worker
	used   int64     // the end of the last tick that a closed generator may have used, Unix ms
	failed error     // why the last try to take or renew failed, or nil
	cut    bool      // a caller's deadline ended its try to take a worker
	after  time.Time // the next try
	ended  bool      // close was called

	exchanges int64 // of workers
	conflicts int64 // of them: another process had the worker

	shown atomic.Pointer[shown] // the state when the lock was last released
}

func newPool(of *Windows, bits int) *pool {
	p := &pool{windows: of, bits: bits, busy: make(chan struct{}, 1)}
	p.tags.all = make(map[*TimeTag]struct{})
	return p
}

// lock takes the lock. The caller defers the function that it returns.
func (p *pool) lock() (unlock func()) {
	p.busy <- struct{}{}
	return p.unlock
}

func (p *pool) unlock() {
	p.shown.Store(&shown{p.worker, p.failed, p.exchanges, p.conflicts})
	<-p.busy
}

// patience is the pause after a failed try to take a worker.
const patience = 200 * time.Millisecond

// open makes a generator for a tag in the place of closed, which may be nil. It takes a
// worker if there is none.
func (p *pool) open(ctx context.Context, tag *TimeTag, closed *timeid.Generator) error {
	select {
	case p.busy <- struct{}{}:
		defer p.unlock()
	case <-ctx.Done():
		return allocator.Errorf(allocator.Unavailable, "tag %s: no worker was free before the caller's deadline: %w",
			tag.name, context.Cause(ctx))
	}
	if tag.gone {
		return timeid.ErrClosed
	}
	if tag.generator.Load() != closed {
		return nil // another caller made it
	}
	p.shut(tag)
	if p.worker != nil && !p.windows.cfg.Workers.Holds(p.worker) {
		p.shutAll()
		p.worker = nil
	}
	if p.worker == nil {
		if err := p.takeFor(ctx, tag.Settings()); err != nil {
			return err
		}
	}
	return p.generate(tag)
}

// takeFor is take for a caller. A try that the caller's own deadline ends tells nothing to
// other callers, and nothing of the instance: Run tries again. The lock is held.
func (p *pool) takeFor(ctx context.Context, settings record.TimeTag) error {
	failed, after := p.failed, p.after
	err := p.take(ctx, settings)
	if err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)) {
		p.failed, p.after, p.cut = failed, after, true
		p.windows.wakeUp()
	}
	return err
}

// take takes a worker. The lock is held.
func (p *pool) take(ctx context.Context, settings record.TimeTag) error {
	if p.ended {
		return timeid.ErrClosed
	}
	if p.failed != nil && time.Now().Before(p.after) {
		return p.failed
	}
	taken, err := p.windows.cfg.Workers.Take(ctx, worker.Request{Bits: p.bits,
		Tick: p.tick(settings), Pin: p.windows.cfg.Pin})
	if p.failed = err; err != nil {
		p.after = time.Now().Add(patience)
		return err
	}
	p.worker, p.cut = taken, false
	return nil
}

// tick returns the longest unit of the pool's tags and of one more.
func (p *pool) tick(settings record.TimeTag) time.Duration {
	longest := settings.Layout().Unit
	for tag := range p.opened {
		longest = max(longest, tag.Settings().Layout().Unit)
	}
	return longest
}

// generate makes a tag's generator in the worker's window, above all that its last
// generator issued. Its error is a *timeid.WindowError where the window is too short for
// one of the tag's ticks until it is renewed. The lock is held.
func (p *pool) generate(tag *TimeTag) error {
	window := p.worker.Window()
	window.From = max(window.From, p.used)
	cfg := tag.Settings().Config(p.worker.ID().Number, window)
	cfg.Clock, cfg.Rand = p.windows.cfg.Clock, p.windows.cfg.Rand
	g, err := timeid.New(cfg)
	if first, whole := cfg.Layout.FirstTick(window); allocator.KindOf(err) == allocator.Invalid && !whole {
		return &timeid.WindowError{Worker: cfg.Worker, Now: p.windows.now(), Window: window, Early: true, First: first}
	}
	if err != nil {
		return err
	}
	tag.generator.Store(g)
	if !p.windows.cfg.Workers.Holds(p.worker) {
		p.shut(tag) // Drop may have run before the generator was there
	}
	return nil
}

// add adds a tag, which has no generator yet.
func (p *pool) add(tag *TimeTag) {
	p.tags.Lock()
	defer p.tags.Unlock()
	p.tags.all[tag] = struct{}{}
}

// all yields the tags, in no order. Unlike the pool's lock, theirs is never held for long.
func (p *pool) all(yield func(*TimeTag) bool) {
	p.tags.Lock()
	defer p.tags.Unlock()
	for tag := range p.tags.all {
		if !yield(tag) {
			return
		}
	}
}

// opened yields the tags with a generator. The pool's lock is held.
func (p *pool) opened(yield func(*TimeTag) bool) {
	for tag := range p.all {
		if tag.generator.Load() != nil && !yield(tag) {
			return
		}
	}
}

// shut closes a tag's generator, if it has one. The lock is held.
func (p *pool) shut(tag *TimeTag) {
	p.used = max(p.used, tag.shut())
}

// shutAll closes all generators, and returns the tags that had one. The lock is held.
func (p *pool) shutAll() []*TimeTag {
	shut := slices.Collect(p.opened)
	for _, tag := range shut {
		p.shut(tag)
	}
	return shut
}

// remove closes a tag's generator for good. The lock is held.
func (p *pool) remove(tag *TimeTag) {
	tag.gone = true
	p.shut(tag)
	p.tags.Lock()
	defer p.tags.Unlock()
	delete(p.tags.all, tag)
}

// plus adds the counts of a generator to those of the ones before it.
func plus(past, last timeid.Stats) timeid.Stats {
	last.Overflows += past.Overflows
	last.OverflowWait += past.OverflowWait
	last.Rollbacks += past.Rollbacks
	return last
}

// renewDue renews the worker's window when half of it has passed, and exchanges a lost
// worker.
func (p *pool) renewDue(ctx context.Context) {
	defer p.lock()()
	if p.ended || time.Now().Before(p.after) {
		return
	}
	if p.worker == nil {
		p.retry(ctx)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ledger.LongestWork)
	defer cancel()
	if p.clockWentBack() && p.followClock(ctx) || !p.windows.cfg.Workers.Due(p.worker) {
		return
	}
	err := p.windows.cfg.Workers.Renew(ctx, p.worker)
	if p.failed = err; err == nil {
		p.extend()
		return
	}
	p.after = time.Now().Add(patience)
	p.windows.cfg.Logger.Warn("a worker's window was not renewed", "error", err)
	if lost := p.worker.Lost(); lost != nil {
		if by, is := errors.AsType[*worker.LostError](lost); is && by.By != "" {
			p.conflicts++
		}
		p.exchange(ctx)
	}
}

// retry takes a worker if the last try failed: an instance that is not ready for that
// reason may get no calls, so no caller would try again. The lock is held.
func (p *pool) retry(ctx context.Context) {
	if p.failed == nil && !p.cut {
		return
	}
	p.cut = false
	settings, needed := p.any()
	if !needed {
		p.failed = nil
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ledger.LongestWork)
	defer cancel()
	_ = p.take(ctx, settings) // trouble reports the error until a try succeeds
}

// any returns the settings of one of the tags, and whether there is one.
func (p *pool) any() (settings record.TimeTag, ok bool) {
	for tag := range p.all {
		return tag.Settings(), true
	}
	return settings, false
}

// clockWentBack reports whether the clock is further behind the IDs of the worker than clocks may differ. So it is
// after a leap ahead was mended. The lock is held.
func (p *pool) clockWentBack() bool {
	if p.usedAhead() {
		return true
	}
	for tag := range p.opened {
		if tag.generator.Load().Back() > record.MaxAhead {
			return true
		}
	}
	return false
}

// usedAhead reports whether closed generators issued IDs of a time that lies far ahead by now. The lock is held.
func (p *pool) usedAhead() bool { return p.used-p.windows.now() > record.MaxAhead.Milliseconds() }

// followClock takes another worker, whose window begins now, as the next process would: its IDs do not have to lie
// above those of the old worker, so the tags need not wait until the clock has caught up with these. It returns false
// if no worker is free. The lock is held.
func (p *pool) followClock(ctx context.Context) bool {
	settings, needed := p.any()
	if !needed {
		return false
	}
	old := p.worker
	if p.take(ctx, settings) != nil {
		return false
	}
	p.exchanges++
	p.windows.cfg.Logger.Warn("the clock went back: the tags go on with another worker, by the clock", "before",
		old.ID().String(), "worker", p.worker.ID().String())
	p.replaced(ctx, old)
	return true
}

// extend gives the generators the worker's window. The lock is held.
func (p *pool) extend() {
	window := p.worker.Window()
	for tag := range p.opened {
		if err := tag.generator.Load().Extend(window); err != nil {
			p.windows.cfg.Logger.Error("a window does not fit the tag", "tag", tag.name, "error", err)
		}
	}
}

// exchange takes another worker in the place of a lost one. If no worker is free, the
// tags have none. The lock is held.
func (p *pool) exchange(ctx context.Context) {
	old := p.worker
	p.exchanges++
	p.after = time.Time{}
	var settings record.TimeTag
	for tag := range p.opened {
		settings = tag.Settings()
	}
	if settings.UnitMS == 0 { // no tag needs one
		p.release(ctx, old)
		return
	}
	if err := p.take(ctx, settings); err != nil {
		p.windows.cfg.Logger.Warn("no other worker could be taken", "bits", p.bits, "error", err)
		p.release(ctx, old)
		p.after = time.Time{} // the old one was not among those to choose from; it may be now
		return
	}
	p.replaced(ctx, old)
}

// replaced lets the tags go on with the pool's worker in the place of an old one, which it gives back. A tag's IDs only
// grow, unless the clock was far ahead. The lock is held.
func (p *pool) replaced(ctx context.Context, old *worker.Worker) {
	tags := p.shutAll()
	used := p.used
	if p.usedAhead() {
		p.used = 0
	}
	for _, tag := range tags {
		var outside *timeid.WindowError
		switch err := p.generate(tag); {
		case errors.As(err, &outside): // the tag issued ahead of the clock; its next caller tries again
			p.windows.cfg.Logger.Warn("a tag waits for the clock", "tag", tag.name, "error", err)
		case err != nil:
			p.windows.cfg.Logger.Error("a window does not fit the tag", "tag", tag.name, "error", err)
		}
	}
	p.giveBack(ctx, old, used)
}

// release gives back the pool's worker; the pool then has no worker. Its generators
// are closed. The lock is held.
func (p *pool) release(ctx context.Context, old *worker.Worker) {
	p.shutAll()
	p.worker = nil
	p.giveBack(ctx, old, p.used)
}

func (p *pool) giveBack(ctx context.Context, old *worker.Worker, used int64) {
	if err := p.windows.cfg.Workers.GiveBack(ctx, old, max(used, old.Window().From)); err != nil {
		p.windows.cfg.Logger.Info("a worker was not given back: its window ends by itself", "worker",
			old.ID().String(), "error", err)
	}
}

// exchangeMoved exchanges a worker that the room's slice no longer has. It returns false if the
// slice is not known yet.
func (p *pool) exchangeMoved(ctx context.Context) bool {
	defer p.lock()()
	if p.worker == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, ledger.LongestWork)
	defer cancel()
	err := p.windows.cfg.Workers.Check(ctx, p.worker)
	var moved *worker.MovedError
	if errors.As(err, &moved) {
		p.exchange(ctx)
		return true
	}
	return err == nil
}

// close ends the pool.
func (p *pool) close(ctx context.Context) error {
	defer p.lock()()
	p.ended = true
	p.shutAll()
	if p.worker == nil {
		return nil
	}
	old := p.worker
	p.worker = nil
	return p.windows.cfg.Workers.GiveBack(ctx, old, max(p.used, old.Window().From))
}

// shown is a copy of a pool's state. The lock may be held while etcd does not answer, so
// readiness and metrics read this instead.
type shown struct {
	worker    *worker.Worker
	failed    error
	exchanges int64
	conflicts int64
}

// show returns the pool's state when the lock was last released.
func (p *pool) show() shown {
	if s := p.shown.Load(); s != nil {
		return *s
	}
	return shown{}
}

// trouble returns why the pool's tags cannot issue IDs at a time, or nil if they can or
// there are none.
func (p *pool) trouble(now int64) error {
	s := p.show()
	if s.worker == nil {
		return s.failed // nil if no worker was asked for
	}
	until := s.worker.Window().Until
	if now < until {
		return nil
	}
	err := allocator.Errorf(allocator.Unavailable, "the window of worker %v ended at %s", s.worker.ID(),
		time.UnixMilli(until).UTC().Format(timeid.Format))
	if s.failed != nil {
		err = allocator.Errorf(allocator.KindOf(s.failed), "%w, and was not renewed: %w", err, s.failed)
	}
	return err
}

// remaining returns how long the pool's window still lasts.
func (s shown) remaining(now int64) time.Duration {
	if s.worker == nil {
		return 0
	}
	return time.Duration(max(s.worker.Window().Until-now, 0)) * time.Millisecond
}
