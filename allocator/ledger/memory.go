package ledger

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// maxSeen bounds how many registrations are remembered.
const maxSeen = 1000

// memory is what an instance remembers. A lease is accepted and remembered under its lock, and Memory holds it while it
// answers, so that Memory misses no lease.
type memory struct {
	process
	troubles
	journal      *journal.Journal // nil for none
	admission    admission
	incarnations []string     // of the processes with this memory, in order; it stays once the instance has joined
	drop         func(string) // see OnDrop; nil for none
	lostWorkers  func()       // see OnLostWorkers; nil for none

	mu struct {
		sync.Mutex
		marks       ownMarks
		steps       map[allocator.Tag]int64 // by how much the process before raised marks with a lease; see TakeStep
		windows     ownWindows
		kept        keeping
		sequence    int64                 // grows with each change of marks
		seen        []record.SeenInstance // the oldest first
		seenUnder   string                // the last epoch that seen is of
		epochs      []string              // that this instance entered, the last one last
		written     written               // the part of all this that the journal has
		unconfirmed bool                  // it begins with this process, and nothing was leased yet: see unconfirmed.go
		leaser      string                // of the incarnations, the one that leased last; empty if nothing was leased
		barred      Barred                // while a recover has barred this instance
		cutOff      string                // the epoch under which it compares its leases, having dropped its segments
		raises      bool                  // it raises marks that do not cover them
		uncompared  []allocator.Tag       // the tags whose leases it has not compared yet, sorted
		audited     time.Time             // when a worker that this process took over was last audited
	}
}

// with calls do under the lock.
func (m *memory) with(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}

// ownMark is an instance's memory of its room's mark of one tag.
type ownMark struct {
	next     int64 // as it was read or written,
	revision int64 // in a store of this revision
	sent     int64 // the largest end of any lease that was sent, whatever its outcome
	leased   int64 // the end of this instance's own leases, 0 for none,
	version  int64 // and the layout version of these leases
	total    int64 // the largest margin total under which a lease was sent
	sequence int64 // the sequence of the memory at the last change of next
	shown    bool  // an answer that counts showed next in etcd, or more
}

// written is the part of an instance's memory that its journal has.
type written struct {
	epoch     string // the last one
	version   int64
	total     int64
	notBefore int64
	rooms     []allocator.Room // sorted
	formats   int
}

// ownMarks has the memory of each tag's mark. It has pointers, because more than half of a map's slots may be empty.
type ownMarks map[allocator.Tag]*ownMark

// of returns the memory of a tag's mark, or the zero value.
func (m ownMarks) of(tag allocator.Tag) ownMark {
	if own := m[tag]; own != nil {
		return *own
	}
	return ownMark{}
}

// set remembers a tag's mark.
func (m ownMarks) set(tag allocator.Tag, own ownMark) {
	if old := m[tag]; old != nil {
		*old = own
		return
	}
	made := own // so that own stays on the stack
	m[tag] = &made
}

// TakeStep returns about how many IDs of a tag the process before leased at once, 0 if that is not known, and
// forgets it.
func (m *memory) TakeStep(tag allocator.Tag) int64 {
	stored, _ := m.ledger.Layout()
	m.mu.Lock()
	defer m.mu.Unlock()
	step := m.mu.steps[tag]
	delete(m.mu.steps, tag)
	width := stored.Layout.Ranges[m.room].Width()
	return int64(float64(step) * float64(width) / float64(max(stored.Layout.Boundary, 1)))
}

// journalReady returns why the journal cannot be written. It is called before a
// lease, so that no lease is wasted.
func (m *memory) journalReady() error {
	if m.journal == nil {
		return nil
	}
	return m.journal.Ready()
}

