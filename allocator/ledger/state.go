package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// State is a ledger's knowledge of epoch and layout: one snapshot, immutable.
type State struct {
	revision int64  // of the store when it was read
	raw      []byte // the epoch's value as it stands in etcd, which transactions compare

	epoch     string            // empty if unknown or halted
	total     int64             // the margin total of the epoch, or of the epoch that a halt stopped
	notBefore int64             // likewise: see record.Epoch
	ended     *record.EndedHalt // the halt that the epoch ended, nil for none
	halted    *record.Halt      // why nothing may be leased
	layout    record.Layout
	settings  record.ClusterSettings
	problem   error // why the layout in etcd cannot be used; layout is then the last good one

	fallen string // the marks that have fallen, as text; see probeResult
}

// Refusal returns why nothing can be leased under s, or nil.
func (s *State) Refusal() error {
	switch {
	case s.problem != nil:
		return s.problem
	case s.halted != nil:
		return allocator.Errorf(allocator.WentBack, "leasing is halted by %s since %s: %s; see `march recover`",
			s.halted.By, s.halted.Time.UTC().Format(time.RFC3339), s.halted.Why)
	case s.epoch == "":
		return allocator.Errorf(allocator.Unavailable, "the layout has not been read from etcd yet")
	}
	return nil
}

// Layout returns the layout of s: the last good one if Refusal says that the one in etcd
// cannot be used.
func (s *State) Layout() record.Layout { return s.layout }

// MarginTotal returns the margin total of the epoch, or of the epoch that a halt stopped.
func (s *State) MarginTotal() int64 { return s.total }

// Floor returns the floor of a tag with these marks, for a room or, if it is empty, for
// none in particular.
func (s *State) Floor(room allocator.Room, t record.Terms, marks map[allocator.Room]record.Mark) record.Floor {
	return s.layout.Floor(room, s.total, t, marks)
}

// Recovered reports whether a recover began the epoch.
func (s *State) Recovered() bool { return s.ended != nil }

// Under returns s with another layout: the state after a change to that layout.
func (s *State) Under(layout record.Layout) *State {
	return &State{epoch: s.epoch, total: s.total, layout: layout}
}

func (s *State) stamp() record.Stamp {
	return record.Stamp{Epoch: s.epoch, Revision: s.layout.Revision}
}

// State returns the state and a channel that is closed when it is replaced.
func (l *Ledger) State() (*State, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.state, l.mu.changed
}

// stateAt returns the state, and the order of the epoch in force.
func (l *Ledger) stateAt() (*State, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.state, l.mu.clock.epochSeq
}

// Layout returns the layout as this process knows it, and a channel that is
// closed when it knows a newer one. The record is zero before the first
// Refresh or Run read it.
func (l *Ledger) Layout() (record.Layout, <-chan struct{}) {
	s, changed := l.State()
	return s.layout, changed
}

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

// parseState reads a state from the answer to a probe. Epoch, layout, the history around
// its version (see historyAt) and settings are of one snapshot. So even a process that
// has just started detects an invalid layout.
func (l *Ledger) parseState(answer store.Answer) *State {
	s := &State{revision: answer.Revision}
	epoch, ok := answer.One(0)
	if !ok {
		s.problem = l.invalid("epoch", "%w", record.Gone(l.keys.Epoch()))
		return s
	}
	var e record.Epoch
	if err := record.Decode(epoch, &e); err != nil {
		s.problem = l.invalid("epoch", "%w", err)
		return s
	}
	if e.Epoch == "" && e.Halted == nil {
		s.problem = l.invalid("epoch", "%w", record.NoEpoch(epoch.Key))
		return s
	}
	s.raw, s.epoch, s.total, s.ended, s.halted = epoch.Value, e.Epoch, e.MarginTotal, e.Ended, e.Halted
	s.notBefore = e.NotBefore
	if s.halted != nil {
		s.epoch = ""
	}
	var err error
	if s.settings, err = record.DecodeSettings(answer.Got[5]); err != nil {
		s.problem = l.invalid("cluster's settings", "%w", err)
		return s
	}
	layout, ok := answer.One(1)
	if !ok {
		s.problem = l.invalid("layout", "%w", record.Gone(l.keys.Layout()))
		return s
	}
	stored, err := record.DecodeLayout(layout)
	if err == nil {
		err = l.checkHistory(stored, layout, answer.Got[2])
	}
	if err != nil {
		s.problem = l.invalid("layout", "%w", err)
		return s
	}
	s.layout = stored
	s.layout.Revision = layout.ModRevision
	return s
}

// checkHistory checks a layout against its own key of the history and the keys
// beside that: it must be the newest, and its list of all rooms so far must not
// have shrunk.
func (l *Ledger) checkHistory(stored record.Layout, layout store.KV, history []store.KV) error {
	own := l.keys.LayoutAt(stored.Layout.Version)
	at := slices.IndexFunc(history, func(kv store.KV) bool { return kv.Key == own })
	switch {
	case at < 0:
		return fmt.Errorf("it is version %d, but there is no key %s", stored.Layout.Version, own)
	case at < len(history)-1:
		return fmt.Errorf("it is version %d, but the history goes on to %s", stored.Layout.Version, history[at+1].Key)
	case string(history[at].Value) != string(layout.Value):
		if _, err := record.DecodeLayout(history[at]); err != nil {
			return fmt.Errorf("its own history: %w", err)
		}
		return fmt.Errorf("it differs from its own history, %s", own)
	case at == 0:
		return nil
	}
	before, err := record.DecodeLayout(history[at-1])
	if err != nil {
		return fmt.Errorf("the version before it: %w", err)
	}
	return grown(stored.Ever, before.Ever)
}

