package timetags

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

// shown is a copy of a pool's state. The lock may be held while etcd does not answer, so
// readiness and metrics read this instead.
type shown struct {
	worker    *worker.Worker
	opened    int // generators
	failed    error
	exchanges int64
	conflicts int64
}

// show returns the pool's state when the lock was last released.
func (p *pool) show() shown {
	if s := p.shown.Load(); s != nil {
		return *s
	}
	return shown{}
}

// trouble returns why the pool's tags cannot issue IDs at a time, or nil if they can or
// there are none.
func (p *pool) trouble(now int64) error {
	s := p.show()
	if s.worker == nil {
		return s.failed // nil if no worker was asked for
	}
	until := s.worker.Window().Until
	if now < until {
		return nil
	}
	err := allocator.Errorf(allocator.Unavailable, "the window of worker %v ended at %s", s.worker.ID(),
		time.UnixMilli(until).UTC().Format(timeid.Format))
	if s.failed != nil {
		err = allocator.Errorf(allocator.KindOf(s.failed), "%w, and was not renewed: %w", err, s.failed)
	}
	return err
}

// remaining returns how long the pool's window still lasts.
func (s shown) remaining(now int64) time.Duration {
	if s.worker == nil {
		return 0
	}
	return time.Duration(max(s.worker.Window().Until-now, 0)) * time.Millisecond
}
