package ledger

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/crash"
)

// lessor leases segments of one tag to one instance: an allocator.Source. It
// remembers what it read and what its own last transaction wrote, so that a
// cold chain costs one read and one write, and a steady one a write per
// segment. A room has one for each tag in memory, so it keeps numbers, and
// makes keys and values when it needs them.
type lessor struct {
	instance *Instance
	name     allocator.Tag

	known       bool  // what follows is as last read or written
	tagRevision int64 // of the tag's key
	terms       terms
	mark        Mark
	revision    int64  // of the mark's key; 0: there is none yet
	raw         string // the mark's value, where it is not what encode makes of it

	floor      int64 // the largest next of all rooms' marks,
	jump       int64 // how far above the second largest it lies,
	floorStamp Stamp // as they were read under this layout and epoch
}

// terms are the settings of a tag that leases of one room follow.
type terms struct {
	start, limit     int64
	skip             int64 // the least ID this room may lease
	maxJump, maxSkew int64
}

// Source reads a tag and returns the source of its segments for this instance.
// Its errors, and the source's, are NotFound (no such tag), NoRange, Exhausted,
// Unavailable, WentBack, and Refused with what an operator must do.
func (i *Instance) Source(ctx context.Context, name allocator.Tag) (_ allocator.Source, _ TagSettings, err error) {
	ctx, end := i.span(ctx, "ledger.Source", name)
	defer func() { end(err) }()
	s := &lessor{instance: i, name: name}
	for range leaseAttempts {
		var settings TagSettings
		state, err := i.ledger.lessableState(ctx)
		if err == nil {
			settings, err = s.read(ctx, state)
		}
		if err != nil && allocator.KindOf(err) == allocator.Unavailable && pause(ctx) {
			continue
		}
		if err != nil {
			return nil, TagSettings{}, err
		}
		if s.known {
			return s, settings, nil
		}
	}
	return nil, TagSettings{}, allocator.Errorf(allocator.Unavailable, "tag %s: the layout changed %d times while it was read", name, leaseAttempts)
}

// leaseAttempts bounds how often one call of Lease starts over because
// something it knew was out of date. Instances of a room contend for a mark
// only when they refill at the same moment.
const leaseAttempts = 20

// Lease implements allocator.Source by section 3 of the design: see the
// package comment.
func (s *lessor) Lease(ctx context.Context, n int64) (_ allocator.Segment, err error) {
	ctx, end := s.instance.span(ctx, "ledger.Lease", s.name)
	defer func() { end(err) }()
	if n < 1 {
		return allocator.Segment{}, allocator.Errorf(allocator.Invalid, "lease of tag %s: count %d; allowed: 1 or more", s.name, n)
	}
	began := time.Now()
	for range leaseAttempts {
		seg, done, err := s.attempt(ctx, n, began)
		if err != nil {
			s.known = false
			return allocator.Segment{}, wrap(err, "lease of tag %s in room %s", s.name, s.instance.room)
		}
		if done {
			return seg, nil
		}
	}
	s.known = false
	return allocator.Segment{}, allocator.Errorf(allocator.Unavailable,
		"lease of tag %s in room %s: lost the race for its mark %d times", s.name, s.instance.room, leaseAttempts)
}

// attempt makes one try of a lease that began some time ago. It returns false
// without an error when what it knew turned out to be out of date, and has
// learned better.
func (s *lessor) attempt(ctx context.Context, n int64, began time.Time) (seg allocator.Segment, done bool, err error) {
	state, err := s.instance.ledger.lessableState(ctx)
	if err != nil {
		return seg, false, err
	}
	stamp := state.stamp()
	// Where the tag bounds the skew, the other rooms' marks are needed each time.
	if !s.known || s.terms.maxSkew > 0 || s.mark.Era.Stamp != stamp && s.floorStamp != stamp && !mutant("floor-before-layout") {
		if _, err := s.read(ctx, state); err != nil || !s.known {
			return seg, false, err
		}
	}
	base, err := s.base(state)
	if err == nil {
		seg, err = state.layout.Layout.Segment(s.instance.room, base, n, s.terms.limit)
	}
	if err != nil {
		// So it is by what is remembered. It is said only if that still holds.
		if holds, learnErr := s.confirm(ctx, state); learnErr != nil || !holds {
			return seg, false, learnErr
		}
		return seg, false, err
	}
	done, err = s.commit(ctx, state, seg)
	s.tell(state, seg, time.Since(began), done, err)
	return seg, done, err
}

