package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
)

// LayoutRecord is a layout as it is stored.
type LayoutRecord struct {
	Layout allocator.Layout
	Ever   []allocator.Room // rooms that ever had a range, sorted; their marks count for floors
	Time   time.Time        // by the clock of the process that stored it
	Actor  string           // who stored it
	// Lost is not 0 where `march recover` made this version: versions from Lost up
	// to this one were lost when etcd went back in time.
	Lost int64

	revision int64 // of the key `layout`; 0 in a record from the history
}

// state is what a ledger knows of epoch and layout: one snapshot, immutable.
type state struct {
	revision int64  // of the store when it was read
	raw      []byte // the epoch's value as it stands in etcd: what transactions compare

	epoch    string     // empty when unknown or halted
	halted   *haltValue // why nothing may be leased
	layout   LayoutRecord
	settings ClusterSettings
	problem  error // why the layout in etcd cannot be used; layout is then the last good one

	fallen string // marks that are below what they were, in words; see sight
}

// lessable returns why nothing can be leased under s, nil when it can.
func (s *state) lessable() error {
	switch {
	case s.problem != nil:
		return s.problem
	case s.halted != nil:
		return allocator.Errorf(allocator.WentBack, "leasing is halted by %s since %s: %s; see `march recover`",
			s.halted.By, s.halted.Time.UTC().Format(time.RFC3339), s.halted.Why)
	case s.epoch == "":
		return allocator.Errorf(allocator.Unavailable, "the layout was not read yet")
	}
	return nil
}

func (s *state) stamp() Stamp { return Stamp{Epoch: s.epoch, Revision: s.layout.revision} }

// current returns the state and a channel that is closed when it is replaced.
func (l *Ledger) current() (*state, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.state, l.mu.changed
}

// Layout returns the layout as this process knows it, and a channel that is
// closed when it knows a newer one. The record is zero before the first
// Refresh or Run read it.
func (l *Ledger) Layout() (LayoutRecord, <-chan struct{}) {
	s, changed := l.current()
	return s.layout, changed
}

// Lessable returns why nothing can be leased at present, nil when it can: no
// layout was read yet, leasing is halted, the layout in etcd is invalid, or this
// instance is without its journal, and nobody has confirmed its marks.
func (l *Ledger) Lessable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lessable()
}

// Refresh reads epoch and layout and adopts them. An invalid layout is kept
// out: the last good one stays for serving and is returned (the zero record
// where none was seen) together with an *UnusableError, and Lessable says why
// nothing is leased.
func (l *Ledger) Refresh(ctx context.Context) (LayoutRecord, error) {
	return l.look(ctx, false, l.read)
}

// parseState reads a state from the answer to a sight: epoch, layout, the newest
// two of the history, and settings are of one snapshot, so that what is invalid is found out
// by who knew nothing before, too.
func (l *Ledger) parseState(answer Answer) *state {
	s := &state{revision: answer.Revision}
	epoch, ok := answer.one(0)
	if !ok {
		s.problem = l.invalid("epoch", "there is no key %s", l.keys.epoch())
		return s
	}
	var e epochValue
	if err := decode(epoch, &e); err != nil {
		s.problem = l.invalid("epoch", "%w", err)
		return s
	}
	if e.Epoch == "" && e.Halted == nil {
		s.problem = l.invalid("epoch", "key %s is empty", epoch.Key)
		return s
	}
	s.raw, s.epoch, s.halted = epoch.Value, e.Epoch, e.Halted
	if s.halted != nil {
		s.epoch = ""
	}
	var err error
	if s.settings, _, err = l.decodeSettings(answer.Got[5]); err != nil {
		s.problem = l.invalid("cluster's settings", "%w", err)
		return s
	}
	layout, ok := answer.one(1)
	if !ok {
		s.problem = l.invalid("layout", "there is no key %s", l.keys.layout())
		return s
	}
	record, err := decodeLayout(layout)
	if err == nil {
		err = l.checkHistory(record, layout, answer.Got[2])
	}
	if err != nil {
		s.problem = l.invalid("layout", "%w", err)
		return s
	}
	s.layout = record
	s.layout.revision = layout.ModRevision
	return s
}

