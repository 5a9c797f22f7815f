package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// timed is what a tag of time-ordered IDs has in the windows of a worker.
type timed struct {
	tag    *Tag
	worker *worker // of the tag's width
	layout timeid.Layout
	wide   bool // layout is timeid.Wide: the IDs exist only as texts

	generator atomic.Pointer[timeid.Generator] // nil while there is no window
	used      atomic.Bool                      // since the keeper looked last

	// Guarded by worker.mu.
	cfg    timeid.Config // the tag's settings
	lately time.Time     // when the keeper last saw the tag in use
	ended  bool          // no generator is made any more
}

// errEnded means that the tag may no longer have time-ordered IDs: it was deleted, or
// dropped from memory. The caller then asks the chain.
var errEnded = &allocator.Error{Kind: allocator.Unavailable, Msg: "tag of time-ordered IDs ended"}

// tryNext returns an ID if there is a window with one.
func (d *timed) tryNext() (id int64, ok bool) {
	g := d.generator.Load()
	if g == nil || d.wide {
		return 0, false
	}
	if id, ok = g.TryNext(); ok {
		d.use()
	}
	return id, ok
}

// next returns an ID. If there is no window, the room issues it.
func (d *timed) next(ctx context.Context) (int64, error) {
	if d.wide {
		return 0, d.tag.ofText(texts.ErrNoNumber)
	}
	return issue(ctx, d, func(g *timeid.Generator) (int64, error) { return g.Next(ctx) }, func() (int64, error) {
		answer, err := d.tag.nextOfRoom(ctx)
		return answer.GetId(), err
	})
}

// nextN appends n IDs to dst. Those that a generator appended before its window ended are a gap.
func (d *timed) nextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error) {
	if d.wide {
		return dst, d.tag.ofText(texts.ErrNoNumber)
	}
	if err := d.checkCount(n); err != nil {
		return dst, err
	}
	own := func(g *timeid.Generator) ([]allocator.Run, error) { return g.NextN(ctx, n, dst) }
	return issue(ctx, d, own, func() (runs []allocator.Run, err error) {
		runs = dst
		for left := n; left > 0 && err == nil; left -= api.MaxBatch {
			var answer *marchv1.NextBatchResponse
			answer, err = d.batch(ctx, &marchv1.NextBatchRequest{Count: min(left, api.MaxBatch)}, nil)
			runs = api.AppendRuns(runs, answer.GetRuns())
		}
		return runs, err
	})
}

// appendNext takes an ID that exists only as a text, and appends that to dst. With an error
// it returns dst as it was.
func (d *timed) appendNext(ctx context.Context, dst []byte, text *tagText) ([]byte, error) {
	if g := d.generator.Load(); g != nil {
		if id, ok := g.TryNext(); ok {
			d.use()
			return text.AppendParts(dst, g.Parts(id))
		}
	}
	own := func(g *timeid.Generator) ([]byte, error) {
		id, err := g.Next(ctx)
		if err != nil {
			return dst, err
		}
		return text.AppendParts(dst, g.Parts(id))
	}
	return issue(ctx, d, own, func() ([]byte, error) {
		answer, err := d.batch(ctx, &marchv1.NextBatchRequest{Count: 1, Texts: true},
			func(answer *marchv1.NextBatchResponse) error {
				if n := len(answer.GetTexts()); n != 1 {
					return allocator.Errorf(allocator.Internal, "its answer makes no sense: %d texts; asked for: 1", n)
				}
				return nil
			})
		if err != nil {
			return dst, err
		}
		return append(dst, answer.GetTexts()[0]...), nil
	})
}

// batch has a room issue IDs.
func (d *timed) batch(ctx context.Context, request *marchv1.NextBatchRequest,
	check func(*marchv1.NextBatchResponse) error) (*marchv1.NextBatchResponse, error) {
	request.Tag = string(d.tag.name)
	return ask(ctx, d.tag.client.pool, "tag "+request.Tag, marchv1.IDServiceClient.NextBatch, request, check)
}

