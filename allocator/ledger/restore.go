package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Where etcd went back in time, leasing is halted for all. A recover asks instances for their memories, bars them, and
// begins a new epoch, which each instance enters.

// Barred is the recover that has barred an instance. The zero value is none.
type Barred struct {
	By    string    // the operator
	Since time.Time // by the instance's clock
	nonce string
}

// Memory returns all that this instance remembers. Where the question has a barrier
// that the instance accepts, no answer to a transaction that was sent before is
// accepted from then on, and nothing is leased under an epoch that the instance has
// seen. An instance accepts a barrier only if its own etcd shows exactly that halt,
// in the order of all writes. So a rehearsal on a copy, a late request or a call
// from elsewhere bars no instance.
func (m *memory) Memory(ctx context.Context, q record.Question) record.Memory {
	l := m.ledger
	var shown halted
	var err error
	if q.Barrier != nil {
		shown, err = l.showsHalt(ctx, *q.Barrier)
	}
	answer := m.answer(q, shown, err)
	answer.SortMarks() // not under the lock: there may be a million
	return answer
}

// answer answers a question. If the question has a barrier, shown is the halt that
// etcd shows, and err why it shows none.
func (m *memory) answer(q record.Question, shown halted, err error) record.Memory {
	now := m.ledger.now() // after etcd showed the halt: keepAnswered relies on that
	var said pending.Lines
	defer said.Write(m.ledger.log)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	unbarred := ""
	switch {
	case q.Barrier == nil:
	case err != nil:
		unbarred = err.Error()
	case !m.bar(&said, now, shown):
		unbarred = "another epoch came into force meanwhile"
	}
	answer := m.remembered(q.After)
	answer.Barred, answer.Unbarred = q.Barrier != nil && unbarred == "", unbarred
	return answer
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

// bar sets the instance's epoch to the halt that was shown. Leases that were sent under
// the epoch before are lost. If that epoch is in force again later, this is evidence that
// etcd went back. It returns false if another epoch came into force after that halt. The
// caller holds both locks.
func (m *memory) bar(said *pending.Lines, now time.Time, h halted) bool {
	l, id := m.ledger, haltID(h.value.Nonce)
	t := &l.mu.clock
	if t.current != id && t.knows(id) {
		return false
	}
	if t.current != id {
		t.turn(id, h.revision)
	}
	if l.mu.identity.ClusterID != h.clusterID {
		said.Warn("a recover moves the cluster to another etcd cluster", "etcd_cluster_id",
			fmt.Sprintf("%x", h.clusterID))
		l.mu.identity.ClusterID = h.clusterID
	}
	if m.mu.barred.nonce != h.value.Nonce {
		m.mu.barred = Barred{By: h.value.By, Since: now, nonce: h.value.Nonce}
		said.Warn("barred by a recover: nothing is leased until it has begun a new epoch", "by", h.value.By)
	}
	return true
}

// halted is a halt as etcd showed it.
type halted struct {
	value     record.Halt
	clusterID uint64
	revision  int64
}

// showsHalt reads the epoch in the order of all writes, and returns the halt that a
// barrier names. Its error says that etcd shows something else.
func (l *Ledger) showsHalt(ctx context.Context, b record.Barrier) (h halted, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.tryFor())
	defer cancel()
	// Not by Try, which would refuse an answer from an etcd cluster that is new to
	// this process.
	answer, err := l.store.Txn(ctx, l.ordered(store.OpGet(l.keys.Epoch()), store.OpGet(l.keys.Identity())))
	if err != nil {
		return h, err
	}
	if len(answer.Got) != 2 || len(answer.Got[0]) == 0 || len(answer.Got[1]) == 0 {
		return h, allocator.Errorf(allocator.Refused, "the etcd of this instance holds no cluster under %s", l.keys)
	}
	var e record.Epoch
	var id record.Identity
	if err := errors.Join(record.Decode(answer.Got[0][0], &e), record.Decode(answer.Got[1][0], &id)); err != nil {
		return h, err
	}
	switch {
	case id.UUID != l.pinned().UUID:
		return h, allocator.Errorf(allocator.Refused, "the etcd of this instance holds cluster %s", id.UUID)
	case answer.ClusterID != b.ClusterID:
		return h, allocator.Errorf(allocator.Refused,
			"the instance is connected to etcd cluster %x, the recover works on %x", answer.ClusterID, b.ClusterID)
	case e.Halted == nil || e.Halted.Nonce != b.Nonce:
		return h, allocator.Errorf(allocator.Refused,
			"the etcd of this instance does not show the halt of that recover")
	}
	return halted{*e.Halted, answer.ClusterID, answer.Revision}, nil
}

