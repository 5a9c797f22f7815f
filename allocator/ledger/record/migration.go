package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
)

// MigrationState says whether a migration goes on by itself.
type MigrationState string

// A migration runs or pauses until it is done or, after an abort, back.
const (
	Running MigrationState = "running"
	Paused  MigrationState = "paused"
	Done    MigrationState = "done"
	Aborted MigrationState = "aborted"
)

// Ended reports whether the migration has ended.
func (s MigrationState) Ended() bool { return s == Done || s == Aborted }

// Migration is the stored form of a migration from one layout to another through moves. It has
// everything that a console needs to go on with it.
type Migration struct {
	kept
	ID      string           `json:"-"` // a ULID, as the key has it
	State   MigrationState   `json:"state"`
	Abort   bool             `json:"abort,omitempty"` // the moves from some point on lead back
	From    allocator.Layout `json:"from"`
	Target  allocator.Layout `json:"target"`
	Moves   []Move           `json:"moves"`
	Reached int              `json:"reached"` // how many of Moves were made
	// how long a silent instance is waited for, if its own hold is not longer
	Hold    Duration   `json:"hold"`
	Without []Waiver   `json:"without,omitempty"` // instances that an operator decided to go on without
	Log     []LogEntry `json:"log"`
	Actor   string     `json:"actor"`
	Created time.Time  `json:"created"`
	Updated time.Time  `json:"updated"`
	Nonce   string     `json:"nonce"`
	// Error says what keeps the migration from going on, and since when; empty for nothing.
	Error      string    `json:"error,omitempty"`
	ErrorSince time.Time `json:"error_since,omitzero"`
	// NoWayBack is why an aborted migration ended at the layout that it had reached. Empty if
	// it did not.
	NoWayBack string `json:"no_way_back,omitempty"`

	KV store.KV `json:"-"`
}

// Move is a move of a plan, with its state in a migration.
type Move struct {
	kept
	plan.Move
	Made time.Time `json:"made,omitzero"` // zero before the move is made
	// Hold is the longest hold of the registered instances of Loses. It is set when the move is
	// planned, and by later changes of the migration until the move is made. ClientsUntil is
	// the end of these instances' leases to clients: until then the clients may still issue
	// residues that the rooms lost. It is zero before all instances have reported.
	Hold         Duration  `json:"hold,omitempty"` // stored with every move that was made
	ClientsUntil time.Time `json:"clients_until,omitzero"`
}

// MovesOf returns the moves of a plan, none of them made yet.
func MovesOf(planned ...plan.Move) []Move {
	moves := make([]Move, len(planned))
	for i, m := range planned {
		moves[i].Move = m
	}
	return moves
}

// MarshalJSON writes a move with its kept fields.
func (v Move) MarshalJSON() ([]byte, error) {
	type plain Move
	if !v.Made.IsZero() {
		v.Hold = cmp.Or(v.Hold, DurationOf(0))
	}
	return marshal(plain(v), v.Rest)
}

// UnmarshalJSON reads a move, and keeps fields that this program does not know.
func (v *Move) UnmarshalJSON(b []byte) (err error) {
	type plain Move
	if err = json.Unmarshal(b, (*plain)(v)); err == nil {
		v.Rest, err = unknown(b, v)
	}
	return err
}

// Waiver is an operator's decision that a migration goes on without an instance. It counts for
// the process that was registered then, and for the next move only.
type Waiver struct {
	Instance    InstanceID `json:"instance"`
	Incarnation string     `json:"incarnation"`
	Reached     int        `json:"reached"` // moves made so far
}

// MigrationEvent is what a line of a migration's log tells, as the word of march.v1's MigrationEvent.
type MigrationEvent string

// The events of a migration. A newer console may have written an event that is not here.
const (
	EventStarted   MigrationEvent = "started"
	EventMoved     MigrationEvent = "moved"
	EventReported  MigrationEvent = "reported"
	EventContinued MigrationEvent = "continued" // without instances
	EventStopped   MigrationEvent = "stopped"   // by an error
	EventPaused    MigrationEvent = "paused"
	EventResumed   MigrationEvent = "resumed"
	EventAborted   MigrationEvent = "aborted" // it ends later, if there is a way back
	EventEnded     MigrationEvent = "ended"
)

// LogEntry is one line of a migration's history.
type LogEntry struct {
	kept
	Time time.Time      `json:"time"`
	Text string         `json:"text"`
	Kind MigrationEvent `json:"kind,omitempty"` // the lines of consoles that knew no kinds have none
}

// MarshalJSON writes a line of the log with its kept fields.
func (v LogEntry) MarshalJSON() ([]byte, error) {
	type plain LogEntry
	return marshal(plain(v), v.Rest)
}

