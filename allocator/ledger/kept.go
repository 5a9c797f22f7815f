package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A process that stops in good order keeps what it did not issue, and the next process of its name goes on with it:
// section 3.4 of the design, "Kept segments". Keep and Leave are the stop, TakeKept is the take with its note, and Kept
// gives each tag's chain what is held of it.

// Rest is what a process holds of a tag when it stops.
type Rest struct {
	Source   allocator.Source // of Instance.Source
	Segments []allocator.Segment
}

// Keep keeps what this process holds for the next process of its name, and returns how many IDs that are: none without
// a journal, or before the formats of generation 2. From its call on this process issues none of them, and nothing may
// be leased. Leave comes next, and makes it valid. Its error is the journal's: then nothing is kept.
func (i *Instance) Keep(ctx context.Context, rests []Rest) (ids int64, err error) {
	m, tags := &i.memory, make(map[allocator.Tag][]journal.KeptSegment)
	m.with(func() { // what no caller asked for
		maps.Copy(tags, m.mu.kept.held)
		m.mu.kept = keeping{}
	})
	stored, _ := i.ledger.Layout()
	if m.journal == nil || !stored.Upgraded() {
		return 0, nil
	}
	for _, rest := range rests {
		if s, is := rest.Source.(*tagSource); is && len(rest.Segments) > 0 {
			tags[s.name] = nil
			for _, seg := range rest.Segments {
				tags[s.name] = append(tags[s.name], keptSegment(s.name, s.life, seg))
			}
		}
	}
	kept := journal.Kept{Nonce: record.RandomHex()}
	for _, tag := range slices.SortedFunc(maps.Keys(tags), func(a, b allocator.Tag) int { // the most IDs first
		return cmp.Or(cmp.Compare(count(tags[b]), count(tags[a])), cmp.Compare(a, b))
	}) {
		kept.Segments = append(kept.Segments, tags[tag]...)
	}
	kept.Segments = kept.Segments[:min(len(kept.Segments), record.MaxKept)]
	var last *journal.Record
	for part := range kept.Parts {
		if last != nil { // one sync is enough for all
			err = errors.Join(err, m.journal.Note(*last))
		}
		last = &part
	}
	if last == nil || err != nil {
		return 0, err
	}
	if err := m.journal.Append(ctx, *last); err != nil {
		return 0, err
	}
	m.with(func() { m.mu.kept.token = kept.Hash() })
	return count(kept.Segments), nil
}

// count returns how many IDs segments have.
func count(segments []journal.KeptSegment) (ids int64) {
	for _, s := range segments {
		ids += s.Count
	}
	return ids
}

func keptSegment(tag allocator.Tag, life int64, seg allocator.Segment) journal.KeptSegment {
	return journal.KeptSegment{Tag: tag, Life: life, Version: seg.Version, Boundary: seg.Boundary,
		Lower: seg.Range.Lower, Upper: seg.Range.Upper, First: seg.First, Count: seg.Count}
}

func segmentOf(k journal.KeptSegment) allocator.Segment {
	return allocator.Segment{Version: k.Version, Boundary: k.Boundary,
		Range: allocator.Range{Lower: k.Lower, Upper: k.Upper}, First: k.First, Count: k.Count}
}

// TakeKept takes what the process before kept, where etcd has its token, and returns how many IDs of that this process
// holds then. What it does not take is a gap, for good. It is called once, before anything is leased.
func (i *Instance) TakeKept(ctx context.Context) int64 {
	m := &i.memory
	var before int64
	m.with(func() { before = count(m.mu.kept.before.Segments) })
	if before == 0 {
		return 0
	}
	held, err := i.take(ctx)
	if held == nil {
		_ = m.journal.Note(noneKept()) // the journal has it before any lease of this process
	}
	var ids int64
	m.with(func() { m.mu.kept.before = journal.Kept{} })
	for _, segments := range held {
		ids += count(segments)
	}
	if ids < before {
		i.ledger.log.Warn("what the process before kept is a gap", "ids", before-ids, "error", err)
	}
	return ids
}

// noneKept is the note that nothing is kept any more.
func noneKept() journal.Record { return journal.Record{Kept: &journal.Kept{}} }

// take takes what was kept, and returns what this process holds of it; nil if it did not take it. As long as etcd shows
// that the token is untouched it tries again, under the layout and the registration of then.
func (i *Instance) take(ctx context.Context) (held map[allocator.Tag][]journal.KeptSegment, err error) {
	m := &i.memory
	for range leaseAttempts {
		var state *State
		if state, err = i.ledger.LeasableState(ctx); err != nil {
			if allocator.KindOf(err) == allocator.Unavailable && store.Pause(ctx) {
				continue
			}
			return nil, err
		}
		var kept journal.Kept
		m.with(func() {
			if !m.mu.unconfirmed { // otherwise another process of the name may have leased since
				kept = m.mu.kept.before // none, if the epoch drops all that is held
			}
		})
		if kept.Nonce == "" {
			return nil, nil
		}
		var untouched bool
		if held, untouched, err = i.tryTake(ctx, state, kept); held != nil || !untouched {
			return held, err
		}
		if _, err = i.ledger.Refresh(ctx); err != nil {
			return nil, err
		}
	}
	return nil, err
}

