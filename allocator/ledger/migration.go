package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
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
	Without []InstanceID  // instances that an operator said to go on without
	Log     []LogEntry
	Actor   string
	Created time.Time
	Updated time.Time

	kv    KV
	nonce string
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
}

// InstanceID names an instance in the cluster: room/instance.
type InstanceID string

// ID returns the instance's name in the cluster.
func (r Registration) ID() InstanceID { return InstanceID(string(r.Room) + "/" + string(r.Name)) }

// LogEntry is one line of a migration's history.
type LogEntry struct {
	Time time.Time
	Text string
}

// maxLog bounds a migration's log; the oldest lines but the first go.
const maxLog = 200

// maxMigration bounds a migration as it begins: etcd refuses transactions above
// 1.5 MiB, and an abort may double the moves.
const maxMigration = 600 << 10

// Note adds a line to the log.
func (m *Migration) Note(text string) {
	m.Log = append(m.Log, LogEntry{Time: now(), Text: text})
	if len(m.Log) > maxLog {
		m.Log = slices.Delete(m.Log, 1, len(m.Log)-maxLog+1)
	}
}

// clone returns a copy that shares nothing that changes.
func (m Migration) clone() Migration {
	m.Moves, m.Without, m.Log = slices.Clone(m.Moves), slices.Clone(m.Without), slices.Clone(m.Log)
	return m
}

// StartMigration stores a migration that begins at the layout from, the
// current one. There is one at a time: its errors are Conflict (the layout is
// another by now), Exists (another migration is under way; the message names
// it), WentBack (leasing is halted) and Unavailable.
func (l *Ledger) StartMigration(ctx context.Context, from LayoutRecord, m Migration, actor string) (Migration, error) {
	s, err := l.lessableState(ctx)
	if err != nil {
		return Migration{}, err
	}
	m.ID, m.State, m.Actor, m.Created, m.nonce = ulid.Make().String(), Running, actor, now(), randomHex()
	m.Updated = m.Created
	m.Note("started by " + actor)
	key, value := l.keys.migration(m.ID), m.encode()
	if len(value) > maxMigration {
		return Migration{}, allocator.Errorf(allocator.Invalid, "plan: %d moves of %d rooms take %d bytes; allowed: %d, as etcd bounds what it stores at once: plan with --atomic, or in parts",
			len(m.Moves), len(m.From.Ranges), len(value), maxMigration)
	}
	answer, err := l.try(ctx, Txn{
		If: append(l.holds(s), absent(l.keys.activeMigration()), Cond{Key: l.keys.layout(), ModRevision: from.revision}),
		Then: []Op{
			put(key, value), put(l.keys.activeMigration(), encode(&holderValue{Name: m.ID})),
			l.audit(actor, "start migration", key, nil, m.brief()),
		},
		Else: []Op{get(l.keys.activeMigration()), get(l.keys.layout())},
	})
	if err != nil { // unknown: its ID tells
		if made, checkErr := l.Migration(ctx, m.ID); checkErr == nil {
			return made, nil
		}
		return Migration{}, err
	}
	if answer.Succeeded {
		m.kv = KV{Key: key, Value: value, ModRevision: answer.Revision}
		return m, nil
	}
	if kv, ok := answer.one(0); ok {
		var active holderValue
		if err := decode(kv, &active); err != nil {
			return Migration{}, err
		}
		if active.Name == m.ID {
			return l.Migration(ctx, m.ID)
		}
		return Migration{}, allocator.Errorf(allocator.Exists, "migration %s is under way, and there is one at a time: `march migrate status` shows it", active.Name)
	}
	current, err := l.Refresh(ctx)
	if err != nil {
		return Migration{}, err
	}
	return Migration{}, allocator.Errorf(allocator.Conflict, "the layout is version %d by now, the plan was made for version %d: plan again", current.Layout.Version, from.Layout.Version)
}

// Migration returns a migration. Its error is NotFound where there is none of
// that ID.
func (l *Ledger) Migration(ctx context.Context, id string) (Migration, error) {
	if err := l.attach(ctx); err != nil {
		return Migration{}, err
	}
	if _, err := ulid.ParseStrict(id); err != nil {
		return Migration{}, allocator.Errorf(allocator.Invalid, "migration: %q is not an ID of one (26 letters and digits)", id)
	}
	answer, err := l.gets(ctx, get(l.keys.migration(id)))
	if err != nil {
		return Migration{}, err
	}
	kv, ok := answer.one(0)
	if !ok {
		return Migration{}, allocator.Errorf(allocator.NotFound, "migration %s does not exist; `march migrate list` lists those that do", id)
	}
	return l.parseMigration(kv)
}

