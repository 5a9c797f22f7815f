package room

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

// maxLent is how many workers an instance lends to callers at a time. It remembers its
// windows for a recover, 10,000 of them (journal.MaxWindows), its own included.
const maxLent = 5000

// Ask is a caller's request for a window.
type Ask struct {
	Nonce string        // new in each request: with it the caller later proves that it got the answer
	Held  int64         // the caller's worker of the tag's width
	Proof string        // the nonce of the request for that one; empty for none
	Age   time.Duration // of the caller's process
	By    allocator.Holder
}

// lent has the workers of callers, in this process's memory only: a caller of an
// earlier process gets another worker, and the old window ends by itself.
type lent struct {
	sync.Mutex
	workers map[record.WorkerID]*lentWorker
	taking  map[string]int64 // workers that are being taken, by the caller's name
}

// lentWorker is a worker that a caller has.
//
// A caller sends the nonce of its last answered request. Each granted request replaces that
// nonce by its own, so each nonce counts once. So a caller that missed the answer to a
// renewal gets another worker, and so does a clone of the caller's process, which sends the
// same nonce. A rule that let the first go on would let the second go on, too.
type lentWorker struct {
	sync.Mutex // held during calls to etcd
	worker     *worker.Worker
	by         string // the name of the caller that took it
	nonce      string // the valid nonce
}

// Lend gives a caller a worker of a tag's width for a window. It renews the worker that the
// caller has, if it may, and otherwise takes a new one. Its errors are a
// *timeid.NoWindowError, with the kinds of worker.Workers' errors, TooMany among them.
func (w *Windows) Lend(ctx context.Context, tag *TimeTag, ask Ask) (*worker.Worker, error) {
	held, err := w.goOn(ctx, tag, ask)
	if held == nil && err == nil {
		held, err = w.lend(ctx, tag, ask)
	}
	if err != nil {
		return nil, &timeid.NoWindowError{Err: err}
	}
	return held, nil
}

// goOn returns the worker that the caller proves to have, renewed if that is due. It
// returns nil if the caller has no worker with which it may go on.
func (w *Windows) goOn(ctx context.Context, tag *TimeTag, ask Ask) (*worker.Worker, error) {
	if ask.Proof == "" {
		return nil, nil
	}
	id := record.WorkerID{Bits: tag.pool.bits, Number: ask.Held}
	w.lent.Lock()
	held := w.lent.workers[id]
	w.lent.Unlock()
	if held == nil {
		return nil, nil
	}
	held.Lock()
	defer held.Unlock()
	if held.nonce != ask.Proof {
		w.cfg.Logger.Warn("a caller sent a nonce that was used before: it missed an answer, or is a clone; "+
			"it gets another worker", "worker", id.String())
		return nil, nil
	}
	err := w.cfg.Workers.Check(ctx, held.worker)
	if err == nil && w.cfg.Workers.Due(held.worker) {
		if err = w.cfg.Workers.MayKeep(held.worker, ask.By); err == nil {
			err = w.cfg.Workers.Renew(ctx, held.worker)
		}
	}
	var moved *worker.MovedError
	switch {
	case err == nil:
		held.nonce = ask.Nonce
		return held.worker, nil
	case errors.As(err, &moved), held.worker.Lost() != nil:
		w.cfg.Logger.Info("a caller's worker is no longer its own: it gets another",
			"worker", id.String(), "error", err)
		w.takeBack(ctx, held)
		return nil, nil
	}
	return nil, err
}

// takeBack forgets a worker that a caller may not go on with. Its window stays.
func (w *Windows) takeBack(ctx context.Context, held *lentWorker) {
	w.lent.Lock()
	if id := held.worker.ID(); w.lent.workers[id] == held {
		delete(w.lent.workers, id)
	}
	w.lent.Unlock()
	_ = w.cfg.Workers.GiveBack(ctx, held.worker, 0) // for a caller's worker it writes nothing, and cannot fail
}

// lend takes a worker for a caller.
func (w *Windows) lend(ctx context.Context, tag *TimeTag, ask Ask) (*worker.Worker, error) {
	if err := w.mayLend(ask.By); err != nil {
		return nil, err
	}
	taken, err := w.cfg.Workers.Take(ctx, worker.Request{Bits: tag.pool.bits, Tick: tag.bits.Unit, Caller: true,
		Age: ask.Age, Longest: w.cfg.Hold, By: ask.By})
	w.lent.Lock()
	defer w.lent.Unlock()
	if w.lent.taking[ask.By.Name]--; w.lent.taking[ask.By.Name] == 0 {
		delete(w.lent.taking, ask.By.Name)
	}
	if err != nil {
		return nil, err
	}
	w.lent.workers[taken.ID()] = &lentWorker{worker: taken, by: ask.By.Name, nonce: ask.Nonce}
	return taken, nil
}

// mayLend forgets the workers whose windows ended without a renewal, and reserves a place
// for one that will be taken. Its error is TooMany.
func (w *Windows) mayLend(by allocator.Holder) error {
	w.lent.Lock()
	defer w.lent.Unlock()
	has, free := w.lent.taking[by.Name], maxLent-int64(len(w.lent.workers))
	for _, taking := range w.lent.taking {
		free -= taking
	}
	for id, held := range w.lent.workers {
		switch {
		case held.worker.Window().Until < w.now()-record.MaxAhead.Milliseconds():
			delete(w.lent.workers, id)
			free++
		case held.by == by.Name:
			has++
		}
	}
	if free <= 0 {
		return allocator.Errorf(allocator.TooMany,
			"callers of this instance have %d workers; allowed: %d; ask another instance of the room, "+
				"or call Next for each ID", maxLent-free, maxLent)
	}
	by.Most = 0 // which Take checks
	if err := by.Another("workers", has, has, free, time.Second); err != nil {
		return err
	}
	w.lent.taking[by.Name]++
	return nil
}

// lentNow returns how many workers callers have now, by width.
func (w *Windows) lentNow() map[int]int {
	w.lent.Lock()
	defer w.lent.Unlock()
	counts := make(map[int]int)
	for id, held := range w.lent.workers {
		if held.worker.Lost() == nil && w.now() < held.worker.Window().Until {
			counts[id.Bits]++
		}
	}
	return counts
}