// checkHistory checks a layout against the newest two of the history, newest
// first: it is the newest, and its list of rooms that ever were has not shrunk.
func (l *Ledger) checkHistory(record LayoutRecord, layout KV, history []KV) error {
	own := l.keys.layoutAt(record.Layout.Version)
	if len(history) == 0 || history[0].Key < own {
		return fmt.Errorf("it is version %d, but there is no key %s", record.Layout.Version, own)
	}
	if history[0].Key > own {
		return fmt.Errorf("it is version %d, but the history goes on to %s", record.Layout.Version, history[0].Key)
	}
	if string(history[0].Value) != string(layout.Value) {
		return fmt.Errorf("it differs from its own history, %s", own)
	}
	if len(history) > 1 {
		before, err := decodeLayout(history[1])
		if err != nil {
			return fmt.Errorf("the version before it: %w", err)
		}
		return grown(record.Ever, before.Ever)
	}
	return nil
}

// grown checks that no room has left a list of rooms that ever were: its marks
// would no longer count for floors.
func grown(now, was []allocator.Room) error {
	if !containsAll(now, was) {
		return fmt.Errorf("its list of rooms that ever were, %v, has shrunk from %v", now, was)
	}
	return nil
}

func (l *Ledger) invalid(what, format string, args ...any) error {
	return &UnusableError{allocator.Errorf(allocator.Refused, "the %s in etcd cannot be used, nothing is leased until it is repaired: %w", what, fmt.Errorf(format, args...))}
}

// UnusableError says why the epoch or the layout in etcd cannot be used. Its
// Kind is Refused.
type UnusableError struct{ err error }

func (e *UnusableError) Error() string { return e.err.Error() }

// Unwrap returns the error with the Kind.
func (e *UnusableError) Unwrap() error { return e.err }

// adopt replaces the state by next, unless the present one is newer. The caller
// holds the lock.
func (l *Ledger) adopt(next *state) (LayoutRecord, error) {
	old := l.mu.state
	was := old.layout
	switch sameEpoch := next.id() == "" || next.id() == old.id(); {
	case sameEpoch && old.revision > next.revision:
		return old.layout, old.problem // another refresh overtook this one
	case next.problem != nil:
	case next.halted != nil && next.layout.Layout.Version < was.Layout.Version:
		// A restored etcd that was halted has forgotten layouts. Nothing is leased
		// under the one that it has, and what is held is served under what was.
		next.layout = was
	case !sameEpoch:
		// What was remembered of layouts belongs to the epoch before.
	case next.layout.Layout.Version < was.Layout.Version:
		next.problem = l.invalid("layout", "its version %d is below %d, which was in force", next.layout.Layout.Version, was.Layout.Version)
	default:
		if err := grown(next.layout.Ever, was.Ever); err != nil {
			next.problem = l.invalid("layout", "%w", err)
		}
	}
	if next.problem != nil {
		next.layout = was // the last good one
	}
	l.mu.state = next
	l.settle()
	if next.same(old) {
		return next.layout, next.problem
	}
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
	switch {
	case next.halted != nil && old.halted == nil:
		l.regressions.Add(1)
		l.log.Error("leasing is halted", "by", next.halted.By, "since", next.halted.Time.UTC().Format(time.RFC3339), "why", next.halted.Why)
	case next.halted == nil && old.halted != nil && next.epoch != "":
		l.log.Info("leasing goes on")
	}
	switch {
	case next.problem != nil:
		l.log.Error("layout refused", "error", next.problem)
	case next.layout.Layout.Version != old.layout.Layout.Version:
		l.log.Info("layout adopted", "version", next.layout.Layout.Version, "boundary", next.layout.Layout.Boundary, "rooms", len(next.layout.Layout.Ranges))
	}
	return next.layout, next.problem
}

