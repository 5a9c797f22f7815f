package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// ask asks a room for a window for tags, in the name of the first of them, and returns a
// channel that is closed when the request has ended. The lock is held.
func (w *worker) ask(tags ...*timed) (asking chan struct{}) {
	asking = make(chan struct{})
	w.mu.asking, w.mu.asked = asking, w.client.age()
	if !w.client.goes(func(ctx context.Context) {
		err := w.lease(ctx, tags[0])
		for _, d := range tags[1:] {
			err = cmp.Or(err, w.lease(ctx, d))
		}
		w.asked(err)
		close(asking)
	}) {
		close(asking)
	}
	return asking
}

// asked notes the outcome of a try to get a window.
func (w *worker) asked(err error) {
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
	var answer *marchv1.LeaseResponse
	var sent int64
	from, err := c.pool.ask(ctx, "window of tag "+string(d.tag.name), lender,
		func(ctx context.Context, e *endpoint) (err error) {
			sent = c.clock()
			answer, err = e.ids.Lease(ctx, &marchv1.LeaseRequest{Tag: string(d.tag.name), Count: 1, Window: r})
			if e == lender && api.NoWindow(err) && allocator.KindOf(err) == allocator.TooMany {
				w.giveUp(lender) // the lender does not renew the worker, and has no other
			}
			return err
		})
	if err != nil {
		if allocator.KindOf(err) == allocator.NotFound {
			w.detach(d)
			return nil
		}
		return err
	}
	if !from.other {
		serves := api.PartFromProto(answer.GetServes())
		c.heard(serves)
		layout = max(layout, serves.Version)
	}
	d.tag.setText(answer.GetFormat(), answer.GetKeyCheck())
	err = w.take(d, from, r.GetNonce(), sent, answer.GetTime())
	w.mu.Lock()
	w.mu.layout = layout
	at := c.began.Add(w.mu.renewAt)
	w.mu.Unlock()
	c.keeperLooksBefore(at)
	return err
}

// take uses the answer to a request that was sent when the clock was at sent. Its error
// says why the answer allows no IDs.
func (w *worker) take(d *timed, from *endpoint, nonce string, sent int64, answer *marchv1.TimeLease) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if answer == nil {
		w.end(d) // the name now belongs to a counter
		return nil
	}
	cfg, err := api.TimeTagFromProto(answer.GetTag())
	if err == nil && cfg.Layout != d.layout {
		w.end(d) // the name now belongs to another tag
		return nil
	}
	got := answer.GetWindow()
	window := timeid.Window{From: got.GetFromMs(), Until: got.GetUntilMs()}
	if err == nil && (got == nil || window.From >= window.Until || got.GetWorker() < 0 ||
		got.GetWorker() >= cfg.Layout.Workers()) {
		err = allocator.Errorf(allocator.Internal, "worker %d from %d until %d ms", got.GetWorker(),
			window.From, window.Until)
	}
	if err != nil {
		return allocator.Errorf(allocator.Internal, "room at %s: its answer makes no sense: %w", from.address, err)
	}
	if goesOn := w.mu.lender == from && w.mu.number == got.GetWorker() && w.mu.window.From == window.From; !goesOn {
		w.forget()
		w.mu.number, w.mu.window = got.GetWorker(), window
		w.client.log.Info("a room lends a worker", "worker_bits", w.bits, "worker",
			got.GetWorker(), "until_ms", window.Until,
			"room", got.GetRoom(), "instance", got.GetInstance())
	}
	w.mu.lender, w.mu.nonce = from, nonce
	w.mu.window.Until = max(w.mu.window.Until, window.Until)
	now := w.client.clock()
	half := time.Duration(max(w.mu.window.Until-max(got.GetNowMs(), window.From), 0)) * time.Millisecond / 2
	w.mu.renewAt, w.mu.renewTick = w.client.age()+half, time.Duration(now)*time.Millisecond+half
	if ahead := time.Duration(sent-got.GetNowMs()) * time.Millisecond; ahead > timeid.DefaultMaxAhead {
		w.forget() // its IDs would always sort too late
		return allocator.Errorf(allocator.Refused, "the clock is %v ahead of that of the room at %s; allowed: %v",
			ahead, from.address, timeid.DefaultMaxAhead)
	}
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
		return allocator.Errorf(allocator.Unavailable,
			"the clock is past the end of the window that the room at %s gives", from.address)
	}
	return nil
}

// same reports whether a tag has the same settings in both.
func same(a, b timeid.Config) bool {
	return a.Sequence == b.Sequence && a.CarryTo == b.CarryTo && a.RandomBelow == b.RandomBelow &&
		a.Rollback == b.Rollback && a.MaxWait == b.MaxWait
}