// tryTake makes one try of a take. untouched reports that etcd still has the token, so that the try did nothing.
func (i *Instance) tryTake(ctx context.Context, state *State,
	kept journal.Kept) (held map[allocator.Tag][]journal.KeptSegment, untouched bool, err error) {
	before, key := i.ledger.before(), i.ledger.keys.Token(i.room, i.name)
	if held, err = i.still(ctx, state, kept); err != nil {
		return nil, true, err
	}
	note, ends := noneKept(), make(map[allocator.Tag]journal.KeptSegment)
	for _, s := range kept.Segments {
		ends[s.Tag] = s
	}
	for _, tag := range slices.Sorted(maps.Keys(ends)) {
		last := ends[tag]
		note.Marks = append(note.Marks, journal.Mark{Tag: tag, Next: segmentOf(last).Last() + 1, Version: last.Version})
	}
	token := record.Encode(&record.Token{Epoch: state.epoch, Hash: kept.Hash()})
	_, ours, err := i.claim(ctx, claim{
		state: state, was: store.KV{Key: key, Value: token}, then: []store.Op{{Delete: key}}, note: note,
		learns: func(_ context.Context, _ sentAt, answer store.Answer) error {
			is, there := answer.One(1)
			untouched = there && bytes.Equal(is.Value, token)
			return nil
		},
	})
	if err != nil || !ours {
		return nil, untouched && err == nil, err
	}
	// The journal has the note: from here on they are held, as if this process had leased them.
	if !i.compared(before, func(*epochClock) bool { i.memory.mu.kept.held = maps.Clone(held); return true }) {
		return nil, false, errEpochChanged
	}
	return held, false, nil
}

// still returns, by tag, the segments that each layout since theirs has left to the room: what it lost once it has
// given up for good, also if it got it back. Where the history of layouts does not go back so far, it cannot be known.
func (i *Instance) still(ctx context.Context, state *State,
	kept journal.Kept) (map[allocator.Tag][]journal.KeptSegment, error) {
	l, oldest := i.ledger, state.layout.Layout.Version
	for _, s := range kept.Segments {
		oldest = min(oldest, s.Version)
	}
	history := store.Op{Get: &store.Get{Interval: store.Interval{Key: l.keys.LayoutAt(oldest),
		End: store.PrefixEnd(l.keys.All(record.Layouts))}}}
	answer, err := l.Read(ctx, store.Txn{If: l.Holds(state), Then: []store.Op{history}})
	if err != nil || !answer.Succeeded {
		return nil, changedMeanwhile(err)
	}
	var parts []allocator.Part
	known := make(map[int64]bool) // the oldest go first: where a version is there, all later ones are
	for _, kv := range answer.Got[0] {
		layout, err := record.ReadAs[record.Layout](l.keys, kv)
		if err != nil {
			return nil, err
		}
		parts, known[layout.Layout.Version] = append(parts, layout.Layout.Part(i.room)), true
	}
	held := make(map[allocator.Tag][]journal.KeptSegment)
	for _, s := range kept.Segments {
		if seg := segmentOf(s); known[s.Version] && !slices.ContainsFunc(parts, func(p allocator.Part) bool {
			return p.Outdates(seg)
		}) {
			held[s.Tag] = append(held[s.Tag], s)
		}
	}
	return held, nil
}

// RenewKept drops what this process took and no caller asked for yet, as far as a layout takes it from the room.
func (i *Instance) RenewKept(part allocator.Part) {
	m := &i.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	for tag, segments := range m.mu.kept.held {
		m.mu.kept.held[tag] = slices.DeleteFunc(slices.Clone(segments), func(s journal.KeptSegment) bool {
			return part.Outdates(segmentOf(s))
		})
	}
}

// Kept returns what this process took of a source's tag and may still issue, the next first, and forgets it. Only the
// source's chain issues it, before all that it leases, and cuts it at the tag's limit.
func (i *Instance) Kept(source allocator.Source) (segments []allocator.Segment) {
	s, is := source.(*tagSource)
	if !is {
		return nil
	}
	var kept []journal.KeptSegment
	i.with(func() {
		kept = i.memory.mu.kept.held[s.name]
		delete(i.memory.mu.kept.held, s.name)
	})
	if len(kept) == 0 {
		return nil
	}
	stored, _ := i.ledger.Layout()
	part := stored.Layout.Part(i.room)
	terms, present := s.terms.At(i.Now())
	least := max(terms.Start, terms.Skips[i.room], present.First)
	for _, k := range kept {
		if seg := segmentOf(k); k.Life == s.life && seg.First >= least && !part.Outdates(seg) {
			segments = append(segments, seg)
		}
	}
	return segments
}
