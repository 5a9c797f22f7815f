package client

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
)

// Client issues IDs of any number of tags. All methods are safe for concurrent
// use. Close must be called at the end.
type Client struct {
	opts     Options // with defaults
	log      hclog.Logger
	pool     *pool
	discover *discovery // nil without Options.Discover
	refiller *allocator.Refiller
	began    time.Time
	running  context.Context // ctx of all background work; ends at Close
	stop     context.CancelFunc
	work     sync.WaitGroup
	newest   atomic.Pointer[allocator.Part] // the own room's part of the newest layout that an answer named; never nil
	layout   atomic.Pointer[Layout]         // of a console; nil before Layout is called
	poke     chan struct{}                  // holds a token if the keeper should look at once

	mu struct {
		sync.RWMutex
		tags    map[string]*Tag
		workers map[int]*worker // of time-ordered IDs, by width
		closed  bool
	}
}

// ErrClosed is returned by all methods after Close.
var ErrClosed = &allocator.Error{Kind: allocator.Invalid, Msg: "the client was closed"}

// patience is how long callers wait for a room that does not answer, while no IDs are
// held; later callers get the error at once.
const patience = 3 * time.Second

// triesPerLease is how many hanging instances one lease waits for.
const triesPerLease = 3

// New returns a client when it holds IDs of all Options.WarmTags. Without WarmTags it
// asks no room. ctx bounds only New itself. Its errors are Invalid, those of Next
// for WarmTags, and Unavailable if no console answers with an instance's address and
// Addresses is empty.
func New(ctx context.Context, opts Options) (*Client, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	cfg := allocator.DefaultRefillerConfig(time.Now, rand.Float64)
	cfg.Timeout = 2 * triesPerLease * opts.Timeout // the pool ends a lease sooner, and knows why
	cfg.Patience = patience
	refiller, err := allocator.NewRefiller(cfg)
	if err != nil {
		return nil, err
	}
	c := &Client{opts: opts, log: opts.Logger, refiller: refiller, began: time.Now(), poke: make(chan struct{}, 1)}
	c.mu.tags, c.mu.workers = make(map[string]*Tag), make(map[int]*worker)
	c.newest.Store(&allocator.Part{})
	if c.pool, err = newPool(opts); err != nil {
		return nil, err
	}
	if opts.Discover != nil {
		if err := c.startDiscovery(ctx); err != nil {
			c.pool.close()
			return nil, err
		}
	}
	c.running, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	c.work.Go(func() { _ = refiller.Run(c.running) }) // it returns nil
	c.work.Go(func() { c.keep(c.running) })
	if c.discover != nil {
		c.work.Go(func() { c.discover.poll(c.running, c.followLayout) })
	}

	warming, warmed := errgroup.WithContext(ctx)
	for _, name := range opts.WarmTags {
		warming.Go(func() error {
			tag, err := c.Tag(name)
			if err != nil {
				return err
			}
			return tag.Warm(warmed)
		})
	}
	if err := warming.Wait(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// startDiscovery asks the consoles once. Its error is Unavailable if the client knows no
// address then.
func (c *Client) startDiscovery(ctx context.Context) (err error) {
	if c.discover, err = newDiscovery(c.opts, c.pool); err != nil {
		return err
	}
	err = c.discover.ask(ctx)
	if err != nil && len(c.opts.Addresses) > 0 {
		c.log.Warn("no console tells the room's addresses: the client begins with those it was given", "error", err)
		return nil
	}
	if err != nil {
		c.discover.close()
	}
	return err
}

// Close drops all IDs that are held, ends every call under way with ErrClosed, and
// returns when all of the client's goroutines have ended.
func (c *Client) Close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	for _, t := range c.tags() { // no more are made
		t.chain.Close()
	}
	for _, w := range c.workers() {
		w.close()
	}
	c.stop()
	c.work.Wait()
	c.pool.close()
	if c.discover != nil {
		c.discover.close()
	}
}

// Next returns an ID of a tag. It waits only while nothing is held, until ctx
// ends at the latest. Its errors are Invalid (the name), the room's error for the
// tag (such as NotFound or Exhausted), an *allocator.AwayError if nothing is held
// and no room has answered for some seconds, Unavailable if ctx ended first, with
// ctx's error as the cause, and ErrClosed.
func (c *Client) Next(ctx context.Context, tag string) (id int64, err error) {
	return with(c, tag, func(t *Tag) (int64, error) { return t.Next(ctx) })
}

// NextN returns n IDs of a tag, 1 to 2^40, as runs; see Tag.NextN. Its errors are Next's
// and Invalid.
func (c *Client) NextN(ctx context.Context, tag string, n int64) (Runs, error) {
	return with(c, tag, func(t *Tag) (Runs, error) { return t.NextN(ctx, n, nil) })
}

// NextRun returns n consecutive IDs of a tag; see Tag.NextRun.
func (c *Client) NextRun(ctx context.Context, tag string, n int64) (run allocator.Run, err error) {
	return with(c, tag, func(t *Tag) (allocator.Run, error) { return t.NextRun(ctx, n) })
}

// NextText returns an ID of a tag as a text, and the ID; see Tag.AppendNext.
func (c *Client) NextText(ctx context.Context, tag string) (text string, id int64, err error) {
	id, err = with(c, tag, func(t *Tag) (id int64, err error) {
		text, id, err = t.NextText(ctx)
		return id, err
	})
	return text, id, err
}

// ParseText returns the ID of a text of a tag; see Tag.ParseText.
func (c *Client) ParseText(ctx context.Context, tag, text string) (id int64, err error) {
	return with(c, tag, func(t *Tag) (int64, error) { return t.ParseText(ctx, text) })
}

// Tag returns a handle to a tag, which is kept until Close. It does not ask a room
// whether the tag exists. Its errors are Invalid (the name) and ErrClosed.
func (c *Client) Tag(name string) (*Tag, error) {
	return c.tag(name, true)
}

// with returns what use returns of a tag. If the tag was dropped in between, because it
// was unused for long, it calls use again with a new one.
func with[T any](c *Client, name string, use func(*Tag) (T, error)) (none T, _ error) {
	for {
		t, err := c.tag(name, false)
		if err != nil {
			return none, err
		}
		got, err := use(t)
		if !errors.Is(err, error(ErrClosed)) || c.closed() {
			return got, err
		}
	}
}

func (c *Client) closed() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.closed
}

