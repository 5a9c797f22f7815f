package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// Halted returns the halt that is in force as this process knows it, if one is.
func (l *Ledger) Halted() (record.Halt, bool) {
	s, _ := l.State()
	if s.halted == nil {
		return record.Halt{}, false
	}
	return *s.halted, true
}

// HaltAs makes this process probe etcd as an instance does. If the process sees etcd go
// back in time, it halts leasing under the name by. An instance's Join calls it. A console
// calls it because it moves layouts and forgets instances, and may be the only process
// that lived through a restore. It must be called before anything else.
func (l *Ledger) HaltAs(by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.haltsAs = by
}

// Check probes whether etcd went back in time, if the last probe is too old, or soon will be, or a
// suspicion came up since. Its error is the reason why nothing can be leased at present,
// or why the probe failed.
func (l *Ledger) Check(ctx context.Context) error {
	_, err := l.leasable(ctx, true)
	return err
}

// CheckNow is Check with a probe of its own, even if the last probe was a moment ago. It
// is for changes that take effect as soon as they are written. (A lease counts only if
// its answer came over the probed connection.) It returns the state as
// LeasableState does.
func (l *Ledger) CheckNow(ctx context.Context) (*State, error) {
	l.uncheck()
	return l.LeasableState(ctx)
}

// Halt stops all leasing, in all rooms, until `march recover` begins a new epoch. Rooms
// may still issue the IDs that they hold. If leasing is halted already, that halt stays.
// Its errors are Unavailable, and the reason if the epoch cannot be read.
func (l *Ledger) Halt(ctx context.Context, by, why string) (record.Halt, error) {
	for range haltAttempts {
		if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
			return record.Halt{}, err
		}
		s, _ := l.State()
		switch {
		case s.halted != nil:
			return *s.halted, nil
		case s.raw == nil:
			return record.Halt{}, s.Refusal()
		}
		if _, err := l.HaltOver(ctx, s.raw, 0, by, why); err != nil && allocator.KindOf(err) != allocator.Conflict {
			return record.Halt{}, err
		}
	}
	return record.Halt{}, allocator.Errorf(allocator.Conflict,
		"leasing is not halted: other processes changed the epoch %d times meanwhile; try again", haltAttempts)
}

// haltAttempts bounds how often Halt starts over because another process changed
// the epoch just then.
const haltAttempts = 5
