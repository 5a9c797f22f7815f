package ledger

import (
	"context"
	"slices"
	"strconv"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// maxSeen bounds how many registrations are remembered.
const maxSeen = 1000

// instanceMemory is an instance's memory of its own. The instance's lock guards it.
// A lease is accepted and remembered under that lock, and Memory holds it while it
// answers, so that Memory misses no lease.
type instanceMemory struct {
	marks        map[allocator.Tag]*ownMark
	steps        map[allocator.Tag]int64 // by how much the process before raised marks with a lease; see TakeStep
	windows      map[record.WorkerID]ownWindow
	sequence     int64                 // grows with each change of marks
	seen         []record.SeenInstance // the oldest first
	seenUnder    string                // the last epoch that seen is of
	incarnations []string
	epochs       []string        // that this instance entered, the last one last
	written      written         // the part of all this that the journal has
	unconfirmed  bool            // the memory begins with this process, and nothing was leased yet: see unconfirmed.go
	leaser       string          // of the incarnations, the one that leased last; empty if nothing was leased
	barred       Barred          // while a recover has barred this instance
	leases       failures        // failed leases, if not because of their tag alone
	beats        failures        // failed heartbeats
	probes       failures        // probes before heartbeats that failed because of a key that they read
	cutOff       string          // the epoch under which it compares its leases, after it has dropped its segments
	raises       bool            // it raises marks that do not cover them
	uncompared   []allocator.Tag // the tags whose leases it has not compared yet, sorted
}

// ownMark is an instance's memory of its room's mark of one tag.
type ownMark struct {
	next     int64 // as it was read or written,
	revision int64 // in a store of this revision
	sent     int64 // the largest end of any lease that was sent, whatever its outcome
	leased   int64 // the end of this instance's own leases, 0 for none,
	version  int64 // and the layout version of these leases
	total    int64 // the largest margin total under which a lease was sent
	sequence int64 // the sequence of instanceMemory at the last change of next
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

// mark returns the memory of a tag's mark, or the zero value. The caller holds the
// lock.
func (m *instanceMemory) mark(tag allocator.Tag) ownMark {
	if own := m.marks[tag]; own != nil {
		return *own
	}
	return ownMark{}
}

// setMark remembers a tag's mark. The map has pointers, because more than half of a
// map's slots may be empty. The caller holds the lock.
func (m *instanceMemory) setMark(tag allocator.Tag, own ownMark) {
	if old := m.marks[tag]; old != nil {
		*old = own
		return
	}
	made := own // so that own stays on the stack
	m.marks[tag] = &made
}

// sends notes that a lease up to next is sent: it may happen, whether its answer
// comes or not. If only accepted leases were remembered, a recover would add its
// margin to a mark that is lower than the store's.
func (i *Instance) sends(tag allocator.Tag, next, total int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	own := i.memory.mark(tag)
	i.memory.sequence++
	own.sent, own.total, own.sequence = max(own.sent, next), max(own.total, total), i.memory.sequence
	i.memory.setMark(tag, own)
}

// TakeStep returns about how many IDs of a tag the process before leased at once, 0 if that is not known, and
// forgets it.
func (i *Instance) TakeStep(tag allocator.Tag) int64 {
	stored, _ := i.ledger.Layout()
	i.mu.Lock()
	defer i.mu.Unlock()
	step := i.memory.steps[tag]
	delete(i.memory.steps, tag)
	width := stored.Layout.Ranges[i.room].Width()
	return int64(float64(step) * float64(width) / float64(max(stored.Layout.Boundary, 1)))
}

// accept decides whether the segment that a transaction leased is ours. It is not ours if
// the answer's revision is not above every revision that was seen before the transaction
// was sent; if `march recover` barred this instance, or another epoch came up meanwhile;
// or if the answer did not come through the connection that was checked. Then the segment is
// leased and lost: a gap. False without an error means that another try is due, which probes
// first.
func (i *Instance) accept(before sentAt, answer store.Answer, tag allocator.Tag, version, next int64) (bool, error) {
	l := i.ledger
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if ours, err := l.counts(before, answer); err != nil || !ours {
		return false, err
	}
	own := i.memory.mark(tag)
	// If a tag has two sources, the answer to one may overtake the answer to the
	// other.
	if answer.Revision > own.revision {
		own.next, own.revision = next, answer.Revision
	}
	if next > own.leased {
		own.leased, own.version = next, version
	}
	i.memory.sequence++
	i.memory.leaser, i.memory.leases, i.memory.probes = i.incarnation, failures{}, failures{}
	own.sent, own.sequence, own.shown = max(own.sent, next), i.memory.sequence, true
	i.memory.setMark(tag, own)
	return true, nil
}

// counts reports whether the answer to a lease, of a segment or of a window, makes it ours:
// the conditions of accept. The caller holds the lock.
func (l *Ledger) counts(before sentAt, answer store.Answer) (bool, error) {
	t := &l.mu.clock
	switch {
	case answer.Revision <= before.seen:
		t.suspect("etcd wrote at revision "+strconv.FormatInt(answer.Revision,
			10)+" after it had shown revision "+strconv.FormatInt(before.seen, 10), nil)
		return false, allocator.Errorf(allocator.WentBack,
			"etcd wrote at revision %d after it had shown revision %d: it went back in time; "+
				"nothing of this lease is used", answer.Revision, before.seen)
	case t.epochSeq != before.epochSeq:
		return false, nil
	case answer.Connection == 0 || answer.Sender != t.checked.by:
		t.checked = check{}
		return false, nil
	}
	return true, nil
}

// journalReady returns why the journal cannot be written. It is called before a
// lease, so that no lease is wasted.
func (i *Instance) journalReady() error {
	if i.journal == nil {
		return nil
	}
	return i.journal.Ready()
}

// journalLease writes a lease to the journal, before the segment is returned. If the
// process crashes before that, the segment is a gap, and the journal has less than etcd,
// which does no harm.
func (i *Instance) journalLease(ctx context.Context, state *State, tag allocator.Tag, next int64) error {
	return i.journalAnyLease(ctx, state,
		journal.Record{Marks: []journal.Mark{{Tag: tag, Next: next, Version: state.layout.Layout.Version}}})
}

// journalAnyLease is journalLease for a segment or a window of time: r is the lease.
func (i *Instance) journalAnyLease(ctx context.Context, state *State, r journal.Record) error {
	if i.journal == nil {
		return nil
	}
	// Wait for the disk however long it takes: the IDs are leased, and giving up
	// would make them a gap. Append notices a disk that hangs.
	r = i.toNote(state, r)
	r.Confirmed = i.unconfirmed() // a lease shows that it is confirmed
	if err := i.journal.Append(context.WithoutCancel(ctx), r); err != nil {
		return err
	}
	i.written(state, true)
	return nil
}

// journalEpoch writes the epoch of a state to the journal, before the instance is in it.
func (i *Instance) journalEpoch(ctx context.Context, state *State) error {
	if i.journal == nil {
		return nil
	}
	if err := i.journal.Append(context.WithoutCancel(ctx), i.toNote(state, journal.Record{})); err != nil {
		return err
	}
	i.written(state, false)
	return nil
}

// unconfirmed reports whether the memory begins with this process, and nothing was leased yet.
func (i *Instance) unconfirmed() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.memory.unconfirmed
}

// toNote adds to r, which is noted under a state, the memory that the journal does not have
// yet.
func (i *Instance) toNote(state *State, r journal.Record) journal.Record {
	i.mu.Lock()
	defer i.mu.Unlock()
	known, version := i.memory.written, state.layout.Layout.Version
	if revision, in := i.ledger.seenUnder(state.epoch); in { // otherwise the epoch has changed
		r.Epoch, r.Revision = state.epoch, revision
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
func (i *Instance) written(state *State, lease bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	w := &i.memory.written
	w.epoch, w.version = state.epoch, max(w.version, state.layout.Layout.Version)
	w.total = max(w.total, state.margins.Total)
	w.notBefore, w.formats = max(w.notBefore, state.notBefore), max(w.formats, state.layout.Formats)
	w.rooms = record.Union(w.rooms, state.layout.Ever)
	i.memory.unconfirmed = i.memory.unconfirmed && !lease
}

// compareMark compares a mark, as an answer showed it, with the remembered one. If
// the mark is lower, etcd may have gone back in time. False means that the caller
// must read the mark again, after a probe.
func (i *Instance) compareMark(before sentAt, answer store.Answer, tag allocator.Tag, next int64) bool {
	l, revision := i.ledger, answer.Revision
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	own := i.memory.mark(tag)
	remembered := own.next > 0
	switch {
	case before.epochSeq != t.epochSeq:
		// For example, the request was sent before a barrier: the answer shows a
		// store that no longer exists.
		return false
	case remembered && next < own.next && revision < own.revision:
		return false // another answer overtook this one
	case remembered && next < own.next:
		key := l.keys.Mark(i.room, tag)
		t.suspect("the mark "+key+" is "+strconv.FormatInt(next, 10)+", and was "+strconv.FormatInt(own.next, 10),
			map[string]int64{key: own.next})
		return false
	}
	if own.next != next {
		i.memory.sequence++
		own.sequence = i.memory.sequence
	}
	own.next, own.revision = next, max(revision, own.revision)
	own.shown = own.shown || t.shows(before, answer) && next >= own.leased
	i.memory.setMark(tag, own)
	return true
}

// shows reports whether the answer to a read counts as a lease's would: what it shows is in etcd.
func (t *epochClock) shows(before sentAt, answer store.Answer) bool {
	return before.epochSeq == t.epochSeq && answer.Revision >= before.seen && answer.Connection != 0 &&
		answer.Sender == t.checked.by
}

// remembered returns all that this instance remembers: of its marks those that it
// leased after a point of its memory. The caller holds both locks.
func (i *Instance) remembered(after int64) record.Memory {
	l, m := i.ledger, &i.memory
	answer := record.Memory{
		UUID: l.mu.identity.UUID, Room: i.room, Name: i.name, Incarnations: slices.Clone(m.incarnations),
		Epochs: slices.Clone(m.epochs), Version: l.mu.clock.version, Latest: l.mu.clock.latest,
		MarginTotal:    l.mu.clock.total,
		NarrowestRange: l.mu.state.layout.NarrowestRange, LargestBoundary: l.mu.state.layout.LargestBoundary,
		Formats: max(m.written.formats, l.mu.state.layout.Formats),
		Workers: m.leasedWorkers(), NotBefore: l.mu.clock.notBefore,
		Rooms: record.Union(m.written.rooms, l.mu.state.layout.Ever), Seen: slices.Clone(m.seen),
		SeenUnder: m.seenUnder, Sequence: m.sequence,
	}
	if layout := l.mu.state.layout.Layout; layout.Version == answer.Version {
		answer.Layout = layout
	}
	for tag, own := range m.marks {
		if next := max(own.next, own.sent, own.leased); next > 0 && (after == 0 || own.sequence > after) {
			answer.Marks = append(answer.Marks, record.RememberedMark{Tag: tag, Next: next, Total: own.total})
		}
	}
	return answer
}
