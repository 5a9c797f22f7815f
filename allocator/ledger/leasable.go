package ledger

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/march-id/march/allocator"
)

// shared is a probe that several leases wait for.
type shared struct {
	done chan struct{}
	err  error
	left bool // the lease that sent it gave up: err says nothing of etcd
}

// LeasableState returns the state under which a lease may be made. It probes first
// if the last probe is too old, or if nothing may be leased under the state that is
// known. Leases that want a probe at the same time share one.
func (l *Ledger) LeasableState(ctx context.Context) (*State, error) {
	for {
		l.mu.Lock()
		s, err := l.ready()
		if err != nil && l.waits() {
			l.mu.Unlock()
			return nil, err
		}
		flight := l.mu.flight
		lead := err != nil && flight == nil
		if lead {
			flight = &shared{done: make(chan struct{})}
			l.mu.flight = flight
		}
		l.mu.Unlock()
		switch {
		case err == nil:
			return s, nil
		case lead:
			_, flight.err = l.probe(ctx, l.haltsAs() != "", l.Try)
			if flight.err == nil {
				flight.err = l.enter(ctx)
			}
			flight.left = over(ctx)
			l.mu.Lock()
			l.mu.flight, l.mu.looked = nil, time.Now()
			if flight.err == nil {
				s, flight.err = l.mu.state, l.refusal()
			}
			l.mu.Unlock()
			close(flight.done)
			return s, flight.err
		}
		select {
		case <-flight.done:
		case <-ctx.Done():
		}
		switch { // not what select makes of both at once: that is chance
		case over(ctx):
			return nil, allocator.Errorf(allocator.Unavailable, "etcd was not looked at in time: %w", cmp.Or(context.Cause(ctx), context.DeadlineExceeded))
		case flight.err != nil && !flight.left:
			return nil, flight.err
		}
	}
}

// haltedLook is how long after a probe another one is made while leasing is halted:
// a halted instance must not read for each caller that asks.
const haltedLook = 500 * time.Millisecond

// waits reports whether it is too early to look again for why nothing is leased. The
// caller holds the lock.
func (l *Ledger) waits() bool {
	s := l.mu.state
	stays := s.halted != nil || s.Refusal() == nil && l.mu.clock.suspicion == nil && l.refusesUnconfirmed() != nil
	return stays && !l.mu.looked.IsZero() && allocator.Elapsed(l.mu.looked, time.Now()) < haltedLook
}

// enter has the instance of this process enter the epoch in force, where it has not.
func (l *Ledger) enter(ctx context.Context) error {
	l.mu.Lock()
	enter := l.mu.entering
	l.mu.Unlock()
	if enter == nil {
		return nil
	}
	return enter(ctx)
}

// over reports whether ctx has ended, or is about to: its timer may be a moment
// late.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// ready returns the state where a lease may be made under it without a probe.
// The caller holds the lock.
func (l *Ledger) ready() (*State, error) {
	if err := l.refusal(); err != nil {
		return nil, err
	}
	if l.mu.haltsAs != "" && !l.mu.clock.checked.fresh() {
		return nil, errUnchecked
	}
	return l.mu.state, nil
}

var errUnchecked = errors.New("the last look is too long ago")

// haltsAs returns the name under which this process halts leasing if it sees etcd go
// back in time. It is empty if the process only reports that.
func (l *Ledger) haltsAs() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.haltsAs
}
