package record

import (
	"math/bits"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/period"
)

// Reach returns the floor that a mark makes under an epoch with a margin total: its next + d,
// with
//
//	d = (the epoch's margin total - the mark's total) * (ceil(s/w) + 1) * b
//
// Here s is the largest step that a lease of the tag ever had, w the narrowest range and b the
// largest boundary of all layouts so far: no lease of s IDs spans more than (ceil(s/w) + 1) *
// b. So d is what the recovers since the mark's last lease left free. It is 0 if s is 0, which
// means unknown. The result saturates at allocator.MaxID, under which nothing is left to lease.
func (r *Layout) Reach(m Mark, total, largestStep int64) int64 {
	if total <= m.Total || largestStep == 0 {
		return m.Next
	}
	return plus(m.Next, r.distance(total-m.Total, largestStep))
}

// distance returns d of Reach for a margin, at most allocator.MaxID.
func (r *Layout) distance(margin, largestStep int64) int64 {
	blocks := (largestStep-1)/r.NarrowestRange + 2 // ceil(s/w) + 1; a step is at most 2^40
	high, span := bits.Mul64(uint64(blocks), uint64(r.LargestBoundary))
	if high != 0 || span > uint64(allocator.MaxID)/uint64(margin) {
		return allocator.MaxID
	}
	return int64(span) * margin
}

// plus adds two IDs, and saturates at allocator.MaxID.
func plus(a, b int64) int64 {
	if a > allocator.MaxID-b {
		return allocator.MaxID
	}
	return a + b
}

// ReachIn returns the floor that a mark of a tag makes: Reach, which for a tag with a period
// does not go beyond the period after the one of the mark's next. Without that bound a margin
// would take a tag of short periods years ahead of the calendar.
//
// The bound is safe because no lease crosses the end of a period. Let P be the period of next,
// and Q the one after it. Each lost lease lies in one of them: a lease in a later period would
// need a clock that was ahead by more than Q lasts. The lost leases of P begin at or above next,
// so they end below next + d, and below P's end. Those of Q begin at or above Q's first ID, as
// leases that open a period do, so they end below that ID + d, and below Q's end.
//
//   - If next + d lies in P, it is the floor. Terms.At makes next one of Q where Q may have begun
//     by the clock of an instance that was ahead.
//   - Otherwise the floor is Q's first ID + d. It covers all lost leases of P, as P is over.
//   - If that lies beyond Q, too, the floor is Q's end. It covers all lost leases.
func (r *Layout) ReachIn(m Mark, total int64, t Numbers) int64 {
	reach := r.Reach(m, total, t.LargestStep)
	if t.Period == (period.Period{}) || reach == m.Next {
		return reach
	}
	now, ok := t.Period.Of(m.Next)
	if !ok || reach < now.End {
		return reach
	}
	following, ok := t.Period.Of(now.End)
	if !ok {
		return reach
	}
	return min(plus(following.First, r.distance(total-m.Total, t.LargestStep)), following.End)
}

// reachOf returns the floor that a room's mark of a tag makes, by ReachIn. Leases that a restore
// lost began at or above the tag's start and the room's skip, even if the mark is below. So a
// margin lies above these, too, and above the first ID of a period that may have begun.
func (r *Layout) reachOf(room allocator.Room, m Mark, total int64, t Terms) int64 {
	if m.Total < total {
		m.Next = max(m.Next, t.Start, t.Skips[room], t.mayHaveBegun)
	}
	return r.ReachIn(m, total, t.Numbers)
}

// Floor is the limit that the marks of all rooms set to a room's leases.
type Floor struct {
	Least int64 // the largest reach of all marks
	Most  int64 // the largest next of all marks
	Jump  int64 // the distance from the furthest room's leases up from those of the second; see Layout.Floor
	Alone bool  // the room itself is the furthest
}

// Floor returns the floor of a room under r and an epoch with a margin total. marks has the
// marks of all rooms that ever were, absent ones too (AbsentMark).
//
// The jump shows a typo in one room, which must not drag all others to the end of the space. So
// it counts only leased IDs. It does not count what a mark was raised by, nor d, which is the
// same for all rooms, nor the distance within one block, which depends only on the order of the
// ranges.
func (r *Layout) Floor(room allocator.Room, total int64, t Terms, marks map[allocator.Room]Mark) Floor {
	var f Floor
	own, first, second := int64(0), int64(0), max(t.Start, t.Skips[room]) // an operator wants this room to go that far
	for _, other := range r.Ever {
		m, there := marks[other]
		absent := AbsentMark(t.Start, t.BaseTotal)
		leased := absent
		if len(m.Eras) > 0 {
			leased = Mark{Next: m.Last().End, Total: m.Total}
		}
		if !there {
			m = absent
		}
		reach := r.reachOf(other, m, total, t)
		f.Least = max(f.Least, reach)
		f.Most = max(f.Most, m.Next)
		at := r.ReachIn(leased, total, t.Numbers)
		if other == room {
			own = reach
		}
		first, second = max(first, at), max(second, min(first, at))
	}
	f.Jump = max(max(first-second, 0)-r.LargestBoundary, 0)
	f.Alone = own >= f.Least
	return f
}