// same reports whether s says the same as old.
func (s *state) same(old *state) bool {
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	return s.layout.revision == old.layout.revision && string(s.raw) == string(old.raw) && s.settings == old.settings && text(s.problem) == text(old.problem)
}

// containsAll reports whether every room of some is in all, which is sorted.
func containsAll(all, some []allocator.Room) bool {
	for _, room := range some {
		if _, ok := slices.BinarySearch(all, room); !ok {
			return false
		}
	}
	return true
}

// TagChange tells of a tag that was created, changed or deleted.
type TagChange struct {
	Name     allocator.Tag
	Settings *TagSettings // nil when it was deleted, or cannot be read
}

func (l *Ledger) tagChange(name allocator.Tag, kv KV) TagChange {
	if kv.ModRevision == 0 {
		return TagChange{Name: name}
	}
	t, err := l.decodeTag(kv)
	if err != nil {
		l.refusedLog.Log(time.Now(), l.log.Error, "tag refused: nothing is leased of it until it is repaired", "tag", name, "error", err)
		return TagChange{Name: name}
	}
	return TagChange{Name: name, Settings: &t.Settings}
}

// Run watches epoch, layout, settings, tags and registrations until ctx ends, and returns nil then. It
// keeps Layout current, and calls onTag, from one goroutine, with each tag
// whose settings were changed or that was deleted. Changes that a watch lost
// (a compaction, a silent member) are not repeated to onTag: a lease sees them
// all the same.
func (l *Ledger) Run(ctx context.Context, onTag func(TagChange)) error {
	for ctx.Err() == nil {
		err := l.watch(ctx, onTag)
		l.uncheck() // what answers next may be another etcd
		if ctx.Err() != nil {
			break
		}
		l.watchLog.Log(time.Now(), l.log.Debug, "watch ended, reading again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(4 * retryPause):
		}
	}
	return nil
}

// watch reads the state, then follows what changes after it, until an error.
func (l *Ledger) watch(ctx context.Context, onTag func(TagChange)) error {
	answer, err := l.gets(ctx, get(l.keys.layout()))
	if err != nil {
		return err
	}
	order := l.before().order
	if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) == allocator.Unavailable {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := l.store.Watch(ctx, []Interval{
		{Key: l.keys.epoch()},
		{Key: l.keys.layout()},
		{Key: l.keys.settings()},
		{Key: l.keys.layouts(), End: prefixEnd(l.keys.layouts())}, // whose repair makes a layout valid again
		{Key: l.keys.tags(), End: prefixEnd(l.keys.tags())},
		{Key: l.keys.registrations(""), End: prefixEnd(l.keys.registrations(""))},
	}, answer.Revision+1)
	for {
		_, adopted := l.current()
		if l.before().order != order {
			// A restored etcd's revisions begin below those that were seen: a watch
			// that was resumed above them would hear nothing for long.
			return errNewEpoch
		}
		var change Change
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
		var registrations []KV
		for _, kv := range change.KVs {
			if name, err := l.keys.parseTag(kv.Key); err == nil {
				onTag(l.tagChange(name, kv))
			} else if strings.HasPrefix(kv.Key, l.keys.registrations("")) {
				if kv.ModRevision != 0 { // else it was deleted
					registrations = append(registrations, kv)
				}
			} else if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) == allocator.Unavailable {
				return err
			}
		}
		l.tell(registrations)
	}
}

// tell tells this process's instance of registrations that were written.
func (l *Ledger) tell(registrations []KV) {
	l.mu.Lock()
	told := l.mu.told
	l.mu.Unlock()
	if told != nil && len(registrations) > 0 {
		told(registrations)
	}
}

var errNewEpoch = errors.New("the epoch changed")
