package ledger

import (
	"bytes"
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
)

// tagSource leases segments of one tag to one instance: an allocator.Source. It
// remembers what it read and what its own last transaction wrote, so that a
// cold chain costs one read and one write, and a steady one a write per
// segment. A room has one for each tag in memory, so it makes keys and values
// when it needs them.
type tagSource struct {
	instance *Instance
	name     allocator.Tag

	ordered     bool  // the tag has a strict order: see holder.go
	cluster     bool  // that is over all rooms
	known       bool  // the fields below are as last read or written
	tagRevision int64 // of the tag's key
	life        int64 // when the tag was created, in Unix ms
	terms       record.Terms
	mark        record.Mark
	revision    int64   // of the mark's key; 0 if there is none yet
	raw         *string // the mark's stored value, if encoding the mark would give another one; nil otherwise

	floor *floor // of all rooms' marks, as last read; nil after the first lease above it

	tenure *Tenure // in which this source leases an ordered tag; nil before Hold
}

// floor is a record.Floor with the stamp of the layout and epoch under which the marks
// were read.
type floor struct {
	record.Floor
	stamp record.Stamp
}

// Source reads a tag and returns the source of its segments for this instance.
// Its errors, and the source's, are NotFound (no such tag), NoRange, Exhausted,
// Unavailable, WentBack, and Refused with what an operator must do.
func (i *Instance) Source(ctx context.Context, name allocator.Tag) (_ allocator.Source,
	_ record.TagSettings, err error) {
	ctx, end := i.span(ctx, "ledger.Source", name)
	defer func() { end(err) }()
	s := &tagSource{instance: i, name: name}
	var last error // of the last attempt: Unavailable
	for range leaseAttempts {
		var settings record.TagSettings
		var state *State
		if state, last = i.ledger.LeasableState(ctx); last == nil {
			settings, last = s.read(ctx, state)
		}
		switch {
		case last == nil && s.known:
			return s, settings, nil
		case last == nil:
		case allocator.KindOf(last) != allocator.Unavailable || !store.Pause(ctx):
			return nil, record.TagSettings{}, last
		}
	}
	if last != nil {
		return nil, record.TagSettings{}, allocator.Errorf(allocator.KindOf(last), "tag %s: %w", name, last)
	}
	return nil, record.TagSettings{}, allocator.Errorf(allocator.Unavailable,
		"tag %s: the layout changed %d times while it was read", name, leaseAttempts)
}

// leaseAttempts bounds how often one call of Source or Lease starts over because its
// knowledge was out of date. Instances of a room compete for a mark only when they
// refill at the same moment.
const leaseAttempts = 20

// Lease implements allocator.Source by section 3 of the design: see the
// package comment.
func (s *tagSource) Lease(ctx context.Context, n int64) (_ allocator.Segment, err error) {
	ctx, end := s.instance.span(ctx, "ledger.Lease", s.name)
	defer func() { end(err) }()
	if n < 1 {
		return allocator.Segment{}, allocator.Errorf(allocator.Invalid,
			"lease of tag %s: count %d; allowed: 1 or more", s.name, n)
	}
	if rest := s.leaseRest(); rest.Count > 0 {
		return rest, nil
	}
	began := time.Now()
	for range leaseAttempts {
		seg, done, err := s.attempt(ctx, n, began)
		if err != nil {
			s.known = false
			return allocator.Segment{}, allocator.Errorf(allocator.KindOf(err), "lease of tag %s in room %s: %w",
				s.name, s.instance.room, err)
		}
		if done {
			return seg, nil
		}
	}
	s.known = false
	return allocator.Segment{}, allocator.Errorf(allocator.Unavailable,
		"lease of tag %s in room %s: other instances changed its mark first, %d times in a row", s.name,
		s.instance.room, leaseAttempts)
}