// checkCount checks the number of IDs of one call. Its error is Invalid.
func (d *timed) checkCount(n int64) error {
	if n < 1 || n > d.layout.PerSecond() {
		return allocator.Errorf(allocator.Invalid,
			"count: %d; allowed: 1 to %d, what one worker has in a second", n, d.layout.PerSecond())
	}
	return nil
}

// use notes that the tag is used. It writes once for each look of the keeper.
func (d *timed) use() {
	if !d.used.Load() {
		d.used.Store(true)
	}
}

// issue returns what own returns for the tag's generator. If there is no window, it waits for one. If
// the rooms give none, it returns what room returns, which has a room issue the IDs with its own
// worker. Its errors are those of own and room, errEnded, and Unavailable if ctx ended first.
func issue[T any](ctx context.Context, d *timed, own func(*timeid.Generator) (T, error),
	room func() (T, error)) (got T, err error) {
	d.use()
	for again := true; again; {
		g := d.generator.Load()
		if g != nil {
			got, err = own(g)
			outside, is := errors.AsType[*timeid.WindowError](err)
			if !is && !errors.Is(err, error(timeid.ErrClosed)) {
				return got, err
			}
			if is && outside.Early { // the room's clock is ahead of ours
				break
			}
		}
		if again, err = d.worker.await(ctx, d, g); err != nil {
			return got, err
		}
	}
	if got, err = room(); err != nil && allocator.KindOf(err) == allocator.NotFound {
		d.worker.detach(d)
	}
	return got, err
}

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
	unused := w.unused(d) >= after
	if unused {
		w.end(d)
	}
	return unused
}

// unused returns how long a tag was unused. The lock is held.
func (w *worker) unused(d *timed) time.Duration {
	if d.used.Swap(false) {
		d.lately = time.Now()
	}
	return time.Since(d.lately)
}

// close ends all generators. Nothing is asked of a room after it.
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
	w.generate(d)
	switch {
	case d.ended:
		return nil, false, errEnded
	case d.generator.Load() != failed:
		return nil, true, nil
	case w.mu.asking == nil && w.client.age() < w.mu.asked+w.mu.pause:
		return nil, false, nil
	case w.mu.asking == nil:
		w.ask(d)
	}
	return w.mu.asking, false, nil
}

