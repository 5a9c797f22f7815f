package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A rollback of raft's own data (most members' directories copied back) keeps
// cluster ID, term and index: only what processes and journals remember shows
// it. Where a cluster requires journals, an instance that starts without its own is
// unconfirmed: it leases nothing before an operator has confirmed that the store
// has all that it may have leased (Ledger.ConfirmInstance). In a store in which
// nothing was ever leased there is nothing to confirm, so a new cluster comes up by
// itself.
//
// An instance counts as unconfirmed if its journal is new or gone, if its journal does
// not cover the process that was last registered under its name, or if it began
// unconfirmed and leased nothing since: the journal keeps that. An instance counts as
// confirmed if it ran or started while journals were optional.
//
// An instance that has its journal, but leased nothing since etcd's data was copied, is
// confirmed and sees nothing. It may lease IDs that other instances leased, if their
// journals are gone. The documentation says so.

// unconfirmed is why this process leases nothing where journals are required.
// Immutable.
type unconfirmed struct {
	room allocator.Room
	name allocator.Instance
}

// refusesUnconfirmed returns why an instance without its journal leases nothing. The
// caller holds the lock.
func (l *Ledger) refusesUnconfirmed() error {
	u := l.mu.unconfirmed
	if u == nil || !l.requiresJournal(l.mu.state) {
		return nil
	}
	return allocator.Errorf(allocator.Refused, "%w", &UnconfirmedError{u.room, u.name})
}

// UnconfirmedError says that an instance started without its journal, where one is
// required, and its marks are not confirmed yet.
type UnconfirmedError struct {
	Room allocator.Room
	Name allocator.Instance
}

func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("instance %s/%s started without its journal, and this cluster requires one: it leases nothing until an operator has confirmed its marks; if etcd did not go back in time, `march instance confirm %s %s`, else `march recover`",
		e.Room, e.Name, e.Room, e.Name)
}

// requiresJournal reports whether a journal is required under s. The caller
// holds the lock.
func (l *Ledger) requiresJournal(s *State) bool {
	return l.mu.demands || bool(s.settings.RequireJournal)
}

// confirmOptional confirms a process that runs while no journal is required: it has a
// memory of its own from then on. A halted store does not count: it may be one that
// was restored, and has forgotten the setting. The caller holds the lock.
func (l *Ledger) confirmOptional() {
	if s := l.mu.state; s.problem == nil && s.epoch != "" && !l.requiresJournal(s) {
		l.mu.unconfirmed = nil
	}
}

// startUnconfirmed makes this process an unconfirmed one.
func (i *Instance) startUnconfirmed() {
	l := i.ledger
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	i.memory.unconfirmed = true
	l.mu.unconfirmed = &unconfirmed{room: i.room, name: i.name}
	l.confirmOptional()
}

// refused reports whether this process leases nothing because it is unconfirmed.
func (l *Ledger) refused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.unconfirmed != nil && l.requiresJournal(l.mu.state)
}

// Unconfirmed reports whether this process leases nothing because it started without its
// journal, which is required, and its marks are not confirmed yet.
func (l *Ledger) Unconfirmed() bool { return l.refused() }

// confirmed ends that this process is unconfirmed.
func (l *Ledger) confirmed(by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.mu.unconfirmed; u != nil {
		l.log.Info("an instance's marks are confirmed: it leases", "instance", u.name, "room", u.room, "by", by)
	}
	l.mu.unconfirmed = nil
}

// loadPredecessor makes this process unconfirmed if its journal does not cover its
// predecessor, the process that it replaces. That is written down before the
// predecessor's registration goes.
func (i *Instance) loadPredecessor(ctx context.Context, found []store.KV) error {
	var was record.Registration
	if len(found) == 0 || i.memory.unconfirmed {
		return nil
	}
	if err := record.Decode(found[0], &was); err != nil {
		return err
	}
	if slices.Contains(i.memory.incarnations, was.Incarnation) {
		return nil
	}
	i.startUnconfirmed()
	return i.noteUnconfirmed(ctx)
}

// confirmInEmpty confirms this process where nothing was ever leased in the store.
func (i *Instance) confirmInEmpty(ctx context.Context) error {
	l := i.ledger
	if !l.refused() {
		return nil
	}
	s, _ := l.State()
	if s.Refusal() != nil {
		return nil // a later start, or an operator, confirms it
	}
	marks := store.OpGetPrefix(l.keys.Marks(""))
	marks.Get.Limit = 1
	answer, err := l.Try(ctx, store.Txn{If: l.Holds(s), Then: []store.Op{marks}})
	if err != nil {
		return err
	}
	if answer.Succeeded && len(answer.Got[0]) == 0 {
		l.confirmed("a store in which nothing was ever leased")
	}
	return nil
}
