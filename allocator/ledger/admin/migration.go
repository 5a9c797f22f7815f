package admin

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// maxMigration bounds a migration as it begins: etcd refuses transactions above
// 1.5 MiB, and an abort may double the moves.
const maxMigration = 600 << 10

// StartMigration stores a migration that begins at the current layout, from. There
// is one at a time: its errors are Conflict (the layout has changed), Exists (another
// migration is under way; the message names it), WentBack (leasing is halted) and
// Unavailable.
func (a *Admin) StartMigration(ctx context.Context, from record.Layout, m record.Migration,
	actor string) (record.Migration, error) {
	s, err := a.Ledger.LeasableState(ctx)
	if err != nil {
		return record.Migration{}, err
	}
	m.ID, m.State, m.Actor, m.Created, m.Nonce = record.NewULID(), record.Running, actor,
		a.now(), record.RandomHex()
	m.Updated = m.Created
	m.Note(record.EventStarted, "started by "+actor)
	key, value := a.keys.Migration(m.ID), m.Encode()
	if len(value) > maxMigration {
		return record.Migration{}, allocator.Errorf(allocator.Invalid,
			"plan: %d moves of %d rooms take %d bytes; allowed: %d, because etcd bounds the size of a write: "+
				"plan with --atomic, or in parts",
			len(m.Moves), len(m.From.Ranges), len(value), maxMigration)
	}
	answer, err := a.Ledger.Change(ctx, store.Txn{
		If: append(a.Ledger.Holds(s), store.Absent(a.keys.ActiveMigration()),
			store.Cond{Key: a.keys.Layout(), ModRevision: from.Revision}),
		Then: []store.Op{
			store.OpPut(key, value), store.OpPut(a.keys.ActiveMigration(),
				record.Encode(&record.ActiveMigration{Name: m.ID})),
			a.audit(actor, "start migration", key, nil, m.Brief()),
		},
		Else: []store.Op{store.OpGet(a.keys.ActiveMigration()), store.OpGet(a.keys.Layout())},
	}, a.keys.All(record.Migrations))
	refused := errors.New("the conditions do not hold")
	err = store.Outcome(answer, err, func() bool { // its ID shows whether it was stored
		_, err := a.Migration(ctx, m.ID)
		return err == nil
	}, refused)
	switch {
	case err == nil && answer.Succeeded:
		m.KV = store.KV{Key: key, Value: value, ModRevision: answer.Revision}
		a.lastActive.Store(&m.ID)
		return m, nil
	case err == nil:
		return a.Migration(ctx, m.ID)
	case err != refused:
		return record.Migration{}, err
	}
	if kv, ok := answer.One(0); ok {
		var active record.ActiveMigration
		if err := record.Decode(kv, &active); err != nil {
			return record.Migration{}, err
		}
		return record.Migration{}, allocator.Errorf(allocator.Exists,
			"migration %s is under way, and there is one at a time: `march migrate status` shows it", active.Name)
	}
	current, err := a.Ledger.Refresh(ctx)
	if err != nil {
		return record.Migration{}, err
	}
	return record.Migration{}, allocator.Errorf(allocator.Conflict,
		"the layout is version %d by now, the plan was made for version %d: plan again",
		current.Layout.Version, from.Layout.Version)
}

// Migrations returns up to n migrations older than the one before, empty for
// no bound, the newest first, and the keys among them that cannot be read.
func (a *view) Migrations(ctx context.Context, before string, n int) ([]record.Migration, []record.KeyError, error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, nil, err
	}
	within := store.Prefix(a.keys.All(record.Migrations))
	if before != "" {
		if _, err := ulid.ParseStrict(before); err != nil {
			return nil, nil, allocator.Errorf(allocator.Invalid,
				"migration: %q is not an ID of one (26 letters and digits)", before)
		}
		within.End = a.keys.Migration(before)
	}
	return readPage(ctx, a, store.Get{Interval: within, Descending: true}, n, reads[record.Migration](a))
}