// read reads the tag, the room's mark, and the floor: the largest next of all
// rooms that ever were, under which nothing may be leased under a layout that
// is new to the room's mark. It does so in one transaction, under the condition
// that state's layout and epoch still hold, so one snapshot that shows the
// layout shows every mark that was written before it. Where they hold no
// longer, known stays false and the ledger has read the newer ones.
func (s *lessor) read(ctx context.Context, state *state) (settings TagSettings, err error) {
	s.known = false
	l := s.instance.ledger
	ops := []Op{get(l.keys.tag(s.name)), get(s.markKey())}
	for _, room := range state.layout.Ever {
		if _, serves := state.layout.Layout.Ranges[room]; !serves && mutant("floor-of-present-rooms") {
			continue
		}
		ops = append(ops, get(l.keys.mark(room, s.name)))
	}
	before := l.before()
	// One try: who refills has a back-off of its own, and wants to hear.
	answer, err := l.try(ctx, Txn{If: without(l.holds(state), "", "stale-floor"), Then: ops})
	if err != nil {
		return settings, err
	}
	if !answer.Succeeded {
		_, err := l.Refresh(ctx)
		return settings, err
	}
	if settings, err = s.take(state, answer.Got[0], answer.Got[1]); err != nil {
		return settings, err
	}
	s.known = false // until the floor is, too
	if behind, ok := s.instance.recall(before, s.name, s.mark.Next); !ok || behind > 0 {
		if ok {
			err = s.instance.left(ctx, s.name, behind)
		}
		return settings, err
	}
	marks := make([]Mark, 0, len(state.layout.Ever))
	for i := 2; i < len(ops); i++ {
		if kv, ok := answer.one(i); ok {
			mark, err := decodeMark(kv)
			if err != nil {
				return settings, err
			}
			marks = append(marks, mark)
		}
	}
	second := max(s.terms.start, s.terms.skip) // so far an operator wants this room to go
	s.floor = 0
	for _, mark := range marks {
		second = max(second, min(s.floor, mark.Next))
		s.floor = max(s.floor, mark.Next)
	}
	s.jump = s.floor - second
	s.floorStamp = state.stamp()
	s.known = true
	return settings, nil
}

// base returns the least ID that may be leased under state. Its error is
// raise's.
func (s *lessor) base(state *state) (int64, error) {
	base := max(s.mark.Next, s.terms.start, s.terms.skip)
	skew := s.terms.maxSkew
	switch _, serves := state.layout.Layout.Ranges[s.instance.room]; {
	case !serves:
		return base, nil // and Layout.Segment says so
	case s.mark.Era.Stamp != state.stamp() && !mutant("no-floor"):
		return s.raise(base, s.floor)
	case skew > 0:
		return s.raise(base, s.floor-skew)
	}
	return base, nil
}

// raise returns base, raised to a floor or a catch-up where that lies above.
// Its error is Refused where that is due to a single mark that lies more than
// max_jump above all others.
func (s *lessor) raise(base, to int64) (int64, error) {
	if allowed := s.terms.maxJump; to > base && s.jump > allowed {
		return 0, allocator.Errorf(allocator.Refused,
			"the largest mark of tag %s, %d, is %d above the second largest, more than max_jump (%d): if that is no mistake, agree with `march tag update %s --max-jump %d`",
			s.name, s.floor, s.jump, allowed, s.name, s.jump)
	}
	return max(base, to), nil
}

// take remembers a tag and a mark as a transaction showed them.
func (s *lessor) take(state *state, tag, mark []KV) (TagSettings, error) {
	s.known = false
	if len(tag) == 0 {
		return TagSettings{}, UnknownTag(s.name)
	}
	i := s.instance
	t, err := i.ledger.decodeTag(tag[0])
	if err != nil {
		return TagSettings{}, err
	}
	if was := s.tagRevision; was != 0 && was != tag[0].ModRevision && i.changed != nil {
		i.changed(TagChange{Name: s.name, Settings: &t.Settings})
	}
	s.tagRevision = tag[0].ModRevision
	s.terms = terms{
		start: t.Settings.Start, limit: t.Settings.Limit, skip: t.Settings.Skips[i.room],
		maxJump: t.Settings.MaxJump, maxSkew: t.Settings.MaxSkew,
	}
	s.mark, s.revision, s.raw = Mark{}, 0, ""
	if len(mark) > 0 {
		if s.mark, err = decodeMark(mark[0]); err != nil {
			return TagSettings{}, err
		}
		s.revision = mark[0].ModRevision
		if !bytes.Equal(mark[0].Value, s.mark.encode()) {
			s.raw = string(mark[0].Value)
		}
		if s.mark.Era.Stamp.Epoch == state.epoch {
			s.mark.Era.Stamp.Epoch = state.epoch // one string for all tags
		}
	}
	s.known = true
	return t.Settings, nil
}