// UnmarshalJSON reads a line, and keeps fields that this program does not know.
func (v *LogEntry) UnmarshalJSON(b []byte) (err error) {
	type plain LogEntry
	if err = json.Unmarshal(b, (*plain)(v)); err == nil {
		v.Rest, err = unknown(b, v)
	}
	return err
}

// Encode returns the stored value of the migration.
func (m Migration) Encode() []byte {
	if m.Moves == nil { // it was aborted before the first move
		m.Moves = []Move{}
	}
	return Encode(&m)
}

// Brief is the form of a migration in the audit. The moves are under the migration's own key,
// which stays. With the moves twice more, a change of a long plan would exceed etcd's limit for
// one transaction.
func (m Migration) Brief() []byte {
	return Encode(&migrationBrief{
		State: m.State, Abort: m.Abort, From: m.From.Version, Target: m.Target,
		Moves: len(m.Moves), Reached: m.Reached, Hold: m.Hold, Without: m.Without,
	})
}

type migrationBrief struct {
	kept
	State   MigrationState   `json:"state"`
	Abort   bool             `json:"abort,omitempty"`
	From    int64            `json:"from,string"` // version of the layout
	Target  allocator.Layout `json:"target"`
	Moves   int              `json:"moves"`
	Reached int              `json:"reached"`
	Hold    Duration         `json:"hold"`
	Without []Waiver         `json:"without,omitempty"`
}

// Validate checks the layouts, the times and the progress of the migration.
func (m *Migration) Validate() error {
	errs := []error{m.Hold.validate(), m.From.Validate(), m.Target.Validate()}
	for _, move := range m.Moves {
		errs = append(errs, move.Layout.Validate(), move.Hold.validate())
	}
	for _, w := range m.Without {
		if w.Reached < 0 {
			errs = append(errs, fmt.Errorf("a waiver after %d moves", w.Reached))
		}
	}
	if !slices.Contains([]MigrationState{Running, Paused, Done, Aborted}, m.State) {
		errs = append(errs, fmt.Errorf("a migration's state %q", m.State))
	}
	if m.Reached < 0 || m.Reached > len(m.Moves) {
		errs = append(errs, fmt.Errorf("a migration with %d moves reached %d", len(m.Moves), m.Reached))
	}
	return cmp.Or(errs...)
}

// Waived reports whether an operator decided to make the next move without an instance. The end
// of a migration needs no decision of its own if the instance's room lost nothing since.
func (m Migration) Waived(i Instance) bool {
	return slices.ContainsFunc(m.Without, func(w Waiver) bool {
		ends := m.Reached == len(m.Moves) && w.Reached <= m.Reached &&
			!slices.ContainsFunc(m.Moves[w.Reached:], func(move Move) bool {
				return slices.Contains(move.Loses, i.Room)
			})
		return w.Instance == i.ID() && w.Incarnation == i.Incarnation && (w.Reached == m.Reached || ends)
	})
}

// Stands returns the layout that the migration has reached.
func (m Migration) Stands() allocator.Layout {
	if m.Reached == 0 {
		return m.From
	}
	return m.Moves[m.Reached-1].Layout
}

// Same reports whether two records of a migration are of one state of it.
func (m Migration) Same(other Migration) bool { return m.KV.ModRevision == other.KV.ModRevision }

// Fail stores what keeps the migration from going on; an empty text means nothing.
func (m *Migration) Fail(text string) {
	m.Error, m.ErrorSince = text, time.Time{}
	if text != "" {
		m.ErrorSince = Recorded(time.Now())
		m.Note(EventStopped, "cannot go on: "+text)
	}
}

// maxLog bounds a migration's log. The oldest lines go first, except the very first.
const maxLog = 200

// Note adds a line to the log.
func (m *Migration) Note(kind MigrationEvent, text string) { m.NoteAt(time.Now(), kind, text) }

// NoteAt adds a line on what was at a time; the present if at is zero. The log is in the order in
// which lines were added.
func (m *Migration) NoteAt(at time.Time, kind MigrationEvent, text string) {
	if at.IsZero() {
		at = time.Now()
	}
	m.Log = append(m.Log, LogEntry{Time: Recorded(at), Text: text, Kind: kind})
	if len(m.Log) > maxLog {
		m.Log = slices.Delete(m.Log, 1, len(m.Log)-maxLog+1)
	}
}

// Clone returns a copy that shares nothing that can change.
func (m Migration) Clone() Migration {
	m.Moves, m.Without, m.Log = slices.Clone(m.Moves), slices.Clone(m.Without), slices.Clone(m.Log)
	return m
}