// Barred returns the recover that has barred this instance, if one has.
func (m *memory) Barred() (Barred, bool) {
	l := m.ledger
	m.mu.Lock()
	defer m.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := m.mu.barred
	return b, b.nonce != "" && l.mu.clock.current == haltID(b.nonce)
}

// An instance that meets a new epoch enters it first. Until then it leases nothing under
// the epoch, and journals nothing of it. It has entered when its journal has the epoch.
//
// The instance is known to the epoch if the recover that began it took the memory that
// this process has: the list of processes that answered names the leaser, or a later
// process of this name, which had the leaser's memory.
//
//   - Known, and in the epoch that the halt stopped: every mark covers the IDs that the
//     instance leased, and no other instance leased since. There is nothing to do.
//   - Known, and not in that epoch: other instances may have leased since. The instance
//     drops what it holds, and compares its leases with the marks for the alarm only. The
//     recover raised the mark of its room, and each room reads its floor anew.
//   - Not known: the instance was left out. It drops what it holds, and compares the end
//     of its leases of each tag with the marks of all rooms.
//
// A mark covers the leases if its next, with the margin that the mark lacks, reaches their end: a room that leased
// under the epoch lacks none, and goes on above its next; any other one begins at or above a floor that is no lower.
//
// If a mark does not cover them, the floor of all rooms may, as it was when the epoch began:
// the first lease of each room under the epoch lies above it. If that does not either, or if
// etcd's history is compacted, one transaction raises the marks of all rooms, absent
// ones too. If a room began below the end of the leases in an epoch that the instance
// was not in, IDs may have been issued twice: an alarm names the tag. An instance that
// may not write the marks of other rooms halts leasing.

// Orphan is a tag of an instance that recovers went on without. The instance held IDs of the
// tag that other instances may have issued, too.
type Orphan struct {
	Tag   allocator.Tag
	Below int64 // the end of the instance's leases
	Began int64 // the least ID from which another room may have leased since
}

// enterPage bounds how many keys are compared or written at once: etcd takes 128
// operations in one transaction.
const enterPage = 120

// enter makes this instance enter the epoch in force. Its errors are Unavailable,
// after which the next call continues, and WentBack if it halted leasing.
func (i *Instance) enter(ctx context.Context) error {
	l := i.ledger
	var s *State
	var epochSeq int64
	l.with(func() { s, epochSeq = l.mu.state, l.mu.clock.epochSeq })
	if s.epoch == "" || s.problem != nil {
		return nil // refusal returns why nothing is leased
	}
	compares := false // under this epoch already
	i.with(func() { compares = i.memory.mu.cutOff == s.epoch })
	if !compares {
		answered, err := i.answered(ctx, s)
		if err != nil {
			return err
		}
		i.meet(s, answered)
	}
	if err := i.compareAll(ctx, s); err != nil {
		return err
	}
	// From here on a crash leaves the instance in the epoch.
	if err := i.toJournal(ctx, s, journal.Record{}); err != nil {
		return err
	}
	i.entered(s, epochSeq)
	return nil
}

