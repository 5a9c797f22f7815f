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

// MigrationState says what becomes of a migration by itself.
type MigrationState string

// A migration runs or pauses until it is done or, when it was aborted, back.
const (
	Running MigrationState = "running"
	Paused  MigrationState = "paused"
	Done    MigrationState = "done"
	Aborted MigrationState = "aborted"
)

// Ended reports whether nothing more will happen.
func (s MigrationState) Ended() bool { return s == Done || s == Aborted }

// Migration is a way from one layout to another through moves, as it is
// stored. It says everything that a console needs to go on with it.
type Migration struct {
	kept
	ID      string           `json:"-"` // a ULID, as the key has it
	State   MigrationState   `json:"state"`
	Abort   bool             `json:"abort,omitempty"` // the moves from some point on lead back
	From    allocator.Layout `json:"from"`
	Target  allocator.Layout `json:"target"`
	Moves   []Move           `json:"moves"`
	Reached int              `json:"reached"`           // so many of Moves were made
	Hold    Duration         `json:"hold"`              // for how long a silent instance is waited for, if its own hold is not longer
	Without []Waiver         `json:"without,omitempty"` // instances that an operator said to go on without
	Log     []LogEntry       `json:"log"`
	Actor   string           `json:"actor"`
	Created time.Time        `json:"created"`
	Updated time.Time        `json:"updated"`
	Nonce   string           `json:"nonce"`
	// Error is what keeps it from going on, since when; empty for nothing.
	Error      string    `json:"error,omitempty"`
	ErrorSince time.Time `json:"error_since,omitzero"`
	// NoWayBack is why the migration ended where it stood when it was aborted. Empty
	// where it did not.
	NoWayBack string `json:"no_way_back,omitempty"`

	KV store.KV `json:"-"`
}

// Move is a move of a plan, and what a migration notes of it.
type Move struct {
	kept
	plan.Move
	Made time.Time `json:"made,omitzero"` // zero before it is made
	// Hold is the longest hold of the instances of Loses that were registered when
	// the move was planned, or before a later change of the migration until it was
	// made; and ClientsUntil when what they leased to clients ends: until then these
	// may still issue residues that the rooms lost. It is zero before all reported.
	Hold         Duration  `json:"hold,omitempty"` // stored of every move that was made
	ClientsUntil time.Time `json:"clients_until,omitzero"`
}

// MovesOf returns moves of a plan of which nothing is noted yet.
func MovesOf(planned ...plan.Move) []Move {
	moves := make([]Move, len(planned))
	for i, m := range planned {
		moves[i].Move = m
	}
	return moves
}

// MarshalJSON writes a move with the fields that are kept in it.
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

// Waiver is an operator's word that a migration goes on without an instance: for
// the one process that was registered then, and for the next move only.
type Waiver struct {
	Instance    InstanceID `json:"instance"`
	Incarnation string     `json:"incarnation"`
	Reached     int        `json:"reached"` // the moves made so far
}

// LogEntry is one line of a migration's history.
type LogEntry struct {
	kept
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

// MarshalJSON writes a line of the log with the fields that are kept in it.
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

// Encode returns the value under which the migration is stored.
func (m Migration) Encode() []byte {
	if m.Moves == nil { // it was aborted before the first
		m.Moves = []Move{}
	}
	return Encode(&m)
}

// Brief is what the audit keeps of a migration. The moves are under its own
// key, which stays: with them twice more, a change of a long plan would be more
// than etcd takes in one transaction.
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
	From    int64            `json:"from,string"` // the layout version
	Target  allocator.Layout `json:"target"`
	Moves   int              `json:"moves"`
	Reached int              `json:"reached"`
	Hold    Duration         `json:"hold"`
	Without []Waiver         `json:"without,omitempty"`
}

// ParseMigration reads a migration with the ID that its key has.
func (k Keys) ParseMigration(kv store.KV) (Migration, error) { return readAs[Migration](k, kv) }

func readMigration(key KeyParts, kv store.KV) (any, error) {
	m, err := decode[Migration](kv)
	m.ID, m.KV = key.ulid, kv
	return m, err
}

// Validate checks the layouts, the times and how far the migration is.
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

// Waived reports whether an operator said to make the next move without an
// instance. The end of a migration needs no word of its own where the instance's
// room lost nothing since.
func (m Migration) Waived(i Instance) bool {
	return slices.ContainsFunc(m.Without, func(w Waiver) bool {
		ends := m.Reached == len(m.Moves) && w.Reached <= m.Reached &&
			!slices.ContainsFunc(m.Moves[w.Reached:], func(move Move) bool { return slices.Contains(move.Loses, i.Room) })
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

// Fail notes what keeps the migration from going on, an empty text that nothing
// does.
func (m *Migration) Fail(text string) {
	m.Error, m.ErrorSince = text, time.Time{}
	if text != "" {
		m.ErrorSince = Recorded(time.Now())
		m.Note("cannot go on: " + text)
	}
}

// maxLog bounds a migration's log; the oldest lines but the first go.
const maxLog = 200

// Note adds a line to the log.
func (m *Migration) Note(text string) {
	m.Log = append(m.Log, LogEntry{Time: Recorded(time.Now()), Text: text})
	if len(m.Log) > maxLog {
		m.Log = slices.Delete(m.Log, 1, len(m.Log)-maxLog+1)
	}
}

// Clone returns a copy that shares nothing that changes.
func (m Migration) Clone() Migration {
	m.Moves, m.Without, m.Log = slices.Clone(m.Moves), slices.Clone(m.Without), slices.Clone(m.Log)
	return m
}