// attempt makes one try of a lease. It returns false without an error if the
// source's knowledge was out of date; the knowledge is then updated.
func (s *tagSource) attempt(ctx context.Context, n int64,
	began time.Time) (seg allocator.Segment, done bool, err error) {
	state, err := s.instance.ledger.LeasableState(ctx)
	if err != nil {
		return seg, false, s.instance.noted(err)
	}
	stamp := state.stamp()
	// If the tag sets max_skew, each lease needs the other rooms' marks.
	needsFloor := s.aboveAll(stamp) && (s.floor == nil || s.floor.stamp != stamp)
	if !s.known || s.terms.MaxSkew > 0 || needsFloor {
		if _, err := s.read(ctx, state); err != nil {
			return seg, false, err
		}
	}
	if err := s.mayLease(state); err != nil || !s.known {
		return seg, false, err
	}
	now := s.instance.Now()
	base, seg, opens, err := s.next(state, n, now)
	if err != nil {
		// This error follows from remembered values. Return it only if they still
		// hold.
		if holds, learnErr := s.stillHolds(ctx, state); learnErr != nil || !holds {
			return seg, false, learnErr
		}
		return seg, false, err
	}
	if opens && s.instance.opens != nil {
		if err := s.instance.opens(ctx, now); err != nil {
			return seg, false, err
		}
	}
	done, err = s.commit(ctx, state, base, seg)
	s.logOutcome(state, seg, time.Since(began), done, err)
	return seg, done, err
}

// aboveAll reports whether a lease under a stamp is to lie above the marks of all rooms: the room's first one under it,
// and the first one of a tenure of a tag that is ordered over all rooms.
func (s *tagSource) aboveAll(stamp record.Stamp) bool {
	return s.mark.Stamp != stamp || s.cluster && s.tenure != nil && !s.tenure.leased
}

// read reads the tag, the room's mark, and the floor: the marks of all rooms that
// ever were, below which nothing may be leased under a layout or an epoch that is
// new to the room's mark. It does so in one transaction, under the condition
// that state's layout and epoch still hold, so one snapshot that shows the
// layout shows every mark that was written before it. In a tenure the snapshot shows
// that, too. If they no longer hold, known stays false and the ledger has read the newer ones.
func (s *tagSource) read(ctx context.Context, state *State) (settings record.TagSettings, err error) {
	s.known = false
	l := s.instance.ledger
	ops := append([]store.Op{store.OpGet(l.keys.Tag(s.name)), store.OpGet(s.markKey())}, l.marksOf(state, s.name)...)
	txn := store.Txn{If: l.Holds(state), Then: ops}
	if s.tenure != nil {
		held := s.tenure.unchanged()
		txn.If, txn.Else = append(txn.If, held), []store.Op{store.OpGet(held.Key)}
	}
	before := l.before()
	// Try only once: the Refiller has its own back-off, and needs each failure.
	answer, err := l.Try(ctx, txn)
	if err != nil {
		return settings, s.instance.noted(err)
	}
	if !answer.Succeeded {
		if s.tenure != nil {
			s.stillHeld(answer.Got[0])
		}
		_, err := l.Refresh(ctx)
		return settings, err
	}
	if settings, err = s.remember(answer.Got[0], answer.Got[1]); err != nil {
		return settings, err
	}
	s.known = false // until the floor is known, too
	if !s.instance.compareMark(before, answer, s.name, s.mark.Next) {
		return settings, nil
	}
	marks, err := state.decodeMarks(answer.Got[2:])
	if err != nil {
		return settings, err
	}
	terms, _ := s.terms.At(s.instance.Now())
	s.floor = &floor{state.layout.Floor(s.instance.room, state.margins, terms, marks), state.stamp()}
	s.known = true
	return settings, nil
}

// remember notes a tag and a mark as a transaction showed them.
func (s *tagSource) remember(tag, mark []store.KV) (record.TagSettings, error) {
	s.known = false
	if len(tag) == 0 {
		return record.TagSettings{}, UnknownTag(s.name)
	}
	i := s.instance
	t, err := i.ledger.keys.DecodeTag(tag[0])
	if err != nil {
		return record.TagSettings{}, err
	}
	if t.Time != nil {
		return record.TagSettings{}, &TimeTagError{Tag: s.name, Settings: t.TagSettings}
	}
	if was := s.tagRevision; was != 0 && was != tag[0].ModRevision && i.changed != nil {
		i.changed(TagChange{Name: s.name, Settings: &t.TagSettings})
	}
	s.tagRevision, s.life = tag[0].ModRevision, t.Created.UnixMilli()
	s.terms, s.ordered, s.cluster = t.Terms(), t.StrictOrder != "", t.StrictOrder == record.OrderCluster
	s.mark, s.revision, s.raw = record.Mark{}, 0, nil
	if len(mark) > 0 {
		if s.mark, err = record.DecodeMark(mark[0]); err != nil {
			return record.TagSettings{}, err
		}
		s.revision = mark[0].ModRevision
		if !bytes.Equal(mark[0].Value, s.mark.Encode()) {
			s.raw = new(string(mark[0].Value))
		}
	}
	s.known = true
	return t.TagSettings, nil
}

