package rest

import (
	"context"
	"sync"
	"time"
)

// lateDeadline is a context that ends when its parent does, or callTimeout after
// somebody first waits for its end. On the hot path nobody waits, and a timer
// that is made and stopped for nothing costs more than all else there.
type lateDeadline struct {
	context.Context // the request's
	mu              struct {
		sync.Mutex
		bounded context.Context // nil until somebody waits
		cancel  context.CancelFunc
	}
}

// Done begins the time.
func (d *lateDeadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.bounded == nil {
		d.mu.bounded, d.mu.cancel = context.WithTimeout(d.Context, callTimeout)
	}
	return d.mu.bounded.Done()
}

func (d *lateDeadline) Err() error { return d.current().Err() }

func (d *lateDeadline) Deadline() (time.Time, bool) { return d.current().Deadline() }

func (d *lateDeadline) current() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.bounded != nil {
		return d.mu.bounded
	}
	return d.Context
}

// stop gives up the timer.
func (d *lateDeadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.cancel != nil {
		d.mu.cancel()
	}
}
