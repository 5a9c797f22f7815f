package ledger

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// shared is a probe that several leases wait for.
type shared struct {
	done   chan struct{}
	err    error
	gaveUp bool // the lease that sent it gave up, so err shows nothing about etcd
}

// LeasableState returns the state under which a lease may be made. It probes first
// if the last probe is too old, or if nothing may be leased under the state that is
// known. Leases that want a probe at the same time share one.
func (l *Ledger) LeasableState(ctx context.Context) (*State, error) { return l.leasable(ctx, false) }

// leasable is LeasableState. With ahead, the last probe is also too old if it soon will be.
func (l *Ledger) leasable(ctx context.Context, ahead bool) (*State, error) {
	for {
		s, flight, lead, err := l.join(ahead)
		switch {
		case flight == nil:
			return s, err
		case lead:
			return l.lead(ctx, flight)
		}
		select {
		case <-flight.done:
		case <-ctx.Done():
		}
		switch { // if both are ready, select would choose by chance
		case over(ctx):
			return nil, allocator.Errorf(allocator.Unavailable, "etcd was not probed in time: %w",
				cmp.Or(context.Cause(ctx), context.DeadlineExceeded))
		case flight.err != nil && !flight.gaveUp:
			return nil, flight.err
		}
	}
}

// join returns the state if a lease may be made under it. If not, and it is too early for
// a probe, it returns the reason. Otherwise it returns the probe to wait for; lead is
// true if the caller must send it.
func (l *Ledger) join(ahead bool) (s *State, flight *shared, lead bool, err error) {
	l.wait.Lock()
	defer l.wait.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, err = l.ready(ahead); err == nil || l.waits() {
		return s, nil, false, err
	}
	if lead = l.wait.flight == nil; lead {
		l.wait.flight = &shared{done: make(chan struct{})}
	}
	return nil, l.wait.flight, lead, nil
}

// lead sends the probe that leases wait for, and makes the instance enter a new
// epoch.
func (l *Ledger) lead(ctx context.Context, flight *shared) (s *State, err error) {
	var probed *probeResult
	err = errEpochChanged
	if l.onlyEnters() {
		err = l.enter(ctx)
	}
	if errors.Is(err, errEpochChanged) { // since the last probe, perhaps
		if probed, _, err = l.look(ctx, l.haltsAs() != "", l.Try); err == nil {
			err = l.enter(ctx)
		}
	}
	s, err = l.land(flight, over(ctx), err)
	close(flight.done)
	l.beatOn(ctx, probed) // no other lease waits for it
	return s, err
}

// land ends a flight, and returns the state if a lease may be made under it.
func (l *Ledger) land(flight *shared, gaveUp bool, err error) (s *State, _ error) {
	l.wait.Lock()
	defer l.wait.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wait.flight, l.wait.lastProbe = nil, time.Now()
	if err == nil {
		s, err = l.mu.state, l.refusal()
	}
	flight.err, flight.gaveUp = err, gaveUp
	return s, err
}

// haltedProbeEvery is how long after a probe another one is made while leasing is halted:
// a halted instance must not read for each caller that asks.
const haltedProbeEvery = 500 * time.Millisecond

// waits reports whether it is too early for another probe while nothing can be
// leased. The caller holds both locks.
func (l *Ledger) waits() bool {
	s := l.mu.state
	stays := s.halted != nil || s.Refusal() == nil && l.mu.clock.suspicion == nil && l.unconfirmed()
	return stays && !l.wait.lastProbe.IsZero() && allocator.Elapsed(l.wait.lastProbe, time.Now()) < haltedProbeEvery
}

// enter makes the instance of this process enter the epoch in force, if it has not
// yet.
func (l *Ledger) enter(ctx context.Context) error {
	var i *Instance
	l.with(func() {
		if l.mu.clock.entering {
			i = l.mu.instance
		}
	})
	if i == nil {
		return nil
	}
	return i.enter(ctx)
}

// onlyEnters reports whether nothing but entering the epoch is left to do before a lease: a process that starts has
// just probed.
func (l *Ledger) onlyEnters() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	return l.mu.instance != nil && t.entering && l.mu.state.Refusal() == nil && t.suspicion == nil && l.checked(false)
}

// over reports whether ctx has ended, or is about to: its timer may be a moment
// late.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// checked reports whether the last probe is not too old. The caller holds the lock.
func (l *probes) checked(ahead bool) bool {
	left, soon := l.checkLasts()
	return left > 0 && (!ahead || left > soon)
}

// nextCheck returns after how long an instance checks again, ahead of need. While nothing can be leased it has no
// hurry.
func (l *probes) nextCheck() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	left, ahead := l.checkLasts()
	if left <= 0 {
		return heartbeatEvery
	}
	return max(left-ahead, watchPause)
}

// ready returns the state if a lease may be made under it without a probe. The
// caller holds the lock.
func (l *probes) ready(ahead bool) (*State, error) {
	if err := l.refusal(); err != nil {
		return nil, err
	}
	if l.mu.haltsAs != "" && !l.checked(ahead) {
		return nil, errUnchecked
	}
	return l.mu.state, nil
}

