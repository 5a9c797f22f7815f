package timetags

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
	"github.com/march-id/march/allocator/timeid"
)

// Config are the settings of an instance's time-ordered IDs.
type Config struct {
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

// Tags are the tags of time-ordered IDs that are in memory. Its methods are safe for
// concurrent use.
type Tags struct {
	cfg  Config
	wake chan struct{} // makes Run look at once
	lent lent

	mu struct {
		sync.RWMutex
		tags  map[allocator.Tag]*Tag
		pools map[int]*pool // by width

		gone Totals // of tags that are no longer in memory
	}
}

// New returns an instance's tags, none so far.
func New(cfg Config) *Tags {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	t := &Tags{cfg: cfg, wake: make(chan struct{}, 1)}
	t.mu.tags, t.mu.pools = make(map[allocator.Tag]*Tag), make(map[int]*pool)
	t.lent.workers, t.lent.taking = make(map[record.WorkerID]*lentWorker), make(map[string]int64)
	return t
}

// Get returns a tag, or nil if it is not in memory.
func (t *Tags) Get(name string) *Tag {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.mu.tags[allocator.Tag(name)]
}

// All returns the tags in memory, in no order.
func (t *Tags) All() []*Tag {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.mu.tags))
}

// Load puts a tag in memory, and takes a worker for it if there is none. Its errors
// are those of worker.Workers.Take, and Generator's. The tag is in memory even after
// an error, and its next caller tries again.
func (t *Tags) Load(ctx context.Context, name allocator.Tag, settings record.TimeTag, text *texts.Text) (*Tag, error) {
	for {
		tag := t.put(name, settings, text)
		err := tag.pool.open(ctx, tag, nil)
		if errors.Is(err, error(timeid.ErrClosed)) && t.Get(string(name)) != tag {
			continue // it went from memory meanwhile
		}
		tag.note(ctx, 0, err)
		return tag, err
	}
}

func (t *Tags) put(name allocator.Tag, settings record.TimeTag, text *texts.Text) *Tag {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tag := t.mu.tags[name]; tag != nil {
		return tag
	}
	p := t.mu.pools[settings.WorkerBits]
	if p == nil {
		p = newPool(t, settings.WorkerBits)
		t.mu.pools[settings.WorkerBits] = p
	}
	tag := &Tag{name: name, bits: settings.Layout(), wide: settings.Wide(), text: text, pool: p}
	tag.settings.Store(&settings)
	t.mu.tags[name] = tag
	return tag
}

// Update applies a tag's settings. Nil settings mean that the tag was deleted: its IDs
// end, and the next tag of the same name begins above them.
func (t *Tags) Update(name allocator.Tag, settings *record.TimeTag) {
	tag := t.Get(string(name))
	if tag == nil {
		return
	}
	if settings == nil {
		tag.pool.remove(tag)
		return
	}
	tag.pool.update(tag, *settings)
}

// forget removes a tag without a generator from memory, and keeps its counts. The pool's
// lock is held, so the next tag of the name gets no generator before that.
func (t *Tags) forget(tag *Tag) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.tags[tag.name] == tag {
		delete(t.mu.tags, tag.name)
		t.mu.gone.add(tag)
	}
}

// DropIdle takes the tags out of memory of which no ID was asked for since an earlier look,
// for some time. The workers stay: the next caller of such a tag gets a generator that
// begins where the last one ended. Only one goroutine may call it.
func (t *Tags) DropIdle(after time.Duration) {
	now := time.Now()
	for _, tag := range t.All() {
		switch asked := tag.asked.Load(); {
		case tag.idle.since.IsZero(), tag.idle.asked != asked:
			tag.idle.asked, tag.idle.since = asked, now
		case now.Sub(tag.idle.since) >= after:
			tag.pool.dropIdle(tag)
		}
	}
}

// look makes Run look after the workers now.
func (t *Tags) look() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// lookEvery is how often Run checks whether a window has to be renewed. The
// shortest window is three seconds.
const lookEvery = 250 * time.Millisecond

// Run renews windows until ctx ends.
func (t *Tags) Run(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-t.wake:
		}
		t.Look(ctx)
	}
}

// Look renews the windows that are due now, as Run does time and again.
func (t *Tags) Look(ctx context.Context) {
	var looks sync.WaitGroup
	for _, p := range t.pools() {
		looks.Go(func() { p.look(ctx) })
	}
	if t.ClockOff() != 0 { // to see when it is right again: windows are renewed too seldom for that
		looks.Go(func() { _ = t.cfg.Workers.CheckClock(ctx, time.UnixMilli(t.now())) })
	}
	looks.Wait()
}

func (t *Tags) pools() []*pool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.mu.pools))
}

// ExchangeMoved exchanges the workers that the room's slice no longer has, and returns when
// none of them is used. It returns false if ctx ended first.
func (t *Tags) ExchangeMoved(ctx context.Context) bool {
	for _, p := range t.pools() {
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
func (t *Tags) Drop() {
	for _, tag := range t.All() {
		if g := tag.generator.Load(); g != nil {
			g.Close()
		}
	}
	t.look()
}

// DropLost ends the generators of workers that this process no longer holds. As Drop, it takes
// no pool's lock.
func (t *Tags) DropLost() {
	for _, tag := range t.All() {
		if s := tag.pool.show(); s.worker != nil && t.cfg.Workers.Holds(s.worker) {
			continue
		}
		if g := tag.generator.Load(); g != nil {
			g.Close()
		}
	}
	t.look()
}

// Close ends all generators, and gives the workers back. After an error a worker's
// window ends by itself.
func (t *Tags) Close(ctx context.Context) error {
	var errs []error
	for _, p := range t.pools() {
		errs = append(errs, p.close(ctx))
	}
	return errors.Join(errs...)
}

// Trouble returns whether some tag in memory can issue IDs now, and why another cannot, nil if all can. What requests
// met decides, besides the workers: a generator under a clock that went back has a worker, and issues nothing.
func (t *Tags) Trouble() (can bool, why error) {
	now := time.Now()
	pools := make(map[*pool]error)
	for _, p := range t.pools() {
		pools[p] = p.trouble(t.now())
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, tag := range t.mu.tags {
		err := pools[tag.pool]
		if err == nil {
			err = tag.trouble(now)
		}
		if err == nil {
			can = true
		} else if why == nil {
			why = allocator.Errorf(allocator.KindOf(err), "tag %s: %w", tag.name, err)
		}
	}
	return can, why
}

// ClockOff returns how far the clock is ahead of the other instances', negative if it is behind: 0 if that matters to
// nobody.
func (t *Tags) ClockOff() time.Duration {
	if len(t.pools()) == 0 {
		return 0
	}
	return t.cfg.Workers.ClockOff()
}

func (t *Tags) now() int64 {
	if t.cfg.Clock != nil {
		return t.cfg.Clock()
	}
	return time.Now().UnixMilli()
}
