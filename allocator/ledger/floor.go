package ledger

import (
	"math/bits"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// reach returns the floor that a mark makes: its next + d, where
//
//	d = (the epoch's margin total - the mark's total) * (ceil(s/w) + 1) * b
//
// with s the largest step that a lease of the tag ever had, w the narrowest range
// and b the largest boundary of all layouts so far: no lease of s IDs spans more
// than (ceil(s/w) + 1) * b. So d is what the recovers since the mark's last lease
// left free; it is 0 where s is 0, which says that it is not known. The result
// saturates at allocator.MaxID, under which nothing is left to lease.
func (s *state) reach(m record.Mark, largestStep int64) int64 {
	margin := max(s.total-m.Total, 0)
	blocks := (largestStep-1)/s.layout.NarrowestRange + 2 // ceil(s/w) + 1; a step is 2^40 at most
	high, span := bits.Mul64(uint64(blocks), uint64(s.layout.LargestBoundary))
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

// reachOf returns the floor that a room's mark of a tag makes, by reach. Leases that a
// restore lost began at or above the tag's start and the room's skip, wherever the mark
// stands. So a margin lies above these, too.
func (s *state) reachOf(room allocator.Room, m record.Mark, t terms) int64 {
	if m.Total < s.total {
		m.Next = max(m.Next, t.start, t.skips[room])
	}
	return s.reach(m, t.largestStep)
}

// floor is what the marks of all rooms say of where a room may lease.
type floor struct {
	stamp record.Stamp // of the layout and epoch under which the marks were read
	least int64        // the largest reach of all marks
	most  int64        // the largest next of all marks
	jump  int64        // how far the furthest room's leases lie above those of the second; see newFloor
	alone bool         // the room itself is the furthest
}

// newFloor returns the floor of a room under s. marks are those of all rooms that
// ever were, absent ones too (absentMark).
//
// The jump tells of a typo in one room, which must not drag all others to the end
// of the space. So it counts what was leased: not what a mark was raised by, not
// d, which comes to all rooms alike, and not the distance within one block, which
// only says where the ranges lie.
func (s *state) newFloor(room allocator.Room, t terms, marks map[allocator.Room]record.Mark) floor {
	f := floor{stamp: s.stamp()}
	own, first, second := int64(0), int64(0), max(t.start, t.skips[room]) // an operator wants this room to go so far
	for _, other := range s.layout.Ever {
		m, there := marks[other]
		absent := record.AbsentMark(t.start, t.baseTotal)
		leased := absent
		if len(m.Eras) > 0 {
			leased = record.Mark{Next: m.Last().End, Total: m.Total}
		}
		if !there {
			m = absent
		}
		reach := s.reachOf(other, m, t)
		f.least = max(f.least, reach)
		f.most = max(f.most, m.Next)
		at := s.reach(leased, t.largestStep)
		if other == room {
			own = reach
		}
		first, second = max(first, at), max(second, min(first, at))
	}
	f.jump = max(max(first-second, 0)-s.layout.LargestBoundary, 0)
	f.alone = own >= f.least
	return f
}
