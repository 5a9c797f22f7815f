package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

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
// A mark of a higher layout version than the leases, and of an epoch that the instance
// was not in, covers the leases if the room began at or above their end in that epoch.
// Any other mark covers the leases if its next, with the margin that the mark lacks,
// reaches their end.
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

// OnDrop sets a function that is called when all segments and workers must be dropped.
// This is so if a recover went on without this instance. It is also so if the
// registration is gone without evidence that etcd went back in time, for example after
// an operator's forget: migrations did not wait for the instance meanwhile. OnDrop
// must be called before Run and the first Source.
func (i *Instance) OnDrop(drop func(why string)) { i.drop = drop }

// OnPeriod sets a function that is called before a lease that opens a tag's next period for
// the room, by now, a reading of this process's clock. Its error is the lease's: it may refuse a
// clock that is ahead. It is set before the first lease.
func (i *Instance) OnPeriod(opens func(ctx context.Context, now time.Time) error) { i.opens = opens }

// OnOrphan sets a function that is called with each tag of which IDs may have been
// issued twice. It must be called before Run.
func (i *Instance) OnOrphan(alarm func(Orphan)) { i.alarm = alarm }

// enterPage bounds how many keys are compared or written at once: etcd takes 128
// operations in one transaction.
const enterPage = 120

