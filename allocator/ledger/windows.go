package ledger

import (
	"context"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// ownWindow is an instance's memory of a worker that it leased.
type ownWindow struct {
	worker   record.Worker // as last written and accepted; zero if there was none
	key      string        // in which it was written then; empty if it is from the journal
	revision int64         // of the store at that time; 0 if it is from the journal
	held     bool          // this process has the worker, and no recover or other process took it away
	taken    int64         // the revision at which another process wrote the key since the last request was sent
	sent     record.Worker // the window with the latest end that was ever sent, whatever its outcome
}

// latest returns the worker with its latest end that may be in etcd.
func (w ownWindow) latest() record.Worker { return w.worker.Raised(w.sent) }

// at reports whether etcd has had the window in a key since it was accepted under f's epoch. Of a
// window from the journal that is known only if no layout came since, or rooms write no keys of
// their own yet.
func (w ownWindow) at(key string, f Footing) bool {
	stamp := w.worker.Stamp
	return stamp.Epoch == f.Stamp.Epoch &&
		(w.key == key || w.key == "" && (stamp.Revision == f.Stamp.Revision || !f.Layout.Upgraded()))
}

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
	own.sent, own.taken = own.sent.Raised(w), 0
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

// OnLostWorkers sets a function that is called when a window of this process has ended at once,
// because its key is no longer what the process wrote: HoldsWorker then says which one. Before the
// window is over, only another process's mistake, or an attack with etcd's rights, changes such a
// key. Call OnLostWorkers before Run.
func (i *Instance) OnLostWorkers(lost func()) { i.lostWorkers = lost }

// endsWindows ends each held window whose key, as it is now, this process did not write. A
// deleted key has no mod revision.
func (i *Instance) endsWindows(now []store.KV) {
	ended := false
	for _, kv := range now {
		ended = i.endsWindow(kv) || ended
	}
	if ended && i.lostWorkers != nil {
		i.lostWorkers()
	}
}

func (i *Instance) endsWindow(kv store.KV) bool {
	key, err := i.ledger.keys.Parse(kv.Key)
	if err != nil {
		return false
	}
	var said pending.Lines
	defer said.Write(i.ledger.log)
	i.mu.Lock()
	defer i.mu.Unlock()
	own, known := i.memory.windows[key.Worker]
	if !known || own.key != kv.Key || kv.ModRevision != 0 && kv.ModRevision <= own.revision {
		return false
	}
	var w record.Worker
	readable := kv.ModRevision != 0 && record.Decode(kv, &w) == nil
	if readable && w.Incarnation == i.incarnation {
		return false
	}
	ended := own.held
	own.held, own.taken = false, max(own.taken, kv.ModRevision)
	i.memory.setWindow(key.Worker, own)
	switch {
	case !ended:
	case readable && w.From >= own.worker.Until:
		// This process was paused, or its renewals failed, until its window was over: it issues in none
		// that etcd did not accept.
		said.Add(hclog.Info, "another process took a worker of this one after its window", "worker",
			key.Worker.String(), "by", string(w.ID()))
	default:
		said.Add(hclog.Error, "another process wrote a worker of this one, whose window ends at once", "worker",
			key.Worker.String(), "by", string(w.ID()))
	}
	return ended
}

// keysAtOnce is how many keys of held workers, or of tags, are read in one transaction.
const keysAtOnce = 100

// readHeld reads the keys of all held workers, and ends the windows of those that another
// process wrote. An answer from before a worker's own write shows nothing. Nor does a key that is
// not there, which an etcd that went back in time may lack: no process has the number, and the
// watch, which began before, shows the next one that takes it.
func (i *Instance) readHeld(ctx context.Context) error {
	for page := range slices.Chunk(i.heldKeys(), keysAtOnce) {
		ops := make([]store.Op, len(page))
		for k, key := range page {
			ops[k] = store.OpGet(key)
		}
		answer, err := i.ledger.Gets(ctx, ops...)
		if err != nil {
			return err
		}
		for k := range page {
			if kv, there := answer.One(k); there {
				i.endsWindows([]store.KV{kv})
			}
		}
	}
	return nil
}

// heldKeys returns the keys of the workers that this process holds.
func (i *Instance) heldKeys() (held []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, own := range i.memory.windows {
		if own.held {
			held = append(held, own.key)
		}
	}
	return held
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
// barrier, which has freed their numbers. Another instance may have taken one that ended
// sooner in the lost history. The caller holds the lock.
func (m *instanceMemory) keepAnswered(s *State) {
	since := m.barred.Since
	if s.notBefore == 0 || s.notBefore < since.UnixMilli() {
		return
	}
	answered := s.ended != nil && m.barred.nonce == s.ended.Nonce
	for id, own := range m.windows {
		own.held = answered && m.goesOn(own)
		m.windows[id] = own
	}
}

// goesOn reports whether a window is held, and reaches beyond the answer to the barrier by more
// than two clocks may differ. The caller holds the lock.
func (m *instanceMemory) goesOn(own ownWindow) bool {
	return own.held && own.worker.Until > m.barred.Since.Add(2*record.MaxAhead).UnixMilli()
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
		all = append(all, record.Lease{WorkerID: id, Worker: own.latest(), Goes: m.barred.nonce != "" && m.goesOn(own)})
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
