package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
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

// Checked is what CheckWith read.
type Checked struct {
	State *State
	Got   [][]store.KV // of each operation
	probe *probeResult
}

// CheckWith is CheckNow that reads more keys in the snapshot of its probe, one in any case. It is no error that
// nothing can be leased under the state. A caller that changes something with what it read writes the beat afterwards
// (Beat), so that the change does not wait for it.
func (l *Ledger) CheckWith(ctx context.Context, ops ...store.Op) (c Checked, err error) {
	c.probe, _, err = l.look(ctx, l.haltsAs() != "", l.Try, ops...)
	if c.probe == nil {
		return c, err
	}
	c.Got = c.probe.more
	c.State, _ = l.State()
	return c, nil
}

// Beat writes the beat that is due by what CheckWith read.
func (l *Ledger) Beat(ctx context.Context, c Checked) { l.beatOn(ctx, c.probe) }

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
