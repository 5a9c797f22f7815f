package ledger

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
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

// sends notes that a lease up to next is sent: it may happen, whether its answer
// comes or not. If only accepted leases were remembered, a recover would add its
// margin to a mark that is lower than the store's.
func (m *memory) sends(tag allocator.Tag, next, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := m.mu.marks.of(tag)
	m.mu.sequence++
	own.sent, own.total, own.sequence = max(own.sent, next), max(own.total, total), m.mu.sequence
	m.mu.marks.set(tag, own)
}

// accepts remembers a lease of this instance up to next. The caller holds the lock.
func (m *memory) accepts(tag allocator.Tag, revision, version, next int64) {
	own := m.mu.marks.of(tag)
	// If a tag has two sources, the answer to one may overtake the answer to the
	// other.
	if revision > own.revision {
		own.next, own.revision = next, revision
	}
	if next > own.leased {
		own.leased, own.version = next, version
	}
	own.sent, own.sequence, own.shown = max(own.sent, next), m.mu.sequence, true
	m.mu.marks.set(tag, own)
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

// toJournal writes a lease to the journal, of a segment or a window, before it is used. An empty record stands for the
// epoch of state, before the instance is in it.
func (m *memory) toJournal(ctx context.Context, state *State, r journal.Record) error {
	if m.journal == nil {
		return nil
	}
	lease := len(r.Marks)+len(r.Windows) > 0
	// Wait for the disk however long it takes: the IDs are leased, and giving up
	// would make them a gap. Append notices a disk that hangs.
	if err := m.journal.Append(context.WithoutCancel(ctx), m.toNote(state, r, lease)); err != nil {
		return err
	}
	m.written(state, lease)
	return nil
}

// toNote adds to r, which is noted under a state, the memory that the journal does not have
// yet. A lease shows that the instance is confirmed.
func (m *memory) toNote(state *State, r journal.Record, lease bool) journal.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, version := m.mu.written, state.layout.Layout.Version
	r.Confirmed = lease && m.mu.unconfirmed
	if t := m.ledger.before(); t.current == state.epoch { // otherwise the epoch has changed
		r.Epoch, r.Revision = state.epoch, t.seen
	}
	// This does not count as written yet, so that a lease made meanwhile writes it,
	// too.
	if known.epoch != state.epoch {
		r.Epochs = []string{state.epoch}
	}
	if version > known.version {
		r.Version = version
	}
	if state.margins.Total > known.total {
		r.MarginTotal = state.margins.Total
	}
	if state.notBefore > known.notBefore {
		r.NotBefore = state.notBefore
	}
	if state.layout.Formats > known.formats {
		r.Formats = state.layout.Formats
	}
	if !record.ContainsAll(known.rooms, state.layout.Ever) {
		r.Rooms = state.layout.Ever
	}
	return r
}

// written remembers that the journal has what toNote returned, perhaps with a lease.
func (m *memory) written(state *State, lease bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &m.mu.written
	w.epoch, w.version = state.epoch, max(w.version, state.layout.Layout.Version)
	w.total = max(w.total, state.margins.Total)
	w.notBefore, w.formats = max(w.notBefore, state.notBefore), max(w.formats, state.layout.Formats)
	w.rooms = record.Union(w.rooms, state.layout.Ever)
	m.mu.unconfirmed = m.mu.unconfirmed && !lease
}

// compared calls compare, which compares what an answer showed with the memory, under both locks. It returns false if
// compare does, or if the request was sent under another epoch, before a barrier say: then the answer shows a store
// that no longer exists. The caller reads again, after a probe.
func (m *memory) compared(before sentAt, compare func(t *epochClock) bool) bool {
	l := m.ledger
	m.mu.Lock()
	defer m.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return before.epochSeq == l.mu.clock.epochSeq && compare(&l.mu.clock)
}

// compareMark compares a mark, as an answer showed it, with the remembered one. If
// the mark is lower, etcd may have gone back in time. False means that the caller
// must read the mark again, after a probe.
func (m *memory) compareMark(before sentAt, answer store.Answer, tag allocator.Tag, next int64) bool {
	return m.compared(before, func(t *epochClock) bool {
		own := m.mu.marks.of(tag)
		if next < own.next {
			if answer.Revision >= own.revision { // otherwise another answer overtook this one
				key := m.ledger.keys.Mark(m.room, tag)
				t.suspect("the mark "+key+" is "+strconv.FormatInt(next, 10)+", and was "+
					strconv.FormatInt(own.next, 10), map[string]int64{key: own.next})
			}
			return false
		}
		if own.next != next {
			m.mu.sequence++
			own.sequence = m.mu.sequence
		}
		own.next, own.revision = next, max(answer.Revision, own.revision)
		own.shown = own.shown || t.shows(before, answer.Sender, answer.Revision) && next >= own.leased
		m.mu.marks.set(tag, own)
		return true
	})
}

