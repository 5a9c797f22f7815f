package ledger

import (
	"cmp"
	"context"
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

// maxKept bounds how many segments a process keeps; the others are a gap.
const maxKept = 100_000

// Rest is what a process holds of a tag when it stops.
type Rest struct {
	Source   allocator.Source // of Instance.Source
	Segments []allocator.Segment
}

// Keep keeps what this process holds for the next process of its name, and returns how many IDs that are: none without
// a journal, or before the formats of generation 2. From its call on this process issues none of them, and nothing may
// be leased. Leave comes next, and makes it valid. Its error is the journal's: then nothing is kept.
func (i *Instance) Keep(ctx context.Context, rests []Rest) (ids int64, err error) {
	m := &i.memory
	stored, _ := i.ledger.Layout()
	if m.journal == nil || !stored.Upgraded() {
		return 0, nil
	}
	kept := journal.Kept{Nonce: record.RandomHex()}
	for _, rest := range rests {
		if s, is := rest.Source.(*tagSource); is {
			for _, seg := range rest.Segments {
				kept.Segments = append(kept.Segments, keptSegment(s.name, s.life, seg))
			}
		}
	}
	m.with(func() { // and what no caller asked for
		for _, tag := range slices.Sorted(maps.Keys(m.mu.kept.held)) {
			kept.Segments = append(kept.Segments, m.mu.kept.held[tag]...)
		}
		m.mu.kept = keeping{}
	})
	kept.Segments = kept.Segments[:min(len(kept.Segments), maxKept)]
	if len(kept.Segments) == 0 {
		return 0, nil
	}
	for part := range kept.Parts {
		if err := m.journal.Append(ctx, part); err != nil {
			return 0, err
		}
	}
	for _, s := range kept.Segments {
		ids += s.Count
	}
	oldest := i.oldestTokens(ctx)
	m.with(func() { m.mu.kept = keeping{token: kept.Hash(), oldest: oldest} })
	return ids, nil
}

func keptSegment(tag allocator.Tag, life int64, seg allocator.Segment) journal.KeptSegment {
	return journal.KeptSegment{Tag: tag, Life: life, Version: seg.Version, Boundary: seg.Boundary,
		Lower: seg.Range.Lower, Upper: seg.Range.Upper, First: seg.First, Count: seg.Count}
}

func segmentOf(k journal.KeptSegment) allocator.Segment {
	return allocator.Segment{Version: k.Version, Boundary: k.Boundary,
		Range: allocator.Range{Lower: k.Lower, Upper: k.Upper}, First: k.First, Count: k.Count}
}

// oldestTokens returns deletions of the room's oldest tokens, so that one more stays within the bound: those of
// instances that never came back. Where they cannot be read, the next stop tries again.
func (i *Instance) oldestTokens(ctx context.Context) (oldest []store.Op) {
	tokens := store.OpGetPrefix(i.ledger.keys.Tokens(i.room))
	tokens.Get.KeysOnly = true
	answer, err := i.ledger.Try(ctx, store.Txn{Then: []store.Op{tokens}})
	if err != nil {
		return nil
	}
	own := i.ledger.keys.Token(i.room, i.name)
	others := slices.DeleteFunc(answer.Got[0], func(kv store.KV) bool { return kv.Key == own })
	slices.SortFunc(others, func(a, b store.KV) int { return cmp.Compare(a.ModRevision, b.ModRevision) })
	for _, kv := range others[:min(max(len(others)+1-record.MaxTokens, 0), record.OverflowMost)] {
		oldest = append(oldest, store.Op{Delete: kv.Key})
	}
	return oldest
}

// TakeKept takes what the process before kept, where etcd has its token, and returns how many IDs that are: this process
// then holds them. Otherwise they are a gap, for good. It is called once, before anything is leased.
func (i *Instance) TakeKept(ctx context.Context) (ids int64) {
	m := &i.memory
	var kept journal.Kept
	m.with(func() { kept, m.mu.kept.before = m.mu.kept.before, journal.Kept{} })
	if kept.Nonce == "" {
		return 0
	}
	for _, s := range kept.Segments {
		ids += s.Count
	}
	if taken, err := i.take(ctx, kept); !taken {
		_ = m.journal.Note(noneKept()) // the journal has it before any lease of this process
		i.ledger.log.Warn("what the process before kept is a gap", "ids", ids, "error", err)
		return 0
	}
	return ids
}

// noneKept is the note that nothing is kept any more.
func noneKept() journal.Record { return journal.Record{Kept: &journal.Kept{}} }

// take takes what was kept. False means that it is a gap.
func (i *Instance) take(ctx context.Context, kept journal.Kept) (bool, error) {
	state, err := i.ledger.LeasableState(ctx)
	if err != nil {
		return false, err
	}
	before, key := i.ledger.before(), i.ledger.keys.Token(i.room, i.name)
	note, held := noneKept(), make(map[allocator.Tag][]journal.KeptSegment)
	for _, s := range kept.Segments {
		held[s.Tag] = append(held[s.Tag], s)
	}
	for _, tag := range slices.Sorted(maps.Keys(held)) {
		last := held[tag][len(held[tag])-1]
		note.Marks = append(note.Marks, journal.Mark{Tag: tag, Next: segmentOf(last).Last() + 1, Version: last.Version})
	}
	_, ours, err := i.claim(ctx, claim{
		state: state,
		was:   store.KV{Key: key, Value: record.Encode(&record.Token{Epoch: state.epoch, Hash: kept.Hash()})},
		then:  []store.Op{{Delete: key}},
		note:  note,
		sends: func() bool { return false }, accepts: func(int64) bool { return true },
		learns: func(context.Context, sentAt, store.Answer) error { return nil },
	})
	if err != nil || !ours {
		return false, err
	}
	// The journal has the note: from here on they are held, as if this process had leased them.
	return i.compared(before, func(*epochClock) bool { i.memory.mu.kept.held = held; return true }), nil
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
