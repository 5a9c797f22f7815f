package record

import (
	"math/bits"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/period"
)

// Terms are the settings of a tag that limit its leases.
type Terms struct {
	Numbers
	Skips map[allocator.Room]int64 // the least ID that a room may lease; not to be changed
}

// Numbers are the terms without the skips. Most tags have equal ones, so sources can share one
// copy.
type Numbers struct {
	Start, Limit           int64
	MaxJump, MaxSkew       int64
	LargestStep, BaseTotal int64 // see Tag
	Period                 period.Period
}

// At returns the terms of leases at a time. For a tag with a period they are the terms of the
// period at that time, with the period's first ID as start. span is zero for other tags.
//
// A later start only raises the base of leases, which is always safe. So a wrong clock can open
// a period too early, but no ID comes twice because of it.
func (t Terms) At(now time.Time) (terms Terms, span period.Span) {
	if t.Period == (period.Period{}) {
		return t, span
	}
	span = t.Period.At(now)
	t.Start = max(t.Start, span.First)
	return t, span
}

// Terms returns the settings that limit leases.
func (t Tag) Terms() Terms {
	return Terms{
		Numbers: Numbers{
			Start: t.Start, Limit: t.Limit, MaxJump: t.MaxJump, MaxSkew: t.MaxSkew,
			LargestStep: t.LargestStep, BaseTotal: t.BaseTotal, Period: t.Period,
		},
		Skips: t.Skips,
	}
}

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
	margin := max(total-m.Total, 0)
	blocks := (largestStep-1)/r.NarrowestRange + 2 // ceil(s/w) + 1; a step is at most 2^40
	high, span := bits.Mul64(uint64(blocks), uint64(r.LargestBoundary))
	if margin == 0 || largestStep == 0 {
		return m.Next
	}
	if high != 0 || span > uint64(allocator.MaxID)/uint64(margin) {
		return allocator.MaxID
	}
	d := int64(span) * margin
	if m.Next > allocator.MaxID-d {
		return allocator.MaxID
	}
	return m.Next + d
}

// reachOf returns the floor that a room's mark of a tag makes, by Reach. Leases that a restore
// lost began at or above the tag's start and the room's skip, even if the mark is below. So a
// margin lies above these, too.
func (r *Layout) reachOf(room allocator.Room, m Mark, total int64, t Terms) int64 {
	if m.Total < total {
		m.Next = max(m.Next, t.Start, t.Skips[room])
	}
	return r.Reach(m, total, t.LargestStep)
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
		at := r.Reach(leased, total, t.LargestStep)
		if other == room {
			own = reach
		}
		first, second = max(first, at), max(second, min(first, at))
	}
	f.Jump = max(max(first-second, 0)-r.LargestBoundary, 0)
	f.Alone = own >= f.Least
	return f
}
