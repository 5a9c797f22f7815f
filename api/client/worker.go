package client

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// worker is the worker of a width that a room lends to the client, for all of the
// client's tags of that width.
//
// The window has the ticks that the client may issue. Generators issue no other tick,
// whatever the clock does. So a window that is used late, or after its worker was given
// up, does no harm. A worker is given up if an answer has another one in its place. All
// generators of the old one are closed first, and those of the new one begin at or after
// the tick at which the old ones ended, so the tag's own IDs grow.
//
// A worker is never given back: the room lends it until the end of its window in any
// case.
type worker struct {
	client *Client
	bits   int

	mu struct {
		sync.Mutex
		closed bool
		tags   map[*timed]struct{}

		lender *endpoint // that lent the worker; nil while there is none
		number int64
		nonce  string // of the last answered request, which proves that the worker is ours
		window timeid.Window
		layout int64 // the newest layout version known when the worker was requested
		used   int64 // the end of the last tick that a closed generator may have used, Unix ms

		// when half of the window is over: by the monotonic clock, and by the clock of IDs
		renewAt, renewTick time.Duration
		asked              time.Duration // the last try
		asking             chan struct{} // closed when the try under way ends; nil while there is none
		failed             error         // of the last try; nil after a success
		pause              time.Duration // between the last try and the next; 0 after a success
	}
}

// leastPause and mostPause bound the pause after a try to get a window that failed.
const (
	leastPause = time.Second
	mostPause  = time.Minute
)

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

// clock returns the clock that IDs follow, in Unix ms.
func (c *Client) clock() int64 {
	if c.opts.clock != nil {
		return c.opts.clock()
	}
	return time.Now().UnixMilli()
}

// age returns how long the client has run.
func (c *Client) age() time.Duration { return time.Since(c.began) }

// attach makes a tag one of time-ordered IDs.
func (w *worker) attach(t *Tag, cfg timeid.Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.client.mu.RLock() // so that the tag is not dropped meanwhile
	defer w.client.mu.RUnlock()
	if w.mu.closed || t.timed.Load() != nil || w.client.mu.tags[string(t.name)] != t {
		return
	}
	cfg.Clock = w.client.opts.clock
	d := &timed{tag: t, worker: w, layout: cfg.Layout, wide: cfg.Layout == timeid.Wide, cfg: cfg, lately: time.Now()}
	w.mu.tags[d] = struct{}{}
	w.generate(d)
	t.timed.Store(d)
}

// detach forgets that a tag has time-ordered IDs. Its callers then use the chain, which
// asks a room again.
func (w *worker) detach(d *timed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end(d)
}

// end is detach. The lock is held.
func (w *worker) end(d *timed) {
	w.shut(d)
	d.ended = true
	delete(w.mu.tags, d)
	d.tag.timed.CompareAndSwap(d, nil)
}

// detachUnused detaches a tag that was unused for after, and reports whether it was.
func (w *worker) detachUnused(d *timed, after time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unused(d) < after {
		return false
	}
	w.end(d)
	return true
}

// unused returns how long a tag was unused. The lock is held.
func (w *worker) unused(d *timed) time.Duration {
	if d.used.Swap(false) {
		d.lately = time.Now()
	}
	return time.Since(d.lately)
}

// close ends all generators.
func (w *worker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.closed = true
	for d := range w.mu.tags {
		w.end(d)
	}
}

// shut closes a tag's generator, if it has one. The lock is held.
func (w *worker) shut(d *timed) {
	if g := d.generator.Swap(nil); g != nil {
		w.mu.used = max(w.mu.used, g.Close())
	}
}

// generate makes a tag's generator, if there is a window. The lock is held.
func (w *worker) generate(d *timed) {
	if w.mu.lender == nil || d.ended || d.generator.Load() != nil {
		return
	}
	cfg := d.cfg
	cfg.Worker, cfg.Window = w.mu.number, timeid.Window{From: max(w.mu.window.From, w.mu.used),
		Until: w.mu.window.Until}
	g, err := timeid.New(cfg)
	if err != nil { // for example because no whole tick is left
		w.client.log.Debug("no generator in this window", "tag", d.tag.name, "error", err)
		return
	}
	d.generator.Store(g)
}

// await waits until a tag may have another generator than failed, or a longer window. It
// asks a room if no request is under way. It returns false if no window is available now.
// Its errors are errEnded, and Unavailable if ctx ended first.
func (w *worker) await(ctx context.Context, d *timed, failed *timeid.Generator) (again bool, err error) {
	asking, again, err := w.request(d, failed)
	if asking == nil {
		return again, err
	}
	select {
	case <-asking:
		return true, nil
	case <-ctx.Done():
		return false, allocator.Errorf(allocator.Unavailable, "tag %s: no window before the caller's deadline: %w",
			d.tag.name, context.Cause(ctx))
	}
}

// request is the part of await that does not wait. It returns the request under way, if await
// must wait for its end, or else await's results.
func (w *worker) request(d *timed, failed *timeid.Generator) (asking <-chan struct{}, again bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.ended {
		return nil, false, errEnded
	}
	w.generate(d)
	if d.generator.Load() != failed {
		return nil, true, nil
	}
	if w.mu.asking != nil {
		return w.mu.asking, false, nil
	}
	if w.client.age() < w.mu.asked+w.mu.pause {
		return nil, false, nil
	}
	return w.ask(d), false, nil
}

// giveUp closes the generators of the worker that was lent by lender, and forgets it.
func (w *worker) giveUp(lender *endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.lender == lender {
		w.forget()
	}
}

// forget is giveUp. The lock is held.
func (w *worker) forget() {
	for d := range w.mu.tags {
		w.shut(d)
	}
	w.mu.lender = nil
}

// tend renews the window when half of it has passed, if a tag was used since the last
// request. It also exchanges a worker that may be of an old layout. It returns when to
// look again, or the zero time.
func (w *worker) tend(newest int64) (again time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var used []*timed
	for d := range w.mu.tags {
		if w.unused(d); w.client.age()-time.Since(d.lately) >= w.mu.asked {
			used = append(used, d)
		}
	}
	if w.mu.closed || w.mu.lender == nil || w.mu.asking != nil {
		return time.Time{}
	}
	age := w.client.age()
	if w.mu.layout < newest && len(used) == 0 {
		w.forget() // the next caller gets another
		return time.Time{}
	}
	due := max(w.mu.renewAt, w.mu.asked+w.mu.pause)
	if w.mu.layout < newest || time.Duration(w.client.clock())*time.Millisecond >= w.mu.renewTick {
		due = w.mu.asked + w.mu.pause
	}
	if age < due {
		return w.client.began.Add(due)
	}
	if len(used) > 0 {
		// A new worker is requested in the name of the tag with the longest unit.
		slices.SortFunc(used, func(a, b *timed) int { return cmp.Compare(b.layout.Unit, a.layout.Unit) })
		w.ask(used...)
	}
	return time.Time{}
}

// status returns how long the window lasts, and why there is none.
func (w *worker) status() (lasts time.Duration, failed error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.lender != nil {
		lasts = time.Duration(max(w.mu.window.Until-w.client.clock(), 0)) * time.Millisecond
	}
	return lasts, w.mu.failed
}

// goes runs work in a goroutine that Close waits for. It returns false if the client
// was closed.
func (c *Client) goes(work func(context.Context)) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.mu.closed {
		return false
	}
	c.work.Go(func() { work(c.running) })
	return true
}
