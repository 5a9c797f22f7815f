package ledger

import (
	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// ownWindow is an instance's memory of a worker that it leased.
type ownWindow struct {
	worker   record.Worker // as last written and accepted; zero if there was none
	revision int64         // of the store at that time; 0 if it is from the journal
	held     bool          // this process has the worker, and no recover took it away
	sent     record.Worker // the window with the latest end that was ever sent, whatever its outcome
}

// latest returns the worker with its latest end that may be in etcd.
func (w ownWindow) latest() record.Worker { return w.worker.Raised(w.sent) }

// setWindow remembers a worker. The caller holds the instance's lock.
func (m *instanceMemory) setWindow(id record.WorkerID, own ownWindow) {
	if m.windows == nil {
		m.windows = make(map[record.WorkerID]ownWindow)
	}
	m.windows[id] = own
	if len(m.windows) <= maxWindows {
		return
	}
	first := id
	for other, own := range m.windows {
		if !own.held && own.latest().Until < m.windows[first].latest().Until {
			first = other
		}
	}
	delete(m.windows, first)
}

// untilOf returns the end of a worker's window, or 0. An unreadable worker is not
// evidence: no lease relies on it.
func untilOf(kv store.KV) int64 {
	var w record.Worker
	if err := record.Decode(kv, &w); err != nil {
		return allocator.MaxID
	}
	return w.Until
}

// sendsWindow notes that a window is sent: it may be written, whether its answer
// comes or not. It reports whether the window ends earlier than the one before.
func (i *Instance) sendsWindow(id record.WorkerID, w record.Worker) (lowers bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	own := i.memory.windows[id]
	own.sent = own.sent.Raised(w)
	if lowers = w.Until < own.worker.Until; lowers {
		// The end is lowered: from now on etcd may have the lower end, which is then not
		// evidence.
		own.worker = w
	}
	i.memory.setWindow(id, own)
	return lowers
}

// HoldsWorker reports whether this process has a worker that it leased, so that its
// window may go on: no recover left the instance out, and no operator forgot it.
func (i *Instance) HoldsWorker(id record.WorkerID) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.memory.windows[id].held
}

// ReleaseWorker notes that this process no longer uses a worker. Its window stays as
// its key has it.
func (i *Instance) ReleaseWorker(id record.WorkerID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if own, known := i.memory.windows[id]; known {
		own.held = false
		i.memory.windows[id] = own
	}
}

// keepAnswered keeps those held workers that may go on in the epoch of s although its
// windows begin later: those that this instance reported in its answer to the recover's
// barrier. The window must reach beyond that answer by more than two clocks may differ.
// Otherwise another instance may have taken the worker in the lost history. The caller
// holds the lock.
func (m *instanceMemory) keepAnswered(s *State) {
	since := m.barred.Since
	if s.notBefore == 0 || s.notBefore < since.UnixMilli() {
		return
	}
	answered := s.ended != nil && m.barred.nonce == s.ended.Nonce
	for id, own := range m.windows {
		if !answered || own.worker.Until <= since.Add(2*record.MaxAhead).UnixMilli() {
			own.held = false
			m.windows[id] = own
		}
	}
}

// dropHeld drops all held segments and workers.
func (i *Instance) dropHeld(why string) {
	i.releaseWorkers()
	if i.drop != nil {
		i.drop(why)
	}
}

// releaseWorkers notes that this process no longer uses any worker.
func (i *Instance) releaseWorkers() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for id, own := range i.memory.windows {
		own.held = false
		i.memory.windows[id] = own
	}
}

// leasedWorkers returns the workers that are remembered, by width and number. The caller
// holds the lock.
func (m *instanceMemory) leasedWorkers() []record.Lease {
	all := make([]record.Lease, 0, len(m.windows))
	for id, own := range m.windows {
		all = append(all, record.Lease{WorkerID: id, Worker: own.latest()})
	}
	record.SortLeases(all)
	return all
}

// windowsOf returns the windows of a journal.
func windowsOf(s journal.State) []record.Lease {
	leases := make([]record.Lease, 0, len(s.Windows))
	for _, w := range s.Windows {
		leases = append(leases, record.Lease{
			WorkerID: w.WorkerID,
			Worker: record.Worker{
				Room: s.Room, Instance: s.Name, Incarnation: w.Incarnation, From: w.From, Until: w.Until,
				Stamp: record.Stamp{Epoch: w.Epoch, Revision: w.Revision}, Clock: w.Clock,
			},
		})
	}
	record.SortLeases(leases)
	return leases
}

// journalWindow is the inverse of windowsOf for one window.
func journalWindow(id record.WorkerID, w record.Worker) journal.Window {
	return journal.Window{
		WorkerID: id, Incarnation: w.Incarnation,
		From: w.From, Until: w.Until, Epoch: w.Stamp.Epoch, Revision: w.Stamp.Revision, Clock: w.Clock,
	}
}
