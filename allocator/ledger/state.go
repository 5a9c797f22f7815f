package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/throttle"
)

// knowledge is what this process knows of etcd: the cluster's identity, the clock of epochs, the state.
type knowledge struct {
	cfg  Config
	keys record.Keys
	log  hclog.Logger

	regressions   atomic.Int64
	confirmations atomic.Pointer[confirmations] // see Confirmed; never nil, stored under mu

	// Throttles for messages about conditions that last and would be logged again
	// and again.
	wentBackLog, refusedLog throttle.Log

	mu struct {
		sync.Mutex
		identity record.Identity // zero until the cluster's was read
		clock    epochClock
		ages     ages
		state    *State        // never nil
		changed  chan struct{} // closed when state is replaced
		version  int64         // of the layout, as last read; see historyAt
		// the name under which this process halts leasing if etcd goes back; empty if it may not
		haltsAs  string
		instance *Instance // this process's; nil if it has none
	}
}

// with calls do under the lock.
func (l *knowledge) with(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
}

// sawBack counts and logs err, which says that etcd went back in time, and returns
// it. If leasing is halted because of it, setState counts that.
func (l *knowledge) sawBack(ctx context.Context, err error) error {
	l.regressions.Add(1)
	l.wentBackLog.Log(time.Now(), l.log.Error, "etcd went back in time", append(traceID(ctx), "error", err)...)
	return err
}

// Regressions returns how often this ledger saw etcd go back in time, or
// leasing halted because another process did.
func (l *knowledge) Regressions() int64 { return l.regressions.Load() }

// State is a ledger's knowledge of epoch and layout: one snapshot, immutable.
type State struct {
	revision int64  // of the store when it was read
	raw      []byte // the epoch's value as it stands in etcd, which transactions compare

	epoch     string            // empty if unknown or halted
	began     int64             // the revision at which the epoch, or the halt, was written
	margins   record.Margins    // of the epoch, or of the epoch that a halt stopped
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
		text := fmt.Sprintf("leasing is halted by %s since %s: %s",
			s.halted.By, s.halted.Time.UTC().Format(time.RFC3339), s.halted.Why)
		text = strings.Join(strings.Fields(text), " ") // who halts it begins no line of a probe's answer
		if !strings.Contains(text, "`march recover`") {
			text += "; see `march recover`"
		}
		return allocator.Errorf(allocator.WentBack, "%s", text)
	case s.epoch == "":
		return allocator.Errorf(allocator.Unavailable, "the layout has not been read from etcd yet")
	}
	return nil
}

// Layout returns the layout of s: the last good one if Refusal says that the one in etcd
// cannot be used.
func (s *State) Layout() record.Layout { return s.layout }

// Epoch names the epoch in force, or the halt.
func (s *State) Epoch() string { return s.id() }

// MarginTotal returns the margin total of the epoch, or of the epoch that a halt stopped.
func (s *State) MarginTotal() int64 { return s.margins.Total }

// End returns the end of a tag's IDs: see record.Layout.End.
func (s *State) End(t record.Tag, marks map[allocator.Room]record.Mark, now time.Time) int64 {
	return s.layout.End(t, s.margins, marks, now)
}

// Recovered reports whether a recover began the epoch.
func (s *State) Recovered() bool { return s.ended != nil }

// Under returns s with another layout: the state after a change to that layout.
func (s *State) Under(layout record.Layout) *State {
	return &State{epoch: s.epoch, margins: s.margins, layout: layout}
}

func (s *State) stamp() record.Stamp {
	return record.Stamp{Epoch: s.epoch, Revision: s.layout.Revision}
}

// State returns the state and a channel that is closed when it is replaced.
func (l *knowledge) State() (*State, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.state, l.mu.changed
}

// Revision returns that of etcd when the state was read.
func (l *knowledge) Revision() int64 {
	s, _ := l.State()
	return s.revision
}

// epoch returns the epoch in force as this process knows it, empty where there
// is none.
func (l *knowledge) epoch() string {
	s, _ := l.State()
	return s.epoch
}

// Layout returns the layout as this process knows it, and a channel that is
// closed when it knows a newer one. The record is zero before the first
// Refresh or Run read it.
func (l *knowledge) Layout() (record.Layout, <-chan struct{}) {
	s, changed := l.State()
	return s.layout, changed
}

// Holds returns the conditions that epoch and layout are state's.
func (l *knowledge) Holds(state *State) []store.Cond {
	return []store.Cond{
		l.HoldsEpoch(state),
		{Key: l.keys.Layout(), ModRevision: state.layout.Revision},
	}
}

// HoldsEpoch returns the condition that the epoch is state's.
func (l *knowledge) HoldsEpoch(state *State) store.Cond {
	return store.HasValue(l.keys.Epoch(), state.raw)
}