// ActiveMigration returns the migration that is under way, if one is.
func (l *Ledger) ActiveMigration(ctx context.Context) (Migration, bool, error) {
	if err := l.attach(ctx); err != nil {
		return Migration{}, false, err
	}
	answer, err := l.gets(ctx, get(l.keys.activeMigration()))
	if err != nil {
		return Migration{}, false, err
	}
	kv, ok := answer.one(0)
	if !ok {
		return Migration{}, false, nil
	}
	var active holderValue
	if err := decode(kv, &active); err != nil {
		return Migration{}, false, err
	}
	m, err := l.Migration(ctx, active.Name)
	return m, err == nil, err
}

// Migrations returns up to n migrations older than the one before, empty for
// no bound, the newest first.
func (l *Ledger) Migrations(ctx context.Context, before string, n int) ([]Migration, error) {
	if err := l.attach(ctx); err != nil {
		return nil, err
	}
	within := Interval{Key: l.keys.migrations(), End: prefixEnd(l.keys.migrations())}
	if before != "" {
		if _, err := ulid.ParseStrict(before); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "migration: %q is not an ID of one (26 letters and digits)", before)
		}
		within.End = l.keys.migration(before)
	}
	answer, err := l.gets(ctx, Op{Get: &Get{Interval: within, Limit: int64(n), Descending: true}})
	if err != nil {
		return nil, err
	}
	list := make([]Migration, 0, len(answer.Got[0]))
	for _, kv := range answer.Got[0] {
		m, err := l.parseMigration(kv)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// UpdateMigration stores what change makes of m, where m still is as it was
// read. action and actor are for the audit; an empty action leaves none (the
// driver's own notes). A migration that ended makes room for the next. Its
// errors are change's own, Conflict and Unavailable.
func (l *Ledger) UpdateMigration(ctx context.Context, m Migration, action, actor string, change func(*Migration) error) (Migration, error) {
	next := m.clone()
	if err := change(&next); err != nil {
		return Migration{}, err
	}
	next.Updated, next.nonce = now(), randomHex()
	value := next.encode()
	txn := Txn{If: []Cond{unchanged(m.kv)}, Then: []Op{put(m.kv.Key, value)}}
	if action != "" {
		txn.Then = append(txn.Then, l.audit(actor, action, m.kv.Key, m.brief(), next.brief()))
	}
	if next.State.Ended() && !m.State.Ended() {
		txn.Then = append(txn.Then, Op{Delete: l.keys.activeMigration()})
	}
	answer, err := l.try(ctx, txn)
	if err == nil && answer.Succeeded {
		next.kv = KV{Key: m.kv.Key, Value: value, ModRevision: answer.Revision}
		return next, nil
	}
	// Unknown, or perhaps sent twice: the nonce tells.
	if check, checkErr := l.Migration(ctx, m.ID); checkErr == nil && check.nonce == next.nonce {
		return check, nil
	}
	if err != nil {
		return Migration{}, err
	}
	return Migration{}, allocator.Errorf(allocator.Conflict, "migration %s was changed by somebody else just now: look again", m.ID)
}

// MakeMove makes the next move of m, where the layout is the one that the move
// before it made, and m is as it was read: layout and migration change in one
// transaction, so no move is made twice or forgotten. Its errors are Conflict,
// WentBack and Unavailable, after which the migration is to be read again: it
// says whether the move was made.
func (l *Ledger) MakeMove(ctx context.Context, m Migration) (Migration, error) {
	if m.Reached >= len(m.Moves) {
		return Migration{}, allocator.Errorf(allocator.Internal, "migration %s has no move after %d", m.ID, m.Reached)
	}
	from, err := l.Refresh(ctx)
	if err != nil {
		return Migration{}, err
	}
	next := m.clone()
	move := &next.Moves[next.Reached]
	before := m.From
	if m.Reached > 0 {
		before = m.Moves[m.Reached-1].Layout
	}
	if !from.Layout.Equal(before) {
		return Migration{}, allocator.Errorf(allocator.Conflict, "the layout is version %d, not the one that move %d of migration %s begins with", from.Layout.Version, m.Reached+1, m.ID)
	}
	move.Made, move.Layout.Version = now(), from.Layout.Version+1
	next.Reached++
	next.Note("move " + move.Kind + " made: layout version " + itoa(move.Layout.Version))
	next.Updated, next.nonce = now(), randomHex()
	value := next.encode()
	made, err := l.changeLayout(ctx, from, move.Layout, "migration "+m.ID, Txn{
		If:   []Cond{unchanged(m.kv)},
		Then: []Op{put(m.kv.Key, value)},
	})
	if err != nil {
		return Migration{}, err
	}
	if made.Layout.Version != move.Layout.Version {
		return Migration{}, allocator.Errorf(allocator.Conflict, "migration %s was changed by somebody else just now: look again", m.ID)
	}
	// Not read again: that may show it as it was before. One transaction wrote
	// both keys.
	next.kv = KV{Key: m.kv.Key, Value: value, ModRevision: made.revision}
	return next, nil
}