// UpdateMigration applies change to m and stores the result, if m has not changed
// since it was read. action and actor are for the audit; an empty action writes no
// entry (for the consoles' own notes). A migration that ended makes room for the
// next. Its errors are change's own, Conflict and Unavailable.
func (a *Admin) UpdateMigration(ctx context.Context, m record.Migration, action, actor string,
	change func(*record.Migration) error) (record.Migration, error) {
	if err := a.Ledger.Attach(ctx); err != nil {
		return record.Migration{}, err
	}
	next := m.Clone()
	if err := change(&next); err != nil {
		return record.Migration{}, err
	}
	next.Updated, next.Nonce = a.now(), record.RandomHex()
	value := next.Encode()
	txn := store.Txn{If: []store.Cond{store.Unchanged(m.KV)}, Then: []store.Op{store.OpPut(m.KV.Key, value)}}
	if action != "" {
		txn.Then = append(txn.Then, a.audit(actor, action, m.KV.Key, m.Brief(), next.Brief()))
		txn = txn.With(a.Ledger.MakeRoom(ctx))
	}
	if next.State.Ended() && !m.State.Ended() {
		txn.Then = append(txn.Then, store.Op{Delete: a.keys.ActiveMigration()})
	}
	answer, err := a.Ledger.Try(ctx, txn)
	if err == nil && answer.Succeeded {
		next.KV = store.KV{Key: m.KV.Key, Value: value, ModRevision: answer.Revision}
		return next, nil
	}
	err = store.Outcome(answer, err, func() bool {
		var checkErr error
		m, checkErr = a.Migration(ctx, next.ID)
		return checkErr == nil && m.Nonce == next.Nonce
	}, allocator.Errorf(allocator.Conflict,
		"migration %s was changed by another console, or an operator, just now: look again", next.ID))
	if err != nil {
		return record.Migration{}, err
	}
	return m, nil
}

// MakeMove makes the next move of m under three conditions: the layout is the one that
// the move before it made; m has not changed since it was read; and the epoch is still
// the one of s, under which the instances were read that m waited for (nil if it waited
// for none). Otherwise a restore and a recover may lie between their reports and the
// move. Layout and migration change in one transaction, so no move is made twice or
// forgotten. Its errors are Conflict, WentBack and Unavailable. After an error read the
// migration again: it shows whether the move was made.
func (a *Admin) MakeMove(ctx context.Context, m record.Migration, s *ledger.State) (record.Migration, error) {
	if m.Reached >= len(m.Moves) {
		return record.Migration{}, allocator.Errorf(allocator.Internal,
			"migration %s has no move after %d", m.ID, m.Reached)
	}
	if s == nil {
		checked, err := a.Ledger.CheckWith(ctx)
		if err != nil {
			return record.Migration{}, err
		}
		s = checked.State
	}
	if err := cmp.Or(s.Refusal(), a.Ledger.Leasable()); err != nil {
		return record.Migration{}, err
	}
	from := s.Layout()
	next := m.Clone()
	move := &next.Moves[next.Reached]
	before := m.Stands()
	if !from.Layout.Equal(before) {
		return record.Migration{}, allocator.Errorf(allocator.Conflict,
			"the layout is version %d, not the one that move %d of migration %s begins with: "+
				"a console ends the migration where it stands", from.Layout.Version, m.Reached+1, m.ID)
	}
	move.Made, move.Layout.Version = a.now(), from.Layout.Version+1
	next.Reached++
	next.Fail("")
	next.Note(record.EventMoved, "move "+string(move.Kind)+" made: layout version "+
		strconv.FormatInt(move.Layout.Version, 10))
	next.Updated, next.Nonce = a.now(), record.RandomHex()
	value := next.Encode()
	with := store.Txn{
		If:   []store.Cond{store.Unchanged(m.KV)},
		Then: []store.Op{store.OpPut(m.KV.Key, value)},
	}
	made, err := a.changeLayout(ctx, s, from, from.Next(move.Layout), "migration "+m.ID, with)
	if err != nil {
		return record.Migration{}, err
	}
	if made.Layout.Version != move.Layout.Version {
		return record.Migration{}, allocator.Errorf(allocator.Conflict,
			"migration %s was changed by another console, or an operator, just now: look again", m.ID)
	}
	// Do not read it again: a stale read may show the old value. One transaction
	// wrote both keys.
	next.KV = store.KV{Key: m.KV.Key, Value: value, ModRevision: made.Revision}
	return next, nil
}
