package worker

import (
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// Worker is a worker that this process has for a window. Generators of its width may
// issue ticks that lie in the window as a whole.
type Worker struct {
	request Request
	id      record.WorkerID
	taken   time.Duration // when, by Config.Elapsed
	claimed bool          // only chosen so far: a Take has it under way

	renewing sync.Mutex // held by Renew and GiveBack while they ask etcd

	mu struct {
		sync.Mutex
		window timeid.Window // certainly this process's
		renew  int64         // when to renew it, Unix ms
		lost   error         // why it is not renewed any longer; nil while it is
	}
}

// ID returns the width and the number.
func (w *Worker) ID() record.WorkerID { return w.id }

// RenewAt returns when the window is to be renewed, by Config.Now: when half of it is over.
func (w *Worker) RenewAt() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.UnixMilli(w.mu.renew)
}

// Window returns the time for which the worker is this process's.
func (w *Worker) Window() timeid.Window {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.window
}

// loses stores why the window is not renewed any longer, and returns it.
func (w *Worker) loses(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.lost == nil {
		w.mu.lost = err
	}
	return w.mu.lost
}

// Lost returns why the window is not renewed any longer, nil while it is: a *MovedError, a
// *LostError, or that it was given back.
func (w *Worker) Lost() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.lost
}

// leased stores a window that an accepted transaction wrote.
func (w *Worker) leased(now int64, window timeid.Window) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.window = window
	w.mu.renew = now + max(window.Until-max(now, window.From), 0)/2
}

// Workers leases workers to one instance. Its methods are safe for concurrent use.
type Workers struct {
	instance Instance
	cfg      Config
	clocks   clocks

	mu struct {
		sync.Mutex
		held map[record.WorkerID]*Worker // those that a Take has under way, too
		// starts of the windows of Takes with an unknown outcome: no generator had these windows
		unknownTakes map[record.WorkerID]int64
	}
}

// with calls do under the lock.
func (w *Workers) with(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// New returns the Workers of an instance. Its error is Invalid.
func New(i Instance, cfg Config) (*Workers, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w := &Workers{instance: i, cfg: cfg.withDefaults(i)}
	w.mu.held = make(map[record.WorkerID]*Worker)
	w.mu.unknownTakes = make(map[record.WorkerID]int64)
	return w, nil
}

// callers returns how many workers of a slice are for callers: the last ones.
func (w *Workers) callers(slice allocator.Range) int64 {
	switch half, n := slice.Width()/2, w.cfg.CallerWorkers; {
	case n < 0:
		return 0
	case n == 0:
		return half
	default:
		return min(n, half)
	}
}

// now returns the clock in Unix ms.
func (w *Workers) now() int64 { return w.cfg.Now().UnixMilli() }