// value returns the mark's value as it is stored.
func (s *lessor) value() []byte {
	if s.raw != "" {
		return []byte(s.raw)
	}
	return s.mark.encode()
}

func (s *lessor) markKey() string { return s.instance.ledger.keys.mark(s.instance.room, s.name) }

// holds returns the conditions that epoch and layout are state's.
func (l *Ledger) holds(state *state) []Cond {
	return []Cond{
		hasValue(l.keys.epoch(), state.raw),
		{Key: l.keys.layout(), ModRevision: state.layout.revision},
	}
}

// standing returns a transaction under the conditions of a lease: epoch,
// layout, tag, mark and registration are as known. Where they are not, it shows
// them.
func (s *lessor) standing(state *state) Txn {
	registration := s.instance.registered()
	tag, mark := s.instance.ledger.keys.tag(s.name), s.markKey()
	txn := Txn{
		If:   append(s.instance.ledger.holds(state), Cond{Key: tag, ModRevision: s.tagRevision}, unchanged(registration)),
		Else: []Op{get(tag), get(mark), get(registration.Key)},
	}
	if s.revision == 0 {
		txn.If = append(txn.If, absent(mark))
	} else {
		txn.If = append(txn.If, Cond{Key: mark, ModRevision: s.revision, Value: s.value()})
	}
	txn.If = without(txn.If, "no-epoch", "no-layout", "no-tag", "no-registration", "no-mark")
	return txn
}

// outdated learns from what a standing transaction showed.
func (s *lessor) outdated(ctx context.Context, state *state, answer Answer, before moment) error {
	if err := s.instance.check(ctx, answer.Got[2]); err != nil {
		return err
	}
	if _, err := s.take(state, answer.Got[0], answer.Got[1]); err != nil {
		return err
	}
	if behind, ok := s.instance.recall(before, s.name, s.mark.Next); !ok || behind > 0 {
		s.known = false // and the next attempt reads it
		return nil
	}
	if mutant("retry-forgets-mark") {
		s.raw, s.mark.Next = string(s.value()), 0
	}
	_, err := s.instance.ledger.Refresh(ctx)
	return err
}

// confirm reports whether all that a lease stands on is as known. False
// without an error means that it was not, and has been learned.
func (s *lessor) confirm(ctx context.Context, state *state) (bool, error) {
	before := s.instance.ledger.before()
	answer, err := s.instance.ledger.read(ctx, s.standing(state))
	if err != nil || answer.Succeeded {
		return err == nil, err
	}
	return false, s.outdated(ctx, state, answer, before)
}

// commit raises the mark over seg. It reports whether seg is ours; false
// without an error means that something was out of date.
func (s *lessor) commit(ctx context.Context, state *state, seg allocator.Segment) (bool, error) {
	l := s.instance.ledger
	mark, ended := s.mark.leased(state.stamp(), seg)
	txn := s.standing(state)
	txn.Then = []Op{put(s.markKey(), mark.encode())}
	if ended != nil {
		txn.Then = append(txn.Then, put(l.keys.era(s.instance.room, s.name, ended.Version), ended.encode()))
	}

	if err := s.instance.journalReady(); err != nil {
		return false, err
	}
	before := l.before() // the request is sent: answers may overtake each other
	crash.Here(crash.BeforeLease)
	answer, err := l.try(ctx, txn)
	crash.Here(crash.AfterLease)
	// If we crash here, or the answer is lost, the mark may stand above IDs that
	// nobody holds: a gap.
	if err != nil {
		if mutant("unknown-is-success") {
			return true, nil
		}
		return false, err
	}
	if !answer.Succeeded && !(mutant("retry-is-success") && len(answer.Got[1]) > 0 && bytes.Equal(answer.Got[1][0].Value, mark.encode())) {
		return false, s.outdated(ctx, state, answer, before)
	}
	if ours, err := s.instance.accept(before, answer, s.name, mark.Next); err != nil || !ours {
		s.known = false // the mark was raised
		return false, err
	}
	if err := s.instance.note(state, s.name, mutated("journal-late", mark.Next, s.mark.Next)); err != nil {
		return false, err
	}
	s.mark, s.revision, s.raw = mark, answer.Revision, ""
	l.confirm(state.layout.Layout.Version, before.at)
	return true, nil
}

// wrap puts what was being done before an error's message and keeps its Kind.
func wrap(err error, format string, args ...any) error {
	return allocator.Errorf(allocator.KindOf(err), "%s: %w", fmt.Sprintf(format, args...), err)
}