// next returns the segment that comes next under state, and the base from which it was
// computed. opens says that this instance's clock opens the tag's next period for the
// room. Its errors are raise's, and Layout.Segment's: Exhausted also where the period is
// full.
func (s *tagSource) next(state *State, n int64, now time.Time) (base int64,
	seg allocator.Segment, opens bool, err error) {
	terms, present := s.terms.At(now)
	base, span, opens, err := s.base(state, terms, present)
	if err != nil {
		return base, seg, false, err
	}
	limit := terms.Limit
	if span.End > 0 {
		limit = min(limit, span.End)
	}
	// No lease may span more than the largest step: see record.Layout.Reach.
	seg, err = state.layout.Layout.Segment(s.instance.room, base, min(n, terms.LargestStep), limit)
	if allocator.KindOf(err) == allocator.Exhausted && span.End > 0 && limit == span.End {
		err = allocator.Errorf(allocator.Exhausted, "the period %v is full; the next one begins at %s: %w", span,
			span.Ends.Format(time.RFC3339), err)
	}
	return base, seg, opens, err
}

// base returns the least ID that may be leased under state by terms, those of a moment. For a tag
// with a period it also returns the period in which the lease lies, and whether it is the present
// one, which the room opens. The error is raise's.
func (s *tagSource) base(state *State, terms record.Terms, present period.Span) (base int64, span period.Span,
	opens bool, err error) {
	room := s.instance.room
	_, serves := state.layout.Layout.Ranges[room] // otherwise Layout.Segment returns the error
	to := int64(0)                                // what other rooms leased, and margins
	switch {
	case serves && s.aboveAll(state.stamp()):
		to = s.floor.Least
	case serves && terms.MaxSkew > 0:
		to = s.floor.Most - terms.MaxSkew
	}
	base = max(s.mark.Next, terms.Start, terms.Skips[room])
	if present.End > 0 {
		begun := max(s.mark.Next-1, terms.Start, terms.Skips[room])
		if to > 0 {
			begun = max(begun, min(s.floor.Most-1, to))
		}
		span, opens = terms.Begun(present, begun)
		base = max(base, span.First)
		last := s.mark.Last()
		leased, _ := terms.Period.Of(max(last.End-1, 0))
		if last.Epoch != state.epoch || leased.First != span.First {
			base = max(base, state.layout.Open(span, room, state.margins, terms))
		}
	}
	base, err = s.raise(base, to)
	return base, span, opens, err
}

// raise returns base, raised to a floor or a catch-up if that lies above. Its error
// is Refused if a single room causes that, with leases more than max_jump above
// those of all others. Of a tag that is ordered over all rooms one room's always are.
func (s *tagSource) raise(base, to int64) (int64, error) {
	if allowed, f := s.terms.MaxJump, s.floor; !s.cluster && to > base && f.Jump > allowed && !f.Alone {
		return 0, allocator.Errorf(allocator.Refused,
			"the largest mark of tag %s, %d, is %d above the second largest, more than max_jump (%d): "+
				"if this is not a mistake, agree with `march tag update %s --max-jump %d`",
			s.name, f.Most, f.Jump, allowed, s.name, f.Jump)
	}
	return max(base, to), nil
}

// commit raises the mark over seg. It reports whether seg is ours; false without an
// error means that a known value was out of date.
func (s *tagSource) commit(ctx context.Context, state *State, base int64, seg allocator.Segment) (bool, error) {
	mark := s.mark.Leased(state.stamp(), state.margins.Total, base, seg)
	c := s.claim(state, mark)
	s.known = false // unless an answer shows the mark
	revision, ours, err := s.instance.claim(ctx, c)
	if err != nil || !ours {
		return false, err
	}
	s.known, s.mark, s.revision, s.raw, s.floor = true, mark, revision, nil, nil
	if s.tenure != nil {
		s.tenure.leased = true
	}
	return true, nil
}

// claim returns what raises the mark over a segment.
func (s *tagSource) claim(state *State, mark record.Mark) claim {
	c := claim{
		state: state, was: store.KV{Key: s.markKey(), ModRevision: s.revision},
		also:   []store.Cond{{Key: s.instance.ledger.keys.Tag(s.name), ModRevision: s.tagRevision}},
		then:   []store.Op{store.OpPut(s.markKey(), mark.Encode())},
		mark:   journal.Mark{Tag: s.name, Next: mark.Next, Version: state.layout.Layout.Version},
		learns: s.learn,
	}
	if s.revision != 0 {
		c.was.Value = s.value()
	}
	if s.tenure != nil {
		c.also = append(c.also, s.tenure.unchanged())
	}
	return c
}

