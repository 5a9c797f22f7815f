package plan

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// The simple way to a target is to shrink every range to its common part with its target, and
// then to grow. It fails for a displaced room: one with a range and a target that share
// nothing. It would have no range between the two moves. A displaced room must jump to a free
// part of its target, and other displaced rooms may block it, in chains or in circles.
//
// The search below is simple and complete for these reasons:
//
//   - Targets of different rooms are disjoint. So a free residue of a room's
//     target stays free until that room takes it (unless another room parks there,
//     which is done only when no displaced room has a free residue in its
//     target), and rooms that go into their targets never collide.
//   - A room that has a part of its target keeps it, so that the displaced only
//     become fewer. When none is left, the target itself is a safe move.
//   - When all displaced rooms are blocked, they are blocked by displaced rooms
//     alone. One that blocks gives up half of its range, or parks in a gap;
//     where all are single residues and there is no gap, the widest of the
//     other rooms lends a residue to park in. After it a displaced room can
//     jump, and what it leaves is free. So only a layout with no gap and of
//     single residues alone has no way out, and in it indeed nothing can move.
//
// A room that is to have a worker needs one of some residues: those that have a worker. For
// such a search only these residues count (type measure). A range without any counts as empty,
// be it a gap or what a room has of its target. The reasons above hold for them alike.

// shortest returns the layouts to pass, target included, or nil if there is no way. Of the two
// searches it takes the one with fewer moves; if they have as many, the one that squeezes its
// narrowest room less.
func shortest(from, target allocator.Layout, s measure) []allocator.Layout {
	patient, eager := s.search(from, target, false), s.search(from, target, true)
	if eager == nil {
		return patient
	}
	if better := cmp.Or(cmp.Compare(len(eager), len(patient)),
		cmp.Compare(squeeze(from, target, eager), squeeze(from, target, patient))); better < 0 || patient == nil {
		return eager
	}
	return patient
}

// squeeze returns the largest factor by which any room is narrower on the way than before and
// after.
func squeeze(from, target allocator.Layout, layouts []allocator.Layout) float64 {
	worst := 1.0
	for _, l := range layouts {
		for room, r := range l.Ranges {
			if old, stays := from.Ranges[room]; stays {
				usual := min(old.Width(), target.Ranges[room].Width())
				worst = max(worst, float64(usual)/float64(r.Width()))
			}
		}
	}
	return worst
}

// search goes step by step. An eager search makes rooms give way to every displaced room at
// once, so that all can jump together. A patient search does so only when nothing else can
// move, and prefers to park rooms.
func (s measure) search(from, target allocator.Layout, eager bool) []allocator.Layout {
	var layouts []allocator.Layout
	for at := from; !onlyFree(at, target); {
		next := cloneLayout(at)
		if someStay(at, target) {
			s.advance(next, target, eager)
		} else {
			s.hand(next, target)
		}
		if next.Equal(at) || len(layouts) > mostMoves(from) {
			return nil
		}
		layouts = append(layouts, next)
		at = next
	}
	return append(layouts, target)
}

// mostMoves is more than any search needs.
func mostMoves(from allocator.Layout) int { return 3*len(from.Ranges) + 4 }

// advance changes l, which keeps some of its rooms, to the next layout. It leaves l unchanged
// if nothing can move.
func (s measure) advance(l, target allocator.Layout, eager bool) {
	at := cloneLayout(l)
	var blocked []allocator.Room
	for _, room := range at.Rooms() {
		goal, stays := target.Ranges[room]
		if !stays {
			delete(l.Ranges, room)
		} else if common, ok := at.Ranges[room].Intersect(goal); ok && s.weight(common) > 0 {
			l.Ranges[room] = common
		} else if part := s.widest(gaps(at, goal)); s.weight(part) > 0 {
			l.Ranges[room] = part
		} else {
			blocked = append(blocked, room)
		}
	}
	if eager {
		s.giveWay(l, target, blocked)
	}
	if !l.Equal(at) || s.park(l, target, blocked) {
		return
	}
	if s.giveWay(l, target, blocked); l.Equal(at) {
		s.lend(l, blocked)
	}
}

