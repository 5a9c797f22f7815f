package ledger

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, err = l.ready(ahead); err == nil || l.waits() {
		return s, nil, false, err
	}
	if lead = l.mu.flight == nil; lead {
		l.mu.flight = &shared{done: make(chan struct{})}
	}
	return nil, l.mu.flight, lead, nil
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
	flight.gaveUp = over(ctx)
	s, flight.err = l.probed(err)
	close(flight.done)
	l.beatOn(ctx, probed) // no other lease waits for it
	return s, flight.err
}

// probed notes that the probe that leases wait for has ended, with an error or nil. It
// returns the state, and why nothing can be leased under it.
func (l *Ledger) probed(err error) (*State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.flight, l.mu.lastProbe = nil, time.Now()
	if err != nil {
		return nil, err
	}
	return l.mu.state, l.refusal()
}

// haltedProbeEvery is how long after a probe another one is made while leasing is halted:
// a halted instance must not read for each caller that asks.
const haltedProbeEvery = 500 * time.Millisecond

// waits reports whether it is too early for another probe while nothing can be
// leased. The caller holds the lock.
func (l *Ledger) waits() bool {
	s := l.mu.state
	stays := s.halted != nil || s.Refusal() == nil && l.mu.clock.suspicion == nil && l.unconfirmed()
	return stays && !l.mu.lastProbe.IsZero() && allocator.Elapsed(l.mu.lastProbe, time.Now()) < haltedProbeEvery
}

// enter makes the instance of this process enter the epoch in force, if it has not
// yet.
func (l *Ledger) enter(ctx context.Context) error {
	if i := l.toEnter(); i != nil {
		return i.enter(ctx)
	}
	return nil
}

// toEnter returns the instance if it has not entered the epoch in force, else nil.
func (l *Ledger) toEnter() *Instance {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.mu.instance; i != nil && !i.admission.in(l.mu.clock.began) {
		return i
	}
	return nil
}

// onlyEnters reports whether nothing but entering the epoch is left to do before a lease: a process that starts has
// just probed.
func (l *Ledger) onlyEnters() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.mu.instance
	return i != nil && !i.admission.in(l.mu.clock.began) && l.mu.state.Refusal() == nil &&
		l.mu.clock.suspicion == nil && l.checked(false)
}

// over reports whether ctx has ended, or is about to: its timer may be a moment
// late.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// checked reports whether the last probe is not too old. The caller holds the lock.
func (l *Ledger) checked(ahead bool) bool {
	left, soon := l.checkLasts()
	return left > 0 && (!ahead || left > soon)
}

// nextCheck returns after how long an instance checks again, ahead of need. While nothing can be leased it has no
// hurry.
func (l *Ledger) nextCheck() time.Duration {
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
func (l *Ledger) ready(ahead bool) (*State, error) {
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
func (l *Ledger) Leasable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refusal()
}

// Refresh reads epoch and layout and adopts them. It does not adopt an invalid
// layout: it returns the last good one, which stays for serving (the zero record if
// there is none), together with an *UnusableError, and Leasable returns why nothing
// is leased.
func (l *Ledger) Refresh(ctx context.Context) (record.Layout, error) {
	return l.probe(ctx, false, l.Read)
}

// RefreshTo is Refresh for a caller that wrote the layout itself, in this version,
// which saves a second probe. 0 stands for the version that was last read.
func (l *Ledger) RefreshTo(ctx context.Context, version int64) (record.Layout, error) {
	if version != 0 {
		l.expectVersion(version)
	}
	return l.Refresh(ctx)
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
	for page := range slices.Chunk(tags, keysAtOnce) {
		ops := make([]store.Op, len(page))
		for k, tag := range page {
			ops[k] = store.OpGet(l.keys.Tag(tag))
		}
		answer, err := l.Gets(ctx, ops...)
		if err != nil {
			return err
		}
		for k, tag := range page {
			if kv, there := answer.One(k); there {
				onTag(l.tagChange(tag, kv))
			}
		}
	}
	return nil
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
		{Key: l.keys.Layouts(), End: store.PrefixEnd(l.keys.Layouts())},
		{Key: l.keys.Tags(), End: store.PrefixEnd(l.keys.Tags())},
		{Key: l.keys.Registrations(""), End: store.PrefixEnd(l.keys.Registrations(""))},
	}
	i := l.instance()
	if i != nil {
		for _, prefix := range []string{l.keys.Windows(i.room), l.keys.Workers()} {
			within = append(within, store.Interval{Key: prefix, End: store.PrefixEnd(prefix)})
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
			name, err := l.keys.ParseTag(kv.Key)
			switch {
			case err == nil:
				onTag(l.tagChange(name, kv))
			case strings.HasPrefix(kv.Key, l.keys.Registrations("")):
				if kv.ModRevision != 0 { // otherwise it was deleted
					registrations = append(registrations, kv)
				}
			case l.keys.HasWindow(kv.Key):
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