func (s *tagSource) markKey() string { return s.instance.ledger.keys.Mark(s.instance.room, s.name) }

// value returns the mark's value as it is stored.
func (s *tagSource) value() []byte {
	if s.raw != nil {
		return []byte(*s.raw)
	}
	return s.mark.Encode()
}

// learn stores the values in the answer to a refused claim.
func (s *tagSource) learn(ctx context.Context, before sentAt, answer store.Answer) error {
	if _, err := s.remember(answer.Got[2], answer.Got[1]); err != nil {
		return err
	}
	if s.tenure != nil {
		s.stillHeld(answer.Got[3])
	}
	// The floor was computed from the old mark and settings.
	s.floor = nil
	if !s.instance.compareMark(before, answer, s.name, s.mark.Next) {
		s.known = false // so the next attempt reads it
		return nil
	}
	_, err := s.instance.ledger.Refresh(ctx)
	return err
}

// stillHolds reads all values on which a lease depends, and reports whether they are as
// known. False without an error means that they were not; the source then has the new
// ones.
func (s *tagSource) stillHolds(ctx context.Context, state *State) (bool, error) {
	before, c := s.instance.ledger.before(), s.claim(state, s.mark)
	answer, err := s.instance.ledger.Read(ctx, s.instance.conditional(c))
	if err != nil || answer.Succeeded {
		return err == nil, err
	}
	return false, s.instance.refused(ctx, c, before, answer)
}

// logOutcome logs the outcome of a lease, before a caller has the segment. Compared with
// etcd's history, these lines show which transactions failed although they were applied.
//
//	segment leased  it is ours; revision is the mark's
//	segment lost    it is not, and the transaction may have been done
//	lease refused   it is not; the transaction was not done, unless it was sent twice
func (s *tagSource) logOutcome(state *State, seg allocator.Segment, took time.Duration, done bool, err error) {
	log := s.instance.ledger.log
	if !log.IsDebug() {
		return
	}
	log = log.With("room", s.instance.room, "instance", s.instance.name, "tag", s.name, "epoch", state.epoch,
		"version", seg.Version, "boundary", seg.Boundary, "lower", seg.Range.Lower, "upper", seg.Range.Upper, "first",
		seg.First, "count", seg.Count, "took_us", took.Microseconds())
	switch {
	case done:
		log.Debug("segment leased", "revision", s.revision)
	case err != nil:
		log.Debug("segment lost", "error", err)
	default:
		log.Debug("lease refused")
	}
}

// NextBases returns the base of a room's next lease under s at a time, as a source computes it after
// reading all marks of the tag, and the floor of these marks. With an error it is the least possible base.
func (s *State) NextBases(t record.Tag, marks map[allocator.Room]record.Mark,
	now time.Time) func(allocator.Room) (base, floor int64, err error) {
	terms, present := t.Terms().At(now)
	source := &tagSource{instance: &Instance{}, name: t.Name, terms: terms, floor: &floor{},
		cluster: t.StrictOrder == record.OrderCluster}
	floors := s.layout.Floors(s.margins, terms, marks)
	return func(room allocator.Room) (int64, int64, error) {
		source.instance.room, source.mark, source.floor.Floor = room, marks[room], floors(room)
		base, _, _, err := source.base(s, terms, present)
		return max(base, source.mark.Next, terms.Start, terms.Skips[room]), source.floor.Least, err
	}
}

// TimeTagError is the error of leasing a segment of a tag with time-ordered IDs. Its Kind
// is Invalid.
type TimeTagError struct {
	Tag      allocator.Tag
	Settings record.TagSettings // Time is not nil
}

func (e *TimeTagError) Error() string {
	return "tag " + string(e.Tag) + " is of kind time: its IDs follow the clock, and no segment of them is leased"
}

// Unwrap returns the Kind.
func (e *TimeTagError) Unwrap() error { return allocator.Invalid }

// UnknownTag returns the NotFound error for a tag that does not exist.
func UnknownTag(name allocator.Tag) error {
	return allocator.Errorf(allocator.NotFound,
		"tag %s does not exist; create it with `march tag create %s`", name, name)
}
