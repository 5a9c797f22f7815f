package worker

import (
	"context"
	"fmt"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// attempts bounds how often a call starts over because its knowledge was out of date.
const attempts = 20

const (
	// listed is how many workers of a slice are read at once. A room that has more chooses
	// among these.
	listed = 10_000
	// beatsRead is how many heartbeats a clock is compared with.
	beatsRead = 200
)

// Take leases a worker. Its errors are Invalid, NoRange (the room's slice has no such worker),
// a *BusyError (none is free yet), for a caller a *CallersError or that of its Holder, a *ClockError (the clock is
// ahead of the others), and those of a lease: Unavailable, WentBack, Refused. After
// Unavailable, etcd may have the window all the same; another Take finds that.
func (w *Workers) Take(ctx context.Context, r Request) (_ *Worker, err error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	ctx, end := w.cfg.Span(ctx, "worker.Take", r.Bits)
	defer func() { end(err) }()
	for range attempts {
		taken, err := w.take(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("taking a worker of %d bits in room %s: %w", r.Bits, w.instance.Room(), err)
		}
		if taken != nil {
			return taken, nil
		}
	}
	return nil, allocator.Errorf(allocator.Unavailable,
		"taking a worker of %d bits in room %s: lost the race for it %d times", r.Bits, w.instance.Room(), attempts)
}

// take makes one try. It returns nil without an error if its knowledge was out of date.
func (w *Workers) take(ctx context.Context, r Request) (*Worker, error) {
	i := w.instance
	f, err := i.Footing(ctx)
	if err != nil {
		return nil, err
	}
	slice, err := w.slice(f, r)
	if err != nil {
		return nil, err
	}
	numbers, ok, err := i.ReadWorkers(ctx, f, r.Bits, slice, listed, beatsRead)
	if err != nil || !ok {
		return nil, err
	}
	if err := w.clocks.check(ctx, w.cfg, i, w.cfg.Now(), numbers.Heartbeats); err != nil {
		return nil, err
	}
	c, err := w.claim(f, r, slice, numbers)
	if err != nil {
		return nil, err
	}
	kept := false
	defer func() {
		if !kept {
			w.unclaim(c.WorkerID)
		}
	}()
	now := w.now()
	from := c.free // an own window is as its key says
	if !c.mine {
		from = begin(now, c.free, r.Tick)
	}
	length := w.cfg.length(w.age(r, 0), r)
	lease := record.Worker{
		Room: i.Room(), Instance: i.Name(), Incarnation: i.Incarnation(),
		From: from, Until: end(now, from, length, 2*w.cfg.Reserve, r.Tick), Stamp: f.Stamp, Clock: max(now, 0),
		Caller: r.Caller,
	}
	w.with(func() { w.mu.unknownTakes[c.WorkerID] = from })
	done, err := i.PutWorker(ctx, f, c.Number, lease, false)
	// If the answer is lost here, the key may have this incarnation, and no generator has the
	// window: the next Take goes on with it.
	if err != nil || !done {
		return nil, err
	}
	taken := &Worker{request: r, id: c.WorkerID, taken: w.cfg.Elapsed()}
	taken.leased(now, lease.Window())
	kept = true
	w.with(func() {
		w.mu.held[taken.id] = taken
		delete(w.mu.unknownTakes, taken.id)
	})
	w.cfg.Logger.Info("worker taken", "worker", c.WorkerID.String(), "from", lease.From, "until", lease.Until, "caller",
		r.Caller, "before", string(c.by))
	return taken, nil
}

// slice returns the workers that a request may choose among. Its error is NoRange, or Invalid
// for a pinned number.
func (w *Workers) slice(f ledger.Footing, r Request) (allocator.Range, error) {
	room, version := w.instance.Room(), f.Layout.Layout.Version
	slice, serves := timeid.SliceOf(f.Layout.Layout, room, r.Bits)
	if !serves {
		return slice, allocator.Errorf(allocator.NoRange, "room %s has no range in layout version %d", room, version)
	}
	callers := w.callers(slice)
	switch number, pinned := r.Pin.Number(); {
	case pinned && number >= slice.Width():
		return slice, allocator.Errorf(allocator.Invalid,
			"worker: %d; allowed: 0 to %d, as the slice of room %s has %d workers in layout version %d",
			number, slice.Width()-1, room, slice.Width(), version)
	case pinned:
		return allocator.Range{Lower: slice.Lower + number, Upper: slice.Lower + number + 1}, nil
	case r.Caller:
		slice.Lower = slice.Upper - callers
		if callers == 0 {
			return slice, &CallersError{Room: room, Bits: r.Bits}
		}
	case slice.Width() == 0:
		return slice, allocator.Errorf(allocator.NoRange,
			"the range of room %s is too narrow for a worker of %d bits in layout version %d", room, r.Bits, version)
	}
	return slice, nil
}

// unclaim notes that no Take is under way for a worker.
func (w *Workers) unclaim(id record.WorkerID) { w.with(func() { delete(w.mu.held, id) }) }
