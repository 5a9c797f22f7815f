package ledger

import (
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
)

// A rollback of raft's own data (most members' directories copied back) keeps
// cluster ID, term and index: only the memory of processes and journals shows it.
// If a cluster requires journals, an instance that starts without its own is
// unconfirmed: it leases nothing before an operator has confirmed that the store
// has all its leases (Ledger.ConfirmInstance). In a store in which
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

// admission is whether an instance may lease, apart from what etcd shows.
type admission struct {
	demands     bool        // a journal is required, whatever the cluster's settings say
	unconfirmed atomic.Bool // nothing is leased where journals are required
}

// requires reports whether a journal is required under s.
func (a *admission) requires(s *State) bool {
	return a.demands || bool(s.settings.RequireJournal)
}

// refuses reports whether nothing is leased under s because the instance is unconfirmed.
func (a *admission) refuses(s *State) bool {
	return a.unconfirmed.Load() && a.requires(s)
}

// confirmOptional confirms an instance that runs while no journal is required: from
// then on it has a memory of its own. A halted store does not count: it may be a
// restored one, which has forgotten the setting.
func (a *admission) confirmOptional(s *State) {
	if s.problem == nil && s.epoch != "" && !a.requires(s) {
		a.unconfirmed.Store(false)
	}
}

// UnconfirmedError is the error of an instance that started without its journal,
// although one is required, and whose marks are not confirmed yet.
type UnconfirmedError struct {
	Room allocator.Room
	Name allocator.Instance
}

func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("instance %s/%s started without its journal, and this cluster requires one: "+
		"it leases nothing until an operator has confirmed its marks; if etcd did not go back in time, "+
		"`march instance confirm %s %s`, else `march recover`",
		e.Room, e.Name, e.Room, e.Name)
}

// startUnconfirmed makes this process an unconfirmed one.
func (m *memory) startUnconfirmed() {
	l := m.ledger
	m.mu.Lock()
	defer m.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	m.mu.unconfirmed = true
	m.admission.unconfirmed.Store(true)
	m.admission.confirmOptional(l.mu.state)
}

// Unconfirmed reports whether this process leases nothing because it started without its
// journal, which is required, and its marks are not confirmed yet.
func (l *knowledge) Unconfirmed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unconfirmed()
}

// unconfirmed is Unconfirmed for a caller that holds the lock.
func (l *knowledge) unconfirmed() bool {
	return l.mu.instance != nil && l.mu.instance.admission.refuses(l.mu.state)
}

// confirmMarks ends that this process is unconfirmed. A caller that holds the lock gives
// lines that it writes later.
func (m *memory) confirmMarks(said *pending.Lines, by string) {
	if m.admission.unconfirmed.Swap(false) {
		said.Add(hclog.Info,
			"an instance's marks are confirmed: it leases", "instance", m.name, "room", m.room, "by", by)
	}
}