// tag returns a tag, and makes it if there is none. A tag with keep is never
// dropped.
func (c *Client) tag(name string, keep bool) (*Tag, error) {
	c.mu.RLock()
	t, closed := c.mu.tags[name], c.mu.closed
	found := t != nil && (t.kept || !keep)
	c.mu.RUnlock()
	switch {
	case closed:
		return nil, ErrClosed
	case found:
		return t, nil
	}
	parsed, err := allocator.ParseTag(name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, ErrClosed
	}
	if t = c.mu.tags[name]; t == nil {
		if t, err = newTag(c, parsed); err != nil {
			return nil, err
		}
		c.mu.tags[name] = t
	}
	t.kept = t.kept || keep
	return t, nil
}

func (c *Client) tags() []*Tag {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.mu.tags))
}

// worker returns the worker of a width, or nil if the client was closed.
func (c *Client) worker(bits int) *worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil
	}
	w := c.mu.workers[bits]
	if w == nil {
		w = &worker{client: c, bits: bits}
		w.mu.tags = make(map[*timed]struct{})
		c.mu.workers[bits] = w
	}
	return w
}

func (c *Client) workers() []*worker {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.mu.workers))
}

const (
	// lookEvery is how often the keeper checks every tag: timers alone are not
	// enough, because they stop while a machine is suspended.
	lookEvery = time.Second
	// dropUnused is how long a tag without a handle may be unused before it is dropped
	// from memory; dropUnknown is the same for a tag of which nothing was ever leased.
	dropUnused  = 30 * time.Minute
	dropUnknown = time.Minute
)

// keep is the keeper. It looks after all leases until ctx ends: it drops segments that have
// ended, replaces segments and renews windows that will end soon, follows the layout, and
// measures rates. It drops tags that are no longer used.
func (c *Client) keep(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.poke:
		}
		now, newest := time.Now(), *c.newest.Load()
		next := now.Add(lookEvery)
		for _, t := range c.tags() {
			next = earlier(next, t.tend(now, newest))
			if t.keeping.unused >= dropUnknown {
				c.dropIfUnused(t)
			}
		}
		for _, w := range c.workers() {
			next = earlier(next, w.tend(newest.Version))
		}
		timer.Reset(time.Until(next))
	}
}

// earlier returns the earlier of two times; the zero time does not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// keeperLooksBefore makes sure that the keeper looks at that time at the latest. It looks
// each lookEvery in any case.
func (c *Client) keeperLooksBefore(at time.Time) {
	if !at.IsZero() && time.Until(at) < lookEvery {
		c.wakeKeeper()
	}
}

func (c *Client) wakeKeeper() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// dropIfUnused drops a tag that was unused for long.
func (c *Client) dropIfUnused(t *Tag) {
	after := dropUnused
	if t.timed.Load() == nil && t.chain.Status().Refills == 0 {
		after = dropUnknown
	}
	c.dropIfUnusedFor(t, after)
}

// dropIfUnusedFor drops a tag without a handle that was unused for after.
func (c *Client) dropIfUnusedFor(t *Tag, after time.Duration) {
	c.mu.RLock()
	kept := t.kept
	c.mu.RUnlock()
	// A time-ordered tag is detached before it is dropped, so that a new Tag of the same name
	// never issues beside it.
	if d := t.timed.Load(); kept || d != nil && !d.worker.detachUnused(d, after) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.kept && t.timed.Load() == nil && t.chain.CloseUnused(after) {
		delete(c.mu.tags, string(t.name))
	}
}

// heard notes the own room's part of a layout, and reports whether that layout is
// the newest so far.
func (c *Client) heard(part allocator.Part) (current bool) {
	for {
		newest := c.newest.Load()
		if part.Version <= newest.Version {
			return part.Version == newest.Version
		}
		if c.newest.CompareAndSwap(newest, &part) {
			if newest.Version != 0 {
				c.log.Info("layout changed: the client replaces segments that are out of the room's range",
					"version", part.Version, "before", newest.Version)
				c.wakeKeeper()
				if c.layout.Load() != nil { // which a program routes by
					c.pool.askConsole()
				}
			}
			return true
		}
	}
}