// enter makes this instance enter the epoch in force. Its errors are Unavailable,
// after which the next call continues, and WentBack if it halted leasing.
func (i *Instance) enter(ctx context.Context) error {
	s, epochSeq := i.ledger.stateAt()
	if s.epoch == "" || s.problem != nil {
		return nil // refusal returns why nothing is leased
	}
	if !i.comparing(s.epoch) {
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
	if err := i.journalEpoch(ctx, s); err != nil {
		return err
	}
	i.entered(s, epochSeq)
	return nil
}

// comparing reports whether the instance compares its leases under an epoch already.
func (i *Instance) comparing(epoch string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.memory.cutOff == epoch
}

// entered notes that the instance is in the epoch of s, if epochSeq is that of the epoch
// in force. Revisions begin anew with an epoch, so earlier revisions of marks and workers no
// longer mean anything.
func (i *Instance) entered(s *State, epochSeq int64) {
	l, m := i.ledger, &i.memory
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.clock.epochSeq != epochSeq {
		return
	}
	m.keepAnswered(s)
	i.admission.enter(l.mu.clock.began)
	m.cutOff, m.uncompared, m.barred = "", nil, Barred{}
	if !slices.Contains(m.epochs, s.epoch) {
		m.epochs = append(slices.Clone(m.epochs), s.epoch)
	}
	for _, own := range m.marks {
		own.revision, own.shown = 0, false
	}
	for id, own := range m.windows {
		own.revision = 0
		m.windows[id] = own
	}
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
func (i *Instance) met(s *State, answered []string) (known, keeps bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	m := &i.memory
	if m.leaser != "" {
		known = m.knownBy(answered)
		keeps = known && len(m.epochs) > 0 && m.epochs[len(m.epochs)-1] == s.ended.Stopped
	}
	if keeps {
		return known, true
	}
	for tag, own := range m.marks {
		if own.leased == 0 {
			delete(m.marks, tag)
		}
	}
	if m.leaser == "" {
		return false, true // it holds nothing
	}
	m.cutOff, m.raises, m.uncompared = s.epoch, !known, slices.Sorted(maps.Keys(m.marks))
	return known, false
}

// knownBy reports whether a list of processes has the leaser, or a later process, which had
// the leaser's memory. The caller holds the lock.
func (m *instanceMemory) knownBy(answered []string) bool {
	from := max(slices.Index(m.incarnations, m.leaser), 0)
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
	most := max(1, enterPage/(len(s.layout.Ever)+1))
	for compared := 0; ; {
		page := i.uncompared(compared, most)
		if len(page) == 0 {
			return nil
		}
		if err := i.compare(ctx, s, page); err != nil {
			return err
		}
		compared = len(page)
	}
}

// uncompared returns the next page of tags to compare, after the first few were compared.
func (i *Instance) uncompared(compared, most int) []allocator.Tag {
	i.mu.Lock()
	defer i.mu.Unlock()
	m := &i.memory
	m.uncompared = m.uncompared[compared:]
	return m.uncompared[:min(most, len(m.uncompared))]
}

// compare compares this instance's leases of some tags with the marks of all rooms. If the
// instance was left out, it raises marks that do not cover them.
func (i *Instance) compare(ctx context.Context, s *State, tags []allocator.Tag) error {
	l := i.ledger
	for range leaseAttempts {
		ops := make([]store.Op, 0, len(tags)*(len(s.layout.Ever)+1))
		for _, tag := range tags {
			ops = append(ops, store.OpGet(l.keys.Tag(tag)))
			for _, room := range s.layout.Ever {
				ops = append(ops, store.OpGet(l.keys.Mark(room, tag)))
			}
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
	own, epochs, raising := i.leased(tag)
	var terms record.Numbers
	var none record.Mark
	if len(found[0]) > 0 {
		if t, err := l.keys.DecodeLife(found[0][0]); err == nil {
			terms = t.Terms().Numbers
			none = record.AbsentMark(terms.Start, terms.BaseTotal)
		} // otherwise no IDs of it are leased, and the margin does not matter
	}
	var raises []raise
	covered, began, next := true, int64(-1), int64(0)
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
		covers, from := covers(counts, s, own, terms, epochs)
		covered = covered && covers
		if from >= 0 && (began < 0 || from < began) {
			began = from
		}
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
	i.compared(tag, ownMark{next: next, revision: revision, leased: own.leased, version: own.version,
		total: own.total})
	if began >= 0 && i.alarm != nil {
		i.alarm(Orphan{Tag: tag, Below: own.leased, Began: began})
	}
	return true, nil
}

// floorAtBegin returns the floor of a tag as it was when the epoch of s began. The first lease of each
// room under the epoch lies at or above it, whenever the room read its own: marks never fall. It is 0
// where etcd's history is compacted beyond that moment, and where something cannot be read.
func (l *Ledger) floorAtBegin(ctx context.Context, s *State, tag allocator.Tag) (int64, error) {
	ops := []store.Op{store.OpGet(l.keys.Layout()), store.OpGet(l.keys.Tag(tag))}
	for _, room := range s.layout.Ever {
		ops = append(ops, store.OpGet(l.keys.Mark(room, tag)))
	}
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
	t, err := l.keys.DecodeLife(life)
	unread = errors.Join(unread, err)
	marks := make(map[allocator.Room]record.Mark)
	for k, room := range s.layout.Ever {
		if kv, ok := answer.One(2 + k); ok {
			marks[room], err = record.DecodeMark(kv)
			unread = errors.Join(unread, err)
		}
	}
	if unread != nil {
		return 0, nil //nolint:nilerr // raising the marks is always safe
	}
	return layout.Floor("", s.margins, t.Terms(), marks).Least, nil
}

// leased returns this instance's memory of a tag's mark, the epochs that it was in, and
// whether it raises marks.
func (i *Instance) leased(tag allocator.Tag) (own ownMark, epochs []string, raises bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.memory.mark(tag), i.memory.epochs, i.memory.raises
}

// compared remembers a mark that was compared. The end of the instance's leases stays: a
// later recover may go on without this instance again.
func (i *Instance) compared(tag allocator.Tag, own ownMark) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.memory.sequence++
	own.sequence = i.memory.sequence
	i.memory.setMark(tag, own)
}

type raise struct {
	key  string
	mark record.Mark
	cond store.Cond
}

// covers reports whether the mark m keeps its room from leasing IDs again that an
// instance leased before a recover that left it out. began is not negative if the room
// began below the end of these IDs in an epoch that the instance was not in: the room
// may already have leased them.
func covers(m record.Mark, s *State, own ownMark, terms record.Numbers, epochs []string) (covers bool, began int64) {
	began = -1
	for _, era := range m.Eras {
		if era.Version > own.version && era.First < own.leased && !slices.Contains(epochs, era.Epoch) &&
			(began < 0 || era.First < began) {
			began = era.First
		}
	}
	unknown := m.Stamp.Epoch != "" && !slices.Contains(epochs, m.Stamp.Epoch)
	if higher := m.Last().Version > own.version; higher && unknown {
		if m.Began < own.leased && (began < 0 || m.Began < began) {
			began = m.Began
		}
		return m.Began >= own.leased, began
	}
	return s.layout.ReachIn(m, s.margins, terms) >= own.leased, began
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
