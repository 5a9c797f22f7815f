package worker

import (
	"context"
	"fmt"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// Renew moves the end of a worker's window. After a *MovedError or a *LostError the worker is
// not renewed any longer; the caller takes another worker and then calls GiveBack. After a
// *ClockError, or an error of a lease (Unavailable, WentBack, Refused), the window stays as it
// was. Renew may be called again then; it reads the key back.
func (w *Workers) Renew(ctx context.Context, held *Worker) (err error) {
	held.renewing.Lock()
	defer held.renewing.Unlock()
	ctx, end := w.cfg.Span(ctx, "worker.Renew", held.id.Bits)
	defer func() { end(err) }()
	for range attempts {
		done, err := w.renew(ctx, held)
		if err != nil {
			return fmt.Errorf("renewing worker %v: %w", held.id, err)
		}
		if done {
			return nil
		}
	}
	return allocator.Errorf(allocator.Unavailable,
		"renewing worker %v: the cluster's state changed %d times", held.id, attempts)
}

// renew makes one try. It returns false without an error if its knowledge was out of date.
func (w *Workers) renew(ctx context.Context, held *Worker) (bool, error) {
	if lost := held.Lost(); lost != nil {
		return false, lost
	}
	f, err := w.instance.Footing(ctx)
	if err != nil {
		return false, err
	}
	if err := w.fits(f, held); err != nil {
		return false, held.loses(err)
	}
	numbers, lease, ok, err := w.read(ctx, f, held)
	if err != nil || !ok {
		return false, err
	}
	if err := w.clocks.check(ctx, w.cfg, w.instance, w.cfg.Now(), numbers.Heartbeats); err != nil {
		return false, err
	}
	r, now := held.request, w.now()
	length := w.cfg.length(w.age(r, w.cfg.Elapsed()-held.taken), r)
	// An end in etcd is never lowered here, even if its answer was lost, and the clock stays beside
	// the end that follows from it.
	lease.Until = max(lease.Until, end(now, lease.From, length, 2*w.cfg.Reserve, r.Tick))
	lease.Stamp, lease.Clock = f.Stamp, max(lease.Clock, now)
	done, err := w.instance.PutWorker(ctx, f, numbers.Found[0], lease, true)
	if err != nil || !done {
		return false, err
	}
	held.leased(now, lease.Window())
	return true, nil
}

// Check returns a *MovedError if the room's slice under the layout in force no longer has a
// worker. Its other errors are those of a lease; then it is not known.
func (w *Workers) Check(ctx context.Context, held *Worker) error {
	f, err := w.instance.Footing(ctx)
	if err != nil {
		return err
	}
	return w.fits(f, held)
}

// Holds reports whether this process may use a worker: it is not lost, and no recover went on
// without this instance since it was taken.
func (w *Workers) Holds(held *Worker) bool {
	return held.Lost() == nil && w.instance.HoldsWorker(held.id)
}

// Due reports whether a worker is to be renewed now: half of its window is over, or it is lost.
func (w *Workers) Due(held *Worker) bool {
	return w.now() >= held.RenewAt().UnixMilli() || !w.Holds(held)
}

// fits returns a *MovedError if the room's slice no longer has a worker.
func (w *Workers) fits(f ledger.Footing, held *Worker) error {
	l, room := f.Layout.Layout, w.instance.Room()
	if slice, _ := timeid.SliceOf(l, room, held.id.Bits); !slice.Contains(held.id.Number) {
		return &MovedError{Worker: held.id, Room: room, Version: l.Version}
	}
	return nil
}

// read reads the keys of a worker that this process has, and heartbeats. It returns the window as
// etcd has it. Its error is a *LostError if another process has the number, or had it since. If
// the room's key is of the stamp in force, this process read the other rooms' keys under that
// layout before: no other room has written one since.
func (w *Workers) read(ctx context.Context, f ledger.Footing,
	held *Worker) (numbers ledger.Numbers, lease record.Worker, ok bool, err error) {
	i, id := w.instance, held.id
	if !i.HoldsWorker(id) {
		return numbers, lease, false, held.loses(&LostError{Worker: id})
	}
	numbers, ok, err = i.ReadWorkers(ctx, f, id.Bits, allocator.Range{Lower: id.Number, Upper: id.Number + 1}, 2,
		beatsRead)
	if err != nil || !ok || len(numbers.Found) == 0 {
		return numbers, lease, false, err
	}
	n := numbers.Found[0]
	lease, own := n.Own(i.Incarnation(), held.Window().From)
	other, over := n.Over(lease)
	switch {
	case n.Err != nil && n.Ours.Stamp != f.Stamp:
		return numbers, lease, false, n.Err
	case !own:
		return numbers, lease, false, held.loses(&LostError{Worker: id, By: n.Last().ID()})
	case over && n.Ours.Stamp != f.Stamp:
		return numbers, lease, false, held.loses(&LostError{Worker: id, By: other.ID()})
	}
	return numbers, lease, true, nil
}

// GiveBack ends a worker's window early, for the next owner. used is the end of the last tick
// that any generator of the worker used, as timeid.Generator.Close returns it, or the window's
// start if none was used. All generators of the worker must be closed. The window of a worker
// that was taken for a caller stays. After an error the end may have moved or not; either is
// safe.
func (w *Workers) GiveBack(ctx context.Context, held *Worker, used int64) (err error) {
	held.renewing.Lock()
	defer held.renewing.Unlock()
	_ = held.loses(errGivenBack)
	has := false
	w.with(func() { has = w.mu.held[held.id] == held })
	if !has {
		return nil // its window ended, and another Take may have the number
	}
	defer func() {
		w.unclaim(held.id)
		w.instance.ReleaseWorker(held.id)
	}()
	if held.request.Caller {
		return nil
	}
	ctx, end := w.cfg.Span(ctx, "worker.GiveBack", held.id.Bits)
	defer func() { end(err) }()
	for range attempts {
		done, err := w.giveBack(ctx, held, used)
		if err != nil {
			return fmt.Errorf("giving worker %v back: %w", held.id, err)
		}
		if done {
			return nil
		}
	}
	return allocator.Errorf(allocator.Unavailable,
		"giving worker %v back: the cluster's state changed %d times", held.id, attempts)
}

var errGivenBack = &allocator.Error{Kind: allocator.Unavailable, Msg: "the worker was given back"}

// giveBack makes one try.
func (w *Workers) giveBack(ctx context.Context, held *Worker, used int64) (bool, error) {
	f, err := w.instance.Footing(ctx)
	if err != nil {
		return false, err
	}
	numbers, lease, ok, err := w.read(ctx, f, held)
	if err != nil || !ok {
		return false, err
	}
	until := max(used, lease.From)
	if until >= lease.Until {
		return true, nil // an earlier try did it, or all of the window was used
	}
	lease.Until = until
	done, err := w.instance.PutWorker(ctx, f, numbers.Found[0], lease, true)
	return done, err
}