// grown checks that no room is missing from the list of all rooms so far: its marks
// would no longer count for floors.
func grown(now, was []allocator.Room) error {
	if !record.ContainsAll(now, was) {
		return fmt.Errorf("its list of rooms that ever were, %v, has shrunk from %v", now, was)
	}
	return nil
}

func (l *Ledger) invalid(what, format string, args ...any) error {
	return &UnusableError{allocator.Errorf(allocator.Refused, "the %s in etcd cannot be used, nothing is leased until it is repaired: %w", what, fmt.Errorf(format, args...))}
}

// UnusableError is the reason for which the epoch or the layout in etcd cannot be
// used. Its Kind is Refused.
type UnusableError struct{ err error }

func (e *UnusableError) Error() string { return e.err.Error() }

// Unwrap returns the error with the Kind.
func (e *UnusableError) Unwrap() error { return e.err }

// adopt replaces the state by next, unless the present one is newer. The caller
// holds the lock.
func (l *Ledger) adopt(next *State) (record.Layout, error) {
	old := l.mu.state
	was := old.layout
	switch sameEpoch := next.id() == "" || next.id() == old.id(); {
	case sameEpoch && old.revision > next.revision:
		return old.layout, old.problem // another refresh overtook this one
	case next.problem != nil:
	case next.halted != nil && next.layout.Layout.Version < was.Layout.Version:
		// A restored etcd that was halted has forgotten layouts. Nothing is leased
		// under the layout that it has, and held IDs are served under the earlier
		// one.
		next.layout = was
	case !sameEpoch:
		// The remembered layouts belong to the epoch before.
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
	l.confirmations.Store(&confirmations{next.layout.Layout, l.confirmations.Load().all})
	if i := l.mu.instance; i != nil {
		i.admission.confirmOptional(next)
	}
	if next.same(old) {
		return next.layout, next.problem
	}
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
	switch {
	case next.halted != nil && old.halted == nil:
		l.regressions.Add(1)
		level := hclog.Error
		if l.mu.haltsAs == "" { // an operator's command prints it itself, or `march recover` wrote it
			level = hclog.Debug
		}
		l.log.Log(level, "leasing is halted", "by", next.halted.By, "since", next.halted.Time.UTC().Format(time.RFC3339), "why", next.halted.Why)
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

// same reports whether s and old have the same epoch, layout, settings and problem.
func (s *State) same(old *State) bool {
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	return s.layout.Revision == old.layout.Revision && string(s.raw) == string(old.raw) && s.settings.RequireJournal == old.settings.RequireJournal && text(s.problem) == text(old.problem)
}

// TagChange is a tag that was created, changed or deleted.
type TagChange struct {
	Name     allocator.Tag
	Settings *record.TagSettings // nil if it was deleted, or cannot be read
	Err      error               // why it cannot be read: a *record.KeyError
}

func (l *Ledger) tagChange(name allocator.Tag, kv store.KV) TagChange {
	if kv.ModRevision == 0 {
		return TagChange{Name: name}
	}
	t, err := l.keys.DecodeTag(kv)
	if err != nil {
		l.refusedLog.Log(time.Now(), l.log.Error, "tag refused: nothing is leased of it until it is repaired", "tag", name, "error", err)
		return TagChange{Name: name, Err: err}
	}
	return TagChange{Name: name, Settings: &t.TagSettings}
}

// watchPause is the pause before a watch that ended is begun again.
const watchPause = 200 * time.Millisecond

// Run watches epoch, layout, settings, tags and registrations until ctx ends, and returns nil then. It
// keeps Layout current, and calls onTag, from one goroutine, with each tag
// whose settings were changed or that was deleted. Changes that a watch missed
// (because of a compaction or a silent member) are not repeated to onTag: a lease
// sees them anyway.
func (l *Ledger) Run(ctx context.Context, onTag func(TagChange)) error {
	for ctx.Err() == nil {
		err := l.watch(ctx, onTag)
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

// watch reads the state, then follows what changes after it, until an error.
func (l *Ledger) watch(ctx context.Context, onTag func(TagChange)) error {
	answer, err := l.Gets(ctx, store.OpGet(l.keys.Layout()))
	if err != nil {
		return err
	}
	order := l.before().epochSeq
	if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) == allocator.Unavailable {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := l.store.Watch(ctx, []store.Interval{
		{Key: l.keys.Epoch()},
		{Key: l.keys.Layout()},
		{Key: l.keys.Settings()},
		{Key: l.keys.Layouts(), End: store.PrefixEnd(l.keys.Layouts())}, // repairing these keys may make a layout valid again
		{Key: l.keys.Tags(), End: store.PrefixEnd(l.keys.Tags())},
		{Key: l.keys.Registrations(""), End: store.PrefixEnd(l.keys.Registrations(""))},
	}, answer.Revision+1)
	for {
		_, adopted := l.State()
		if l.before().epochSeq != order {
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
		var registrations []store.KV
		for _, kv := range change.KVs {
			if name, err := l.keys.ParseTag(kv.Key); err == nil {
				onTag(l.tagChange(name, kv))
			} else if strings.HasPrefix(kv.Key, l.keys.Registrations("")) {
				if kv.ModRevision != 0 { // otherwise it was deleted
					registrations = append(registrations, kv)
				}
			} else if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) == allocator.Unavailable {
				return err
			}
		}
		if i := l.instance(); i != nil && len(registrations) > 0 {
			i.watched(registrations)
		}
	}
}

var errNewEpoch = errors.New("the epoch changed")