// openJournal opens this instance's journal in a directory, and loads the memory of
// earlier processes of its name.
//
// A journal is of one cluster: a directory may hold those of several clusters,
// rooms and instances.
func (m *memory) openJournal(ctx context.Context, dir string) error {
	l := m.ledger
	uuid := l.pinned().UUID
	path := filepath.Join(dir, uuid, string(m.room), string(m.name)+".journal")
	j, s, err := journal.Open(ctx, path, journal.Record{UUID: uuid, Room: m.room, Name: m.name}, l.log)
	if err != nil {
		return err
	}
	loaded, err := memoryOf(s)
	if err != nil {
		return errors.Join(err, j.Close())
	}
	m.journal = j
	m.load(s, loaded)
	return nil
}

// load adds the memory of earlier processes of this instance, which is s, from its journal.
func (m *memory) load(s journal.State, was record.Memory) {
	l := m.ledger
	m.mu.Lock()
	defer m.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	m.mu.written = written{version: was.Version, total: was.MarginTotal, notBefore: was.NotBefore, rooms: was.Rooms,
		formats: was.Formats}
	if n := len(was.Epochs); n > 0 {
		m.mu.written.epoch = was.Latest
		if t.current == "" {
			t.knew(was.Epochs[:n-1]...)
			t.current, t.seen = was.Latest, s.Revision
		}
		t.entering = t.entering && t.current != was.Latest // the process before was in it
	}
	if was.Version > t.version {
		t.version, t.latest = was.Version, was.Latest
	}
	t.total, t.notBefore = max(t.total, was.MarginTotal), max(t.notBefore, was.NotBefore)
	for tag, mark := range s.Marks {
		// The leases of earlier processes count as leases of this one.
		m.mu.marks.set(tag, ownMark{next: mark.Next, leased: mark.Next, version: mark.Version})
	}
	for tag, by := range s.Steps {
		// A floor, a skip or the next period makes a single step far larger, and a chain that starts grows less.
		if step := min(by[0], 100*by[1]); step > 0 {
			m.mu.steps[tag] = step
		}
	}
	for _, lease := range was.Workers {
		m.mu.windows.set(lease.WorkerID, ownWindow{worker: lease.Worker})
	}
	m.mu.seen, m.mu.seenUnder, m.mu.epochs, m.mu.leaser = was.Seen, s.SeenUnder, was.Epochs, s.Leaser
	if s.Kept != nil {
		m.mu.kept.before = journal.Kept{Nonce: s.Kept.Nonce, Segments: slices.Clone(s.Kept.Segments)}
	}
	m.incarnations = slices.Concat(was.Incarnations, m.incarnations)
	m.mu.unconfirmed = s.Unconfirmed || len(was.Incarnations) == 0
}

// ReadJournal returns the memory in a journal, for `march recover` if the instance
// does not run. Its error is Refused.
func ReadJournal(path string) (record.Memory, error) {
	s, err := journal.Read(path)
	if err != nil {
		return record.Memory{}, err
	}
	m, err := memoryOf(s)
	if err != nil {
		return record.Memory{}, allocator.Errorf(allocator.Refused, "journal %s: %w", path, err)
	}
	return m, nil
}

// memoryOf checks a journal's content and returns it as a memory.
func memoryOf(s journal.State) (record.Memory, error) {
	m := record.Memory{
		UUID: s.UUID, Room: s.Room, Name: s.Name, Incarnations: slices.Clone(s.Incarnations),
		Epochs: slices.Clone(s.Epochs), Version: s.Version, MarginTotal: s.MarginTotal,
		Rooms: slices.Clone(s.Rooms), Seen: slices.Clone(s.Seen), SeenUnder: s.SeenUnder,
		Workers: windowsOf(s), NotBefore: s.NotBefore, Formats: s.Formats,
		Marks: make([]record.RememberedMark, 0, len(s.Marks)),
	}
	if n := len(m.Epochs); n > 0 {
		m.Latest = m.Epochs[n-1]
	}
	for tag, mark := range s.Marks {
		m.Marks = append(m.Marks, record.RememberedMark{Tag: tag, Next: mark.Next})
	}
	m.SortMarks()
	return m, m.Validate()
}