// someStay reports whether a room of l is also in target.
func someStay(l, target allocator.Layout) bool {
	for room := range l.Ranges {
		if _, stays := target.Ranges[room]; stays {
			return true
		}
	}
	return false
}

// hand is advance for a target with other rooms only. A layout cannot be without rooms, so the
// last old room must wait for the first new one, and that one for a gap.
func (s measure) hand(l, target allocator.Layout) {
	all := s.widest(gaps(l, allocator.Range{Upper: l.Boundary}))
	if rooms := l.Rooms(); s.weight(all) == 0 {
		for _, room := range rooms[1:] {
			delete(l.Ranges, room)
		}
		if len(rooms) == 1 {
			l.Ranges[rooms[0]] = s.less(l.Ranges[rooms[0]], target)
		}
		return
	}
	var first allocator.Room
	var part allocator.Range
	for _, room := range target.Rooms() {
		if run := s.widest(gaps(l, target.Ranges[room])); s.weight(run) > s.weight(part) {
			first, part = room, run
		}
	}
	if s.weight(part) == 0 { // no gap is in a target
		first = target.Rooms()[0]
		part = s.head(all, target.Ranges[first].Width())
	}
	clear(l.Ranges)
	l.Ranges[first] = part
}

// giveWay shrinks blocked rooms, the widest first, until each has a free residue in its target,
// or shrinking does not help any more.
func (s measure) giveWay(l, target allocator.Layout, blocked []allocator.Room) {
	byWidth := slices.SortedStableFunc(slices.Values(blocked), func(a, b allocator.Room) int {
		return cmp.Compare(l.Ranges[b].Width(), l.Ranges[a].Width())
	})
	for _, room := range byWidth {
		waiting := allocator.Layout{Ranges: make(map[allocator.Room]allocator.Range)}
		for _, other := range blocked {
			goal := target.Ranges[other]
			if meet, _ := l.Ranges[room].Intersect(goal); s.weight(meet) > 0 && s.full(l, goal) {
				waiting.Ranges[other] = goal
			}
		}
		l.Ranges[room] = s.less(l.Ranges[room], waiting)
	}
}

// less returns the part of r to keep for the rooms of waiting: the widest of the runs outside
// their ranges and of the halves of r's part of each. It is all of r if none of it is theirs,
// or if r has nothing to give.
func (s measure) less(r allocator.Range, waiting allocator.Layout) allocator.Range {
	keep := gaps(waiting, r)
	for _, room := range waiting.Rooms() {
		if held, meet := r.Intersect(waiting.Ranges[room]); meet {
			held.Upper = s.half(held)
			keep = append(keep, held)
		}
	}
	if kept := s.widest(keep); s.weight(kept) > 0 {
		return kept
	}
	return r
}

// park moves the narrowest blocked room that blocks another into the widest gap, and reports
// whether there was one. No blocked room may have a gap in its target. A parked room blocks no
// other, so it is not parked again.
func (s measure) park(l, target allocator.Layout, blocked []allocator.Room) bool {
	gap := s.widest(gaps(l, allocator.Range{Upper: l.Boundary}))
	blockers := slices.DeleteFunc(slices.Clone(blocked), func(room allocator.Room) bool {
		return !slices.ContainsFunc(blocked, func(other allocator.Room) bool {
			meet, _ := l.Ranges[room].Intersect(target.Ranges[other])
			return s.weight(meet) > 0
		})
	})
	if s.weight(gap) == 0 || len(blockers) == 0 {
		return false
	}
	room := slices.MinFunc(blockers, func(a, b allocator.Room) int {
		return cmp.Compare(l.Ranges[a].Width(), l.Ranges[b].Width())
	})
	l.Ranges[room] = s.head(gap, l.Ranges[room].Width())
	return true
}