var errUnchecked = errors.New("the last probe is too old")

// Leasable returns why nothing can be leased now, or nil. The
// reasons: no layout was read yet, leasing is halted, the layout in etcd is invalid,
// or this instance is without its journal and no operator has confirmed its marks.
func (l *knowledge) Leasable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refusal()
}

// Run watches epoch, layout and its history, settings, tags and registrations until ctx
// ends, and then returns nil. It keeps Layout current, and calls onTag, from one
// goroutine, with each tag that has new settings or was deleted. A watch may have missed
// changes (because of a compaction or a silent member). A lease sees them anyway. Those of
// unleased, the tags of which the process issues IDs without leases, are read when the next
// watch begins, and onTag is called with each; nil stands for none.
func (l *Ledger) Run(ctx context.Context, onTag func(TagChange), unleased func() []allocator.Tag) error {
	for ctx.Err() == nil {
		err := l.watch(ctx, onTag, unleased)
		l.uncheck() // the next answer may come from another etcd
		if ctx.Err() != nil {
			break
		}
		l.watchLog.Log(time.Now(), l.log.Debug, "watch ended, reading again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
	return nil
}

// readTags reads tags, and calls onTag with each that is there. A tag that is not there, which an
// etcd that went back in time may lack, shows nothing: one that was deleted leaves a tombstone.
func (l *Ledger) readTags(ctx context.Context, tags []allocator.Tag, onTag func(TagChange)) error {
	keys := make([]string, len(tags))
	for k, tag := range tags {
		keys[k] = l.keys.Tag(tag)
	}
	return l.readKeys(ctx, keys, func(_ []string, _ sentAt, answer store.Answer) error {
		for _, kv := range slices.Concat(answer.Got...) {
			if key, err := l.keys.Parse(kv.Key); err == nil {
				onTag(l.tagChange(key.Tag, kv))
			}
		}
		return nil
	})
}

// watch reads the state, then follows what changes after it, until an error.
func (l *Ledger) watch(ctx context.Context, onTag func(TagChange), unleased func() []allocator.Tag) error {
	answer, err := l.Gets(ctx, store.OpGet(l.keys.Layout()))
	if err != nil {
		return err
	}
	epochSeq := l.before().epochSeq
	if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) == allocator.Unavailable {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	within := []store.Interval{
		{Key: l.keys.Epoch()},
		{Key: l.keys.Layout()},
		{Key: l.keys.Settings()},
		// repairing these keys may make a layout valid again
		store.Prefix(l.keys.All(record.Layouts)),
		store.Prefix(l.keys.All(record.Tags)),
		store.Prefix(l.keys.All(record.Registrations)),
	}
	var i *Instance
	l.with(func() { i = l.mu.instance })
	if i != nil {
		for _, prefix := range []string{l.keys.In(i.room, record.Windows), l.keys.All(record.Workers)} {
			within = append(within, store.Prefix(prefix))
		}
	}
	changes := l.store.Watch(ctx, within, answer.Revision+1)
	if i != nil { // an earlier watch may have missed changes
		if err := i.readHeld(ctx); err != nil {
			return err
		}
	}
	if unleased != nil {
		if err := l.readTags(ctx, unleased(), onTag); err != nil {
			return err
		}
	}
	for {
		_, adopted := l.State()
		if l.before().epochSeq != epochSeq {
			// A restored etcd's revisions begin below those that were seen: a watch
			// that resumes above them would get no events for a long time.
			return errNewEpoch
		}
		var change store.Change
		select {
		case change = <-changes:
		case <-adopted:
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if change.Err != nil {
			return change.Err
		}
		var registrations, workers []store.KV
		again := false
		for _, kv := range change.KVs {
			key, err := l.keys.Parse(kv.Key)
			switch kind := l.keys.KindOf(kv.Key); {
			case kind == record.Tags && err == nil:
				onTag(l.tagChange(key.Tag, kv))
			case kind == record.Registrations:
				if kv.ModRevision != 0 { // otherwise it was deleted
					registrations = append(registrations, kv)
				}
			case kind.OfWorkers():
				workers = append(workers, kv)
			default:
				again = true
				if kv.Key == l.keys.Layout() {
					l.expects([]store.KV{kv}) // a move, or many that were missed
				}
			}
		}
		if again {
			if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) == allocator.Unavailable {
				return err
			}
		}
		if i != nil && len(registrations) > 0 {
			i.watched(registrations)
		}
		if i != nil {
			i.endsWindows(workers)
		}
	}
}

// Halted returns the halt that is in force as this process knows it, if one is.
func (l *knowledge) Halted() (record.Halt, bool) {
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
func (l *knowledge) HaltAs(by string) {
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
func (l *probes) CheckWith(ctx context.Context, ops ...store.Op) (c Checked, err error) {
	c.probe, _, err = l.look(ctx, l.haltsAs() != "", l.Try, ops...)
	if c.probe == nil {
		return c, err
	}
	c.Got = c.probe.more
	c.State, _ = l.State()
	return c, nil
}

// Beat writes the beat that is due by what CheckWith read.
func (l *probes) Beat(ctx context.Context, c Checked) { l.beatOn(ctx, c.probe) }

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
