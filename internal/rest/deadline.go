package rest

import (
	"context"
	"sync"
	"time"
)

// lateDeadline is a context that ends when its parent does, or callTimeout after the
// first call of Done. On the hot path nothing waits for its end, and an unused timer
// would cost more than the rest of the call.
type lateDeadline struct {
	context.Context // the request's
	mu              struct {
		sync.Mutex
		timer *timer // nil before the first call of Done
	}
}

// timer is a context with its end.
type timer struct {
	context.Context
	cancel context.CancelFunc
}

func newTimer(parent context.Context) *timer {
	ctx, cancel := context.WithTimeout(parent, callTimeout)
	return &timer{ctx, cancel}
}

// Done begins the time.
func (d *lateDeadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.timer == nil {
		d.mu.timer = newTimer(d.Context)
	}
	return d.mu.timer.Done()
}

func (d *lateDeadline) Err() error { return d.current().Err() }

func (d *lateDeadline) Deadline() (time.Time, bool) { return d.current().Deadline() }

func (d *lateDeadline) current() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.timer != nil {
		return d.mu.timer
	}
	return d.Context
}

// stop stops the timer.
func (d *lateDeadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.timer != nil {
		d.mu.timer.cancel()
	}
}