// lend takes the last residue from the widest room that is not blocked, if it
// has more than one.
func (s measure) lend(l allocator.Layout, blocked []allocator.Room) {
	var lender allocator.Room
	var least allocator.Range
	for _, room := range l.Rooms() {
		if slices.Contains(blocked, room) || s.weight(l.Ranges[room]) <= max(1, s.weight(l.Ranges[lender])) {
			continue
		}
		rest := l.Ranges[room]
		if rest.Upper = s.last(rest); s.keepsPins(l, room, rest) {
			lender, least = room, rest
		}
	}
	if lender != "" {
		l.Ranges[lender] = least
	}
}

// full reports whether the rooms of l hold all of r.
func (s measure) full(l allocator.Layout, r allocator.Range) bool {
	var weight int64
	for _, held := range l.Ranges {
		if common, meet := held.Intersect(r); meet {
			weight += s.weight(common)
		}
	}
	return weight == s.weight(r)
}

// gaps returns the runs of r that no room of l holds and that are not reserved, in order.
func gaps(l allocator.Layout, r allocator.Range) []allocator.Range { return l.Free(r) }

// measure says which residues count in a search. The zero value counts all. If rooms need a
// worker of so few bits that some residues have none, only the residues with a worker count:
// worker k belongs to the room with the residue floor(k * boundary / 2^bits). The workers of
// greater widths include these residues, so only the least width matters.
type measure struct {
	from    allocator.Layout
	needs   Workers
	workers bool // count workers, of so many bits
	bits    int
}

// measureOf returns the measure by which every room keeps what it needs.
func measureOf(from allocator.Layout, needs Workers) measure {
	s := measure{from: from, needs: needs}
	for width := range needs.widths {
		if 1<<width < from.Boundary && (!s.workers || width < s.bits) {
			s.workers, s.bits = true, width
		}
	}
	return s
}

// weight returns how many residues of r count, 0 or less for an empty range.
func (s measure) weight(r allocator.Range) int64 {
	if !s.workers || r.Width() <= 0 {
		return r.Width()
	}
	return s.slice(r).Width()
}

// slice returns the workers of r.
func (s measure) slice(r allocator.Range) allocator.Range {
	return timeid.Slice(r, s.from.Boundary, s.bits)
}

// residue returns the residue that has a worker.
func (s measure) residue(worker int64) int64 {
	high, low := bits.Mul64(uint64(worker), uint64(s.from.Boundary))
	quotient, _ := bits.Div64(high, low, 1<<s.bits) // high < 2^bits, as worker <= 2^bits and the boundary < 2^63
	return int64(quotient)
}

// half returns the end of the first half of r, the larger one: all of r if only one of its
// residues counts.
func (s measure) half(r allocator.Range) int64 {
	if !s.workers {
		return r.Upper - r.Width()/2
	}
	if w := s.slice(r); w.Width() > 1 {
		return s.residue(w.Upper - w.Width()/2)
	}
	return r.Upper
}

// last returns the last residue of r that counts.
func (s measure) last(r allocator.Range) int64 {
	if !s.workers {
		return r.Upper - 1
	}
	return s.residue(s.slice(r).Upper - 1)
}

// head returns the first residues of r up to a width. If none of them counts, it begins with
// the first one that does. r has one.
func (s measure) head(r allocator.Range, width int64) allocator.Range {
	first := allocator.Range{Lower: r.Lower, Upper: r.Lower + min(r.Width(), width)}
	if s.weight(first) == 0 {
		first.Lower = s.residue(s.slice(r).Lower)
		first.Upper = first.Lower + min(r.Upper-first.Lower, width)
	}
	return first
}

// widest returns the first of the runs with the most residues that count, or an empty range.
func (s measure) widest(runs []allocator.Range) allocator.Range {
	var best allocator.Range
	for _, run := range runs {
		if s.weight(run) > s.weight(best) {
			best = run
		}
	}
	return best
}

// keepsPins reports whether a room of l also has its pinned workers with a range r.
func (s measure) keepsPins(l allocator.Layout, room allocator.Room, r allocator.Range) bool {
	l = cloneLayout(l)
	l.Ranges[room] = r
	for width := range s.needs.widths {
		if s.needs.checkPins(s.from, l, width) != nil {
			return false
		}
	}
	return true
}
