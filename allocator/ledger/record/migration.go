package record

import (
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
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
	ID      string // a ULID
	State   MigrationState
	Abort   bool // the moves from some point on lead back
	From    allocator.Layout
	Target  allocator.Layout
	Moves   []Move
	Reached int           // so many of Moves were made
	Hold    time.Duration // for how long a silent instance is waited for, if its own hold is not longer
	Without []Waiver      // instances that an operator said to go on without
	Log     []LogEntry
	Actor   string
	Created time.Time
	Updated time.Time
	// Error is what keeps it from going on, since when; empty for nothing.
	Error      string
	ErrorSince time.Time
	// NoWayBack is why the migration ended where it stood when it was aborted. Empty
	// where it did not.
	NoWayBack string

	KV    store.KV
	Nonce string
	rest  []byte // as header has it
}

// Move is one change of layout in a migration.
type Move struct {
	Kind   string
	Why    string
	Layout allocator.Layout // Version is the one it has or will have
	Loses  []allocator.Room // rooms that lose residues: their instances must report before the next move
	Made   time.Time        // zero before it is made
	// Hold is the longest hold of the instances of Loses that were registered when
	// the move was planned, or before a later change of the migration until it was
	// made; and ClientsUntil when what they leased to clients ends: until then these
	// may still issue residues that the rooms lost. It is zero before all reported.
	Hold         time.Duration
	ClientsUntil time.Time

	rest []byte // as header has it
}

// Waiver is an operator's word that a migration goes on without an instance: for
// the one process that was registered then, and for the next move only.
type Waiver struct {
	Instance    InstanceID
	Incarnation string
	Reached     int // the moves made so far
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

// LogEntry is one line of a migration's history.
type LogEntry struct {
	Time time.Time
	Text string

	rest []byte // as header has it
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