// parseState reads a state from the answer to a probe. Epoch, layout, the history around
// its version (see historyAt) and settings are of one snapshot. So even a process that
// has just started detects an invalid layout.
func (l *knowledge) parseState(answer store.Answer) *State {
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
	s.raw, s.epoch, s.margins, s.ended, s.halted = epoch.Value, e.Epoch, e.Margins(), e.Ended, e.Halted
	s.began, s.notBefore = epoch.ModRevision, e.NotBefore
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
func (l *knowledge) checkHistory(stored record.Layout, layout store.KV, history []store.KV) error {
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
	return grown(stored, before)
}

// grown checks that no room is missing from the list of all rooms so far, as its marks
// would no longer count for floors, and that no formats were turned off, as keys may be
// written in them.
func grown(now, was record.Layout) error {
	if !record.ContainsAll(now.Ever, was.Ever) {
		return fmt.Errorf("its list of rooms that ever were, %v, has shrunk from %v", now.Ever, was.Ever)
	}
	if now.Formats < was.Formats {
		return fmt.Errorf("its formats, %d, are below those of the layout before it, %d: "+
			"`march recover` of this version turns them on again", max(now.Formats, 1), was.Formats)
	}
	return nil
}

func (l *knowledge) invalid(what, format string, args ...any) error {
	return &UnusableError{allocator.Errorf(allocator.Refused,
		"the %s in etcd cannot be used, nothing is leased until it is repaired: %w", what, fmt.Errorf(format, args...))}
}

// UnusableError is the reason for which the epoch or the layout in etcd cannot be
// used. Its Kind is Refused.
type UnusableError struct{ err error }

func (e *UnusableError) Error() string { return e.err.Error() }

// Unwrap returns the error with the Kind.
func (e *UnusableError) Unwrap() error { return e.err }

// setState replaces the state by next, unless the present one is newer. The caller
// holds the lock.
func (l *knowledge) setState(said *pending.Lines, next *State) (record.Layout, error) {
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
		next.problem = l.invalid("layout",
			"its version %d is below %d, which was in force", next.layout.Layout.Version, was.Layout.Version)
	default:
		if err := grown(next.layout, was); err != nil {
			next.problem = l.invalid("layout", "%w", err)
		}
	}
	if next.problem != nil {
		next.layout = was // the last good one
	}
	l.mu.state = next
	if next.epoch != old.epoch { // revisions of a history that a restore ended may come again
		l.mu.ages = ages{}
	}
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
		said.Add(level, "leasing is halted", "by", next.halted.By, "since", next.halted.Time.UTC().Format(time.RFC3339),
			"why", next.halted.Why)
	case next.halted == nil && old.halted != nil && next.epoch != "":
		said.Add(hclog.Info, "leasing goes on")
	}
	switch {
	case next.problem != nil:
		said.Add(hclog.Error, "layout refused", "error", next.problem)
	case next.layout.Layout.Version != old.layout.Layout.Version:
		said.Add(hclog.Info, "layout adopted", "version", next.layout.Layout.Version, "boundary",
			next.layout.Layout.Boundary, "rooms", len(next.layout.Layout.Ranges))
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
	return s.layout.Revision == old.layout.Revision && string(s.raw) == string(old.raw) &&
		s.settings.RequireJournal == old.settings.RequireJournal && text(s.problem) == text(old.problem)
}

// TagChange is a tag that was created, changed or deleted.
type TagChange struct {
	Name     allocator.Tag
	Settings *record.TagSettings // nil if it was deleted, or cannot be read
	Err      error               // why it cannot be read: a *record.KeyError
}

func (l *knowledge) tagChange(name allocator.Tag, kv store.KV) TagChange {
	if kv.ModRevision == 0 {
		return TagChange{Name: name}
	}
	t, err := l.keys.DecodeTag(kv)
	if allocator.KindOf(err) == allocator.NotFound {
		return TagChange{Name: name}
	}
	if err != nil {
		l.refusedLog.Log(time.Now(), l.log.Error,
			"tag refused: nothing is leased of it until it is repaired", "tag", name, "error", err)
		return TagChange{Name: name, Err: err}
	}
	return TagChange{Name: name, Settings: &t.TagSettings}
}

// watchPause is the pause before a watch that ended is begun again.
const watchPause = 200 * time.Millisecond

var errNewEpoch = errors.New("the epoch changed")

// errEntering is why nothing is leased while an instance enters an epoch. It is no trouble: what keeps it from that is.
var errEntering = &allocator.Error{Kind: allocator.Unavailable,
	Msg: "a new epoch began: this instance first compares its leases with the marks"}

// refusal returns why nothing can be leased now. The caller holds the lock.
func (l *knowledge) refusal() error {
	if err := l.mu.state.Refusal(); err != nil {
		return err
	}
	switch d, i := l.mu.clock.suspicion, l.mu.instance; {
	case d != nil:
		return allocator.Errorf(allocator.WentBack,
			"etcd may have gone back in time, nothing is leased until that is cleared up: %s", d.why)
	case i != nil && l.mu.clock.entering:
		return errEntering
	case l.unconfirmed():
		return allocator.Errorf(allocator.Refused, "%w", &UnconfirmedError{i.room, i.name})
	}
	return nil
}

// marksOf returns reads of a tag's marks of all rooms that ever were.
func (l *Ledger) marksOf(s *State, tag allocator.Tag) []store.Op {
	ops := make([]store.Op, len(s.layout.Ever))
	for k, room := range s.layout.Ever {
		ops[k] = store.OpGet(l.keys.Mark(room, tag))
	}
	return ops
}

// decodeMarks decodes what reads of marksOf found.
func (s *State) decodeMarks(found [][]store.KV) (marks map[allocator.Room]record.Mark, err error) {
	marks = make(map[allocator.Room]record.Mark, len(found))
	for k, room := range s.layout.Ever {
		if len(found[k]) > 0 {
			if marks[room], err = record.DecodeMark(found[k][0]); err != nil {
				return nil, err
			}
		}
	}
	return marks, nil
}
