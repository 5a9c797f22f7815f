package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/timeid"
)

// Keeper keeps a worker of each width that an instance's tags need: it takes one, renews
// it at half, takes another where it is lost or the slice no longer has it, and gives all
// back at the end.
type Keeper struct {
	workers *Workers
	cfg     KeeperConfig
	wake    chan struct{} // has room for one

	mu struct {
		sync.Mutex
		widths map[int]*width
	}
}

// KeeperConfig says what a keeper tells. Its functions are called from one goroutine;
// both must be set.
type KeeperConfig struct {
	Pin Pin // of every width
	// Changed is told of another worker of a width: its generators go on with now, which
	// is nil where there is none. It closes the generators of was, nil for none, and
	// returns the end of the last tick that any of them used: see Workers.GiveBack.
	Changed func(bits int, was, now *Worker) (used int64)
	// Extended is told of a longer window of a worker, for timeid.Generator.Extend.
	Extended func(w *Worker)
}

// width is the worker of one width.
type width struct {
	takes bool // a Take is under way: its answer may be of a layout before
	tick  time.Duration
	held  *Worker // nil for none
	err   error   // why there is none, or why it was not renewed; nil where all is well
	retry int64   // not before, Unix ms
}

const (
	// keepEvery is how often the keeper looks at its workers: a clock may jump.
	keepEvery = time.Second
	// giveBackWithin bounds the give-back of one worker at the end.
	giveBackWithin = 2 * time.Second
)

// NewKeeper returns a keeper of workers.
func NewKeeper(w *Workers, cfg KeeperConfig) *Keeper {
	k := &Keeper{workers: w, cfg: cfg, wake: make(chan struct{}, 1)}
	k.mu.widths = make(map[int]*width)
	return k
}

// Want has the keeper keep a worker of a width, for tags whose ticks are no longer than
// tick. It may be called for each tag.
func (k *Keeper) Want(bits int, tick time.Duration) {
	k.mu.Lock()
	of := k.mu.widths[bits]
	if of == nil {
		of = &width{}
		k.mu.widths[bits] = of
	}
	of.tick = max(of.tick, tick)
	k.mu.Unlock()
	k.rouse()
}

// Worker returns the worker of a width, nil for none, and why there is none or why its
// window was not renewed: a *BusyError says until when the keeper waits.
func (k *Keeper) Worker(bits int) (*Worker, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.mu.widths[bits]
	if of == nil {
		return nil, allocator.Errorf(allocator.NotFound, "no tag has workers of %d bits", bits)
	}
	return of.held, of.err
}

// Fits reports whether a layout's slices have all workers that are kept, and none is being
// taken: only then may the room report the layout. Windows of workers that it took away are given back by
// then, or end by themselves.
func (k *Keeper) Fits(l allocator.Layout) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for bits, of := range k.mu.widths {
		if of.takes {
			return false
		}
		if of.held == nil {
			continue
		}
		if slice, _ := timeid.SliceOf(l, k.workers.instance.Room(), bits); !slice.Contains(of.held.id.Number) {
			return false
		}
	}
	return true
}

// Rouse has the keeper look at its workers now. A room whose segments and windows are
// dropped (ledger.Instance.OnDrop) closes its generators itself, and then calls Rouse.
func (k *Keeper) Rouse() { k.rouse() }

func (k *Keeper) rouse() {
	select {
	case k.wake <- struct{}{}:
	default: // it is about to look
	}
}

// Run keeps the workers until ctx ends. Then it gives them back, and returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		_, changed := k.workers.instance.Layout() // before the look, so that none is missed
		k.look(ctx)
		timer.Reset(keepEvery)
		select {
		case <-ctx.Done():
			k.end(context.WithoutCancel(ctx))
			return nil
		case <-changed:
		case <-k.wake:
		case <-timer.C:
		}
	}
}

// look does for each width what is due.
func (k *Keeper) look(ctx context.Context) {
	k.mu.Lock()
	due := make(map[int]width, len(k.mu.widths))
	for bits, of := range k.mu.widths {
		due[bits] = *of
	}
	k.mu.Unlock()
	for bits, of := range due {
		if ctx.Err() != nil {
			return
		}
		k.keep(ctx, bits, of)
	}
}

// keep does what is due for one width.
func (k *Keeper) keep(ctx context.Context, bits int, of width) {
	w, now := k.workers, k.workers.now()
	if of.held != nil && !w.instance.HoldsWorker(of.held.id) {
		_ = of.held.loses(&LostError{Worker: of.held.id}) // it was dropped: not issued from any longer
		k.replace(ctx, bits, of.held, nil, of.held.Lost())
		of.held = nil
	}
	if now < of.retry && of.retry-now <= keepEvery.Milliseconds() { // else the clock jumped
		return
	}
	if of.held != nil && of.held.Lost() == nil && k.stays(of.held) {
		if now < of.held.RenewAt().UnixMilli() {
			return
		}
		err := w.Renew(ctx, of.held)
		if err == nil {
			k.cfg.Extended(of.held)
		}
		k.note(bits, of.held, err)
		if of.held.Lost() == nil {
			return
		}
	}
	k.takes(bits)
	taken, err := w.Take(ctx, Request{Bits: bits, Tick: of.tick, Pin: k.cfg.Pin})
	if err != nil {
		k.note(bits, of.held, err) // the old one's window lasts for a while
		return
	}
	k.replace(ctx, bits, of.held, taken, nil)
}

// stays reports whether the layout's slice has a worker.
func (k *Keeper) stays(held *Worker) bool {
	l, _ := k.workers.instance.Layout()
	return k.workers.Fits(ledger.Footing{Layout: l}, held) == nil
}

// replace makes now the worker of a width, and gives the one before back.
func (k *Keeper) replace(ctx context.Context, bits int, was, now *Worker, why error) {
	k.note(bits, now, why)
	used := k.cfg.Changed(bits, was, now)
	if was == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, giveBackWithin)
	defer cancel()
	if err := k.workers.GiveBack(ctx, was, max(used, was.Window().From)); err != nil {
		k.workers.cfg.Logger.Debug("a worker was not given back: its window ends by itself", "worker", was.id.String(), "error", err)
	}
}

// takes notes that a Take is under way, until note.
func (k *Keeper) takes(bits int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.widths[bits].takes = true
}

// note notes what became of a width.
func (k *Keeper) note(bits int, held *Worker, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.mu.widths[bits]
	if err != nil && (of.err == nil || of.err.Error() != err.Error()) {
		k.workers.cfg.Logger.Warn("a worker was not taken or renewed", "bits", bits, "error", err)
	}
	of.held, of.takes, of.err, of.retry = held, false, err, 0
	if err != nil && !errors.Is(err, allocator.Conflict) {
		of.retry = k.workers.now() + keepEvery.Milliseconds()/2
	}
}

// end gives all workers back.
func (k *Keeper) end(ctx context.Context) {
	k.mu.Lock()
	held := make(map[int]*Worker)
	for bits, of := range k.mu.widths {
		if of.held != nil {
			held[bits] = of.held
		}
	}
	k.mu.Unlock()
	for bits, was := range held {
		k.replace(ctx, bits, was, nil, errGivenBack)
	}
}