// entered notes that the instance is in the epoch of s, if epochSeq is that of the epoch
// in force. Revisions begin anew with an epoch, so earlier revisions of marks and workers no
// longer mean anything.
func (m *memory) entered(s *State, epochSeq int64) {
	l := m.ledger
	m.mu.Lock()
	defer m.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.clock.epochSeq != epochSeq {
		return
	}
	m.keepAnswered(s)
	l.mu.clock.entering = false
	m.mu.cutOff, m.mu.uncompared, m.mu.barred = "", nil, Barred{}
	if !slices.Contains(m.mu.epochs, s.epoch) {
		m.mu.epochs = append(slices.Clone(m.mu.epochs), s.epoch)
	}
	for _, own := range m.mu.marks {
		own.revision, own.shown = 0, false
	}
	for id, own := range m.mu.windows {
		own.revision = 0
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

// answered returns the list of processes whose memory the recover took that began the epoch
// of s. It is empty if no recover began the epoch, or the list cannot be read.
func (i *Instance) answered(ctx context.Context, s *State) ([]string, error) {
	l := i.ledger
	if s.ended == nil {
		return nil, nil
	}
	answer, err := l.Read(ctx, store.Txn{If: l.Holds(s), Then: []store.Op{store.OpGet(l.keys.Answered())}})
	if err != nil || !answer.Succeeded {
		return nil, changedMeanwhile(err)
	}
	kv, ok := answer.One(0)
	if !ok {
		return nil, nil
	}
	var v record.Answered
	if err := record.Decode(kv, &v); err != nil {
		l.log.Warn("the list of instances that answered the recover cannot be read", "error", err)
		return nil, nil // treating the instance as left out is always safe
	}
	if v.Epoch != s.epoch {
		return nil, nil
	}
	return v.Incarnations, nil
}

// meet decides what the epoch of s means for what this instance holds and leased.
func (i *Instance) meet(s *State, answered []string) {
	known, keeps := i.met(s, answered)
	if keeps {
		return
	}
	why := "a recover went on without this instance"
	if known {
		why = "recovers went on while this instance was cut off"
	}
	i.ledger.log.Error(why+": its segments and windows are dropped, and its leases are compared with the marks",
		"epoch", s.epoch)
	i.dropHeld(why)
}

// met notes what is to be compared under the epoch of s, and reports whether the instance is
// known to the epoch, and whether it keeps what it holds. If it does not, or leased nothing,
// it forgets the marks that it only read: under another epoch they mean nothing.
func (m *memory) met(s *State, answered []string) (known, keeps bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.leaser != "" {
		known = m.knownBy(answered)
		keeps = known && len(m.mu.epochs) > 0 && m.mu.epochs[len(m.mu.epochs)-1] == s.ended.Stopped
	}
	if keeps {
		return known, true
	}
	for tag, own := range m.mu.marks {
		if own.leased == 0 {
			delete(m.mu.marks, tag)
		}
	}
	if m.mu.leaser == "" {
		return false, true // it holds nothing
	}
	m.mu.cutOff, m.mu.raises, m.mu.uncompared = s.epoch, !known, slices.Sorted(maps.Keys(m.mu.marks))
	return known, false
}

// knownBy reports whether a list of processes has the leaser, or a later process, which had
// the leaser's memory. The caller holds the lock.
func (m *memory) knownBy(answered []string) bool {
	from := max(slices.Index(m.incarnations, m.mu.leaser), 0)
	return slices.ContainsFunc(m.incarnations[from:], func(incarnation string) bool {
		return slices.Contains(answered, incarnation)
	})
}

// changedMeanwhile returns err, or that the epoch or the layout changed.
func changedMeanwhile(err error) error {
	if err != nil {
		return err
	}
	return errEpochChanged
}

var errEpochChanged = &allocator.Error{Kind: allocator.Unavailable, Msg: "the epoch, or the layout, changed meanwhile"}

// compareAll compares the tags that met noted. After an error the next call
// continues.
func (i *Instance) compareAll(ctx context.Context, s *State) error {
	m, most := &i.memory, max(1, enterPage/(len(s.layout.Ever)+1))
	for compared := 0; ; {
		var page []allocator.Tag
		m.with(func() {
			m.mu.uncompared = m.mu.uncompared[compared:]
			page = m.mu.uncompared[:min(most, len(m.mu.uncompared))]
		})
		if len(page) == 0 {
			return nil
		}
		if err := i.compare(ctx, s, page); err != nil {
			return err
		}
		compared = len(page)
	}
}

// compare compares this instance's leases of some tags with the marks of all rooms. If the
// instance was left out, it raises marks that do not cover them.
func (i *Instance) compare(ctx context.Context, s *State, tags []allocator.Tag) error {
	l := i.ledger
	for range leaseAttempts {
		ops := make([]store.Op, 0, len(tags)*(len(s.layout.Ever)+1))
		for _, tag := range tags {
			ops = append(append(ops, store.OpGet(l.keys.Tag(tag))), l.marksOf(s, tag)...)
		}
		answer, err := l.Read(ctx, store.Txn{If: l.Holds(s), Then: ops})
		if err != nil || !answer.Succeeded {
			return changedMeanwhile(err)
		}
		done := true
		for k, tag := range tags {
			at := k * (len(s.layout.Ever) + 1)
			ok, err := i.compareTag(ctx, s, tag, answer.Got[at:at+len(s.layout.Ever)+1], answer.Revision)
			if err != nil {
				return err
			}
			done = done && ok
		}
		if done {
			return nil
		}
	}
	return allocator.Errorf(allocator.Unavailable,
		"other instances changed the marks at each try; it will be tried again")
}

// compareTag compares one tag: found has its key and the marks of all rooms, at a
// revision. It returns false if marks changed before they could be raised.
func (i *Instance) compareTag(ctx context.Context, s *State, tag allocator.Tag, found [][]store.KV,
	revision int64) (bool, error) {
	l := i.ledger
	m := &i.memory
	var own ownMark
	var epochs []string // that the instance was in
	var raising bool
	m.with(func() { own, epochs, raising = m.mu.marks.of(tag), m.mu.epochs, m.mu.raises })
	var terms record.Numbers
	var none record.Mark
	if len(found[0]) > 0 {
		if t, err := record.ReadAs[record.Tag](l.keys, found[0][0]); err == nil {
			terms = t.Terms().Numbers
			none = record.AbsentMark(terms.Start, terms.BaseTotal)
		} // otherwise no IDs of it are leased, and the margin does not matter
	}
	var raises []raise
	covered, began, next := true, int64(allocator.MaxID), int64(0)
	for k, room := range s.layout.Ever {
		r := raise{key: l.keys.Mark(room, tag), cond: store.Absent(l.keys.Mark(room, tag))}
		counts := none
		if kvs := found[k+1]; len(kvs) > 0 {
			var err error
			if r.mark, err = record.DecodeMark(kvs[0]); err != nil {
				l.log.Error("a mark cannot be read: nothing is leased of it", "error", err)
				continue
			}
			r.cond, counts = store.Unchanged(kvs[0]), r.mark
		}
		covered = covered && s.layout.ReachIn(counts, s.margins, terms) >= own.leased
		began = min(began, beganAfter(counts, own.version, epochs))
		if r.mark.Next < own.leased {
			raises = append(raises, r)
		}
		if room == i.room {
			next = r.mark.Next
		}
	}
	raising = raising && !covered && len(raises) > 0
	if raising {
		floor, err := l.floorAtBegin(ctx, s, tag)
		if err != nil {
			return false, err
		}
		raising = floor < own.leased
	}
	if raising {
		txn := store.Txn{If: l.Holds(s)}
		for _, r := range raises {
			txn.If = append(txn.If, r.cond)
			txn.Then = append(txn.Then, store.OpPut(r.key, r.mark.Raised(own.leased).Encode()))
		}
		answer, err := l.Try(ctx, txn)
		if kind := allocator.KindOf(err); err != nil && (kind == allocator.Denied ||
			kind == allocator.Unauthenticated) {
			return false, i.haltOrphaned(ctx, s, tag, err)
		}
		if err != nil {
			return false, err // the outcome is unknown; the next comparison shows it
		}
		if !answer.Succeeded {
			return false, nil
		}
		revision, next = answer.Revision, max(next, own.leased)
	}
	// The end of the instance's leases stays: a later recover may go on without this instance again.
	m.with(func() {
		m.mu.sequence++
		m.mu.marks.set(tag, ownMark{next: next, revision: revision, leased: own.leased, version: own.version,
			total: own.total, sequence: m.mu.sequence})
	})
	if began < own.leased && i.alarm != nil {
		i.alarm(Orphan{Tag: tag, Below: own.leased, Began: began})
	}
	return true, nil
}

// floorAtBegin returns the floor of a tag as it was when the epoch of s began. The first lease of each
// room under the epoch lies at or above it, whenever the room read its own: marks never fall. It is 0
// where etcd's history is compacted beyond that moment, and where something cannot be read.
func (l *Ledger) floorAtBegin(ctx context.Context, s *State, tag allocator.Tag) (int64, error) {
	ops := append([]store.Op{store.OpGet(l.keys.Layout()), store.OpGet(l.keys.Tag(tag))}, l.marksOf(s, tag)...)
	for _, op := range ops {
		op.Get.At = s.began
	}
	answer, err := l.Read(ctx, store.Txn{If: l.Holds(s), Then: ops})
	switch {
	case errors.Is(err, store.ErrCompacted):
		return 0, nil
	case err != nil || !answer.Succeeded:
		return 0, changedMeanwhile(err)
	}
	stored, _ := answer.One(0)
	life, _ := answer.One(1)
	layout, unread := record.DecodeLayout(stored)
	t, err := record.ReadAs[record.Tag](l.keys, life)
	marks, damaged := s.decodeMarks(answer.Got[2:])
	if errors.Join(unread, err, damaged) != nil {
		return 0, nil //nolint:nilerr // raising the marks is always safe
	}
	return layout.Floor("", s.margins, t.Terms(), marks).Least, nil
}

type raise struct {
	key  string
	mark record.Mark
	cond store.Cond
}

// beganAfter returns the least ID from which a room may have leased under a later layout than that of a version, in an
// epoch that an instance was not in, by its mark: the largest ID if it did not.
func beganAfter(m record.Mark, version int64, epochs []string) int64 {
	began := int64(allocator.MaxID)
	for _, era := range m.Eras {
		if era.Version > version && !slices.Contains(epochs, era.Epoch) {
			began = min(began, era.First)
			if era == m.Last() { // the first eras of its epoch may be gone
				began = min(began, m.Began)
			}
		}
	}
	return began
}

// wayOut ends the text of a halt that an instance writes. A recover that asks the instance takes
// its memory, so that the next epoch knows it.
const wayOut = "; the way out: `march recover` while this process runs"

// haltOrphaned halts leasing if this instance may not raise the marks of other
// rooms: these rooms might lease IDs that it issued.
func (i *Instance) haltOrphaned(ctx context.Context, s *State, tag allocator.Tag, cause error) error {
	l := i.ledger
	why := "a recover went on without this instance, and it may not raise the marks of tag " + string(tag) +
		" over its leases: " + cause.Error() + wayOut
	_, err := l.HaltOver(ctx, s.raw, 0, l.haltsAs(), why)
	if err != nil && allocator.KindOf(err) != allocator.Conflict {
		return err
	}
	return allocator.Errorf(allocator.WentBack, "%s", why)
}