// remembered returns all that this instance remembers: of its marks those that it
// leased after a point of its memory. The caller holds both locks.
func (m *memory) remembered(after int64) record.Memory {
	l := m.ledger
	answer := record.Memory{
		UUID: l.mu.identity.UUID, Room: m.room, Name: m.name, Incarnations: slices.Clone(m.incarnations),
		Epochs: slices.Clone(m.mu.epochs), Version: l.mu.clock.version, Latest: l.mu.clock.latest,
		MarginTotal:    l.mu.clock.total,
		NarrowestRange: l.mu.state.layout.NarrowestRange, LargestBoundary: l.mu.state.layout.LargestBoundary,
		Formats: max(m.mu.written.formats, l.mu.state.layout.Formats),
		Workers: m.leasedWorkers(), NotBefore: l.mu.clock.notBefore,
		Rooms: record.Union(m.mu.written.rooms, l.mu.state.layout.Ever), Seen: slices.Clone(m.mu.seen),
		SeenUnder: m.mu.seenUnder, Sequence: m.mu.sequence,
	}
	if layout := l.mu.state.layout.Layout; layout.Version == answer.Version {
		answer.Layout = layout
	}
	for tag, own := range m.mu.marks {
		if next := max(own.next, own.sent, own.leased); next > 0 && (after == 0 || own.sequence > after) {
			answer.Marks = append(answer.Marks, record.RememberedMark{Tag: tag, Next: next, Total: own.total})
		}
	}
	return answer
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

// begin records in the journal that this process writes it from now on.
func (m *memory) begin(ctx context.Context, dir string) error {
	m.mu.marks, m.mu.steps, m.mu.windows = make(ownMarks), make(map[allocator.Tag]int64), make(ownWindows)
	m.incarnations = []string{m.incarnation}
	// A ledger that has met an epoch does not show it while leasing is halted, or its key cannot be read.
	m.ledger.with(func() { m.ledger.mu.clock.entering = m.ledger.mu.clock.current != "" })
	if dir == "" {
		m.startUnconfirmed()
		return nil
	}
	if err := m.ledger.Attach(ctx); err != nil {
		return err
	}
	if err := m.openJournal(ctx, dir); err != nil {
		return err
	}
	if m.mu.unconfirmed {
		m.startUnconfirmed()
	}
	if err := m.journal.Append(ctx, journal.Record{Incarnations: []string{m.incarnation},
		Unconfirmed: m.mu.unconfirmed}); err != nil {
		return errors.Join(err, m.journal.Close())
	}
	return nil
}

// loadPredecessor makes this process unconfirmed if its journal does not cover its
// predecessor, the process that it replaces. That is written down before the
// predecessor's registration goes. The next process is then unconfirmed, too, unless IDs were leased in between.
func (m *memory) loadPredecessor(ctx context.Context, found []store.KV) error {
	var was record.Registration
	if len(found) == 0 || m.mu.unconfirmed {
		return nil
	}
	if err := record.Decode(found[0], &was); err != nil {
		return err
	}
	if slices.Contains(m.incarnations, was.Incarnation) {
		return nil
	}
	m.startUnconfirmed()
	if m.journal == nil {
		return nil
	}
	return m.journal.Append(ctx, journal.Record{Unconfirmed: true})
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

// sendsWindow notes that a window is sent: it may be written, whether its answer
// comes or not. It reports whether the window ends earlier than the one before.
func (m *memory) sendsWindow(id record.WorkerID, w record.Worker) (lowers bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := m.mu.windows[id]
	own.sent, own.taken = own.sent.Raised(w), 0
	if lowers = w.Until < own.worker.Until; lowers {
		// The end is lowered: from now on etcd may have the lower end, which is then not
		// evidence.
		own.worker = w
	}
	m.mu.windows.set(id, own)
	return lowers
}

// acceptsWindow remembers a window of this instance, unless another process wrote its key since. The caller holds the
// lock.
func (m *memory) acceptsWindow(id record.WorkerID, revision int64, key string, w record.Worker) bool {
	own := m.mu.windows[id]
	if revision < own.taken {
		return false
	}
	if revision > own.revision {
		// Earlier requests can no longer succeed, because they compare the revision.
		own.worker, own.sent, own.key, own.revision, own.held = w, w, key, revision, true
	}
	m.mu.windows.set(id, own)
	return true
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

// keepAnswered keeps those held workers that may go on in the epoch of s although its
// windows begin later: those that this instance reported in its answer to the recover's
// barrier, which has freed their numbers. Another instance may have taken one that ended
// sooner in the lost history. The caller holds the lock.
func (m *memory) keepAnswered(s *State) {
	since := m.mu.barred.Since
	if s.notBefore == 0 || s.notBefore < since.UnixMilli() {
		return
	}
	answered := s.ended != nil && m.mu.barred.nonce == s.ended.Nonce
	for id, own := range m.mu.windows {
		own.held = answered && m.goesOn(own)
		m.mu.windows[id] = own
	}
}

// goesOn reports whether a window is held, and reaches beyond the answer to the barrier by more
// than two clocks may differ. The caller holds the lock.
func (m *memory) goesOn(own ownWindow) bool {
	return own.held && own.worker.Until > m.mu.barred.Since.Add(2*record.MaxAhead).UnixMilli()
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

// tokens returns what a stop under a state writes beside `leaving`: the token of what was kept, or no token any more.
// The instance has entered the epoch of a token: what it holds it held there.
func (m *memory) tokens(s *State) (ops []store.Op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, key, n := &m.mu.kept, m.ledger.keys.Token(m.room, m.name), len(m.mu.epochs)
	if k.token != "" && n > 0 && m.mu.epochs[n-1] == s.epoch {
		token := record.Token{Epoch: s.epoch, Hash: k.token}
		return append(slices.Clone(k.oldest), store.OpPut(key, record.Encode(&token)))
	}
	if k.there {
		return []store.Op{{Delete: key}}
	}
	return nil
}

// dropTokens has a stop write and delete no token, and reports whether it would have.
func (m *memory) dropTokens() (would bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	would = m.mu.kept.token != "" || m.mu.kept.there
	m.mu.kept = keeping{}
	return would
}

// leasedWorkers returns the workers that are remembered, by width and number. The caller
// holds the lock.
func (m *memory) leasedWorkers() []record.Lease {
	all := make([]record.Lease, 0, len(m.mu.windows))
	for id, own := range m.mu.windows {
		goes := m.mu.barred.nonce != "" && m.goesOn(own)
		all = append(all, record.Lease{WorkerID: id, Worker: own.latest(), Goes: goes})
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