// forget closes the generators of the worker, and forgets it. The lock is held.
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
	old := w.mu.layout < newest
	if old && len(used) == 0 {
		w.forget() // the next caller gets another
		return time.Time{}
	}
	due := w.mu.asked + w.mu.pause
	if !old && time.Duration(w.client.clock())*time.Millisecond < w.mu.renewTick {
		due = max(due, w.mu.renewAt)
	}
	if w.client.age() < due {
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

// ask begins to ask a room for a window for tags, in the name of the first of them. The lock is
// held, and the worker is not closed, so Close waits for the request.
func (w *worker) ask(tags ...*timed) {
	asking := make(chan struct{})
	w.mu.asking, w.mu.asked = asking, w.client.age()
	w.client.work.Go(func() {
		defer close(asking)
		var err error
		for _, d := range tags {
			err = cmp.Or(err, w.lease(w.client.running, d))
		}
		w.answered(err)
	})
}

// answered notes the outcome of a try to get a window.
func (w *worker) answered(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.asking = nil
	if w.mu.closed {
		return
	}
	if err == nil {
		w.mu.failed, w.mu.pause = nil, 0
		return
	}
	if w.mu.failed == nil {
		w.client.log.Warn("no window for time-ordered IDs: a room issues them one by one where a window has ended",
			"worker_bits", w.bits, "error", err)
	}
	w.mu.failed, w.mu.pause = err, min(max(2*w.mu.pause, leastPause), mostPause)
}

// lease asks for a window in the name of one tag, and uses the answer.
func (w *worker) lease(ctx context.Context, d *timed) error {
	c := w.client
	w.mu.Lock()
	lender, layout := w.mu.lender, c.newest.Load().Version
	r := &marchv1.WindowRequest{Nonce: rand.Text(), Age: durationpb.New(c.age())}
	if lender != nil {
		r.Held = &marchv1.HeldWorker{Worker: w.mu.number, Nonce: w.mu.nonce}
	}
	w.mu.Unlock()
	l, err := d.tag.lease(ctx, 1, r, lender, func(e *endpoint, err error) {
		if e == lender && api.NoWindow(err) && allocator.KindOf(err) == allocator.TooMany {
			w.giveUp(lender) // the lender does not renew the worker, and has no other
		}
	})
	if err != nil && allocator.KindOf(err) == allocator.NotFound {
		w.detach(d)
		return nil
	}
	if err != nil {
		return err
	}
	if !l.from.other {
		layout = max(layout, l.serves.Version)
	}
	at, err := w.take(d, l, r.GetNonce(), layout)
	c.keeperLooksBefore(at)
	return err
}

// giveUp forgets the worker that was lent by lender.
func (w *worker) giveUp(lender *endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.lender == lender {
		w.forget()
	}
}

// take uses a lease that was asked for with a nonce, and returns when to renew the window. Its error
// says why the lease allows no IDs.
func (w *worker) take(d *timed, l lease, nonce string, layout int64) (renewAt time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.timed == nil || l.timed.Layout != d.layout {
		w.end(d) // the name now belongs to a counter, or to another tag
		return renewAt, nil
	}
	got := l.window
	if got == nil {
		return renewAt, allocator.Errorf(allocator.Internal,
			"room at %s: its answer makes no sense: it has no window", l.from.address)
	}
	window := timeid.Window{From: got.GetFromMs(), Until: got.GetUntilMs()}
	if goesOn := w.mu.lender == l.from && w.mu.number == got.GetWorker() && w.mu.window.From == window.From; !goesOn {
		w.forget()
		w.mu.number, w.mu.window = got.GetWorker(), window
		w.client.log.Info("a room lends a worker", "worker_bits", w.bits, "worker",
			got.GetWorker(), "until_ms", window.Until,
			"room", got.GetRoom(), "instance", got.GetInstance())
	}
	w.mu.lender, w.mu.nonce, w.mu.layout = l.from, nonce, layout
	w.mu.window.Until = max(w.mu.window.Until, window.Until)
	now := w.client.clock()
	half := time.Duration(max(w.mu.window.Until-max(got.GetNowMs(), window.From), 0)) * time.Millisecond / 2
	w.mu.renewAt, w.mu.renewTick = w.client.age()+half, time.Duration(now)*time.Millisecond+half
	renewAt = w.client.began.Add(w.mu.renewAt)
	if ahead := time.Duration(l.sent-got.GetNowMs()) * time.Millisecond; ahead > timeid.DefaultMaxAhead {
		w.forget() // its IDs would always sort too late
		return renewAt, allocator.Errorf(allocator.Refused,
			"the clock is %v ahead of that of the room at %s; allowed: %v",
			ahead, l.from.address, timeid.DefaultMaxAhead)
	}
	cfg := *l.timed
	cfg.Clock = d.cfg.Clock
	if !same(cfg, d.cfg) {
		w.shut(d)
		d.cfg = cfg
	}
	for d := range w.mu.tags {
		if g := d.generator.Load(); g != nil {
			if err := g.Extend(w.mu.window); err != nil {
				w.client.log.Error("a window does not fit the tag", "tag", d.tag.name, "error", err)
			}
		}
		w.generate(d)
	}
	if now >= w.mu.window.Until {
		return renewAt, allocator.Errorf(allocator.Unavailable,
			"the clock is past the end of the window that the room at %s gives", l.from.address)
	}
	return renewAt, nil
}

// same reports whether a tag has the same settings in both.
func same(a, b timeid.Config) bool {
	return a.Sequence == b.Sequence && a.CarryTo == b.CarryTo && a.RandomBelow == b.RandomBelow &&
		a.Rollback == b.Rollback && a.MaxWait == b.MaxWait
}