// maxWindows bounds how many workers are remembered: those with the latest ends.
const maxWindows = journal.MaxWindows

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

// ownWindows are the windows of an instance.
type ownWindows map[record.WorkerID]ownWindow

// set remembers a worker.
func (w ownWindows) set(id record.WorkerID, own ownWindow) {
	w[id] = own
	if len(w) <= maxWindows {
		return
	}
	first := id
	for other, own := range w {
		if !own.held && own.latest().Until < w[first].latest().Until {
			first = other
		}
	}
	delete(w, first)
}

// HoldsWorker reports whether this process has a worker that it leased, so that its
// window may go on: no recover left the instance out, and no operator forgot it.
func (m *memory) HoldsWorker(id record.WorkerID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.windows[id].held
}

// endsWindows ends each held window whose key, as it is now, this process did not write. A
// deleted key has no mod revision.
func (m *memory) endsWindows(now []store.KV) {
	ended := false
	for _, kv := range now {
		ended = m.endsWindow(kv) || ended
	}
	if ended && m.lostWorkers != nil {
		m.lostWorkers()
	}
}

func (m *memory) endsWindow(kv store.KV) bool {
	key, err := m.ledger.keys.Parse(kv.Key)
	if err != nil {
		return false
	}
	var said pending.Lines
	defer said.Write(m.ledger.log)
	m.mu.Lock()
	defer m.mu.Unlock()
	own, known := m.mu.windows[key.Worker]
	if !known || own.key != kv.Key || kv.ModRevision != 0 && kv.ModRevision <= own.revision {
		return false
	}
	var w record.Worker
	readable := kv.ModRevision != 0 && record.Decode(kv, &w) == nil
	if readable && w.Incarnation == m.incarnation {
		return false
	}
	ended := own.held
	own.held, own.taken = false, max(own.taken, kv.ModRevision)
	m.mu.windows.set(key.Worker, own)
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

// readHeld reads the keys of all held workers, and ends the windows of those that another
// process wrote. An answer from before a worker's own write shows nothing. Nor does a key that is
// not there, which an etcd that went back in time may lack: no process has the number, and the
// watch, which began before, shows the next one that takes it.
func (m *memory) readHeld(ctx context.Context) error {
	var held []string
	m.with(func() {
		for _, own := range m.mu.windows {
			if own.held {
				held = append(held, own.key)
			}
		}
	})
	return m.ledger.readKeys(ctx, held, func(_ []string, _ sentAt, answer store.Answer) error {
		m.endsWindows(slices.Concat(answer.Got...))
		return nil
	})
}

// ReleaseWorker notes that this process no longer uses a worker. Its window stays as
// its key has it.
func (m *memory) ReleaseWorker(id record.WorkerID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if own, known := m.mu.windows[id]; known {
		own.held = false
		m.mu.windows[id] = own
	}
}

// dropHeld drops all held segments and workers.
func (m *memory) dropHeld(why string) {
	m.with(func() {
		m.mu.kept = keeping{}
		for id, own := range m.mu.windows {
			own.held = false
			m.mu.windows[id] = own
		}
	})
	if m.drop != nil {
		m.drop(why)
	}
}

// keeping is what an instance keeps, or holds from the process before. It is guarded by the memory's lock.
type keeping struct {
	before journal.Kept                            // what the journal keeps, until TakeKept
	held   map[allocator.Tag][]journal.KeptSegment // that this process took, and of which no chain was made yet
	token  string                                  // the hash of what this process kept, empty for nothing
	there  bool                                    // etcd has a token of the name before the stop
	oldest []store.Op                              // deletions of the tokens for which another one leaves no room
}

// dropTokens has a stop write and delete no token, and reports whether it would have.
func (m *memory) dropTokens() (would bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	would = m.mu.kept.token != "" || m.mu.kept.there
	m.mu.kept = keeping{}
	return would
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
