package allocator

import (
	"fmt"
	"iter"
	"math/bits"
	"time"
)

// Segment is Count IDs of one room under one layout: First and the Count-1
// smallest IDs above it whose residue lies in Range. The zero value is empty.
// None of its IDs may be issued from Until on, if that is set.
//
// Invariant of a segment that is not empty: Range.Contains(First mod Boundary),
// and the last ID does not exceed MaxID.
type Segment struct {
	Version  int64 // of the layout
	Boundary int64
	Range    Range
	First    int64
	Count    int64
	Until    time.Time // with a monotonic reading, see Elapsed; the zero time is no end
}

// Run is Count IDs: First, First + Stride, and so on. A Stride of 0 means 1: only
// time-ordered IDs whose worker is last are further apart.
type Run struct{ First, Count, Stride int64 }

// IDs yields the IDs of the run.
func (r Run) IDs() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for k := range r.Count {
			if !yield(r.First + k*max(r.Stride, 1)) {
				return
			}
		}
	}
}

// Runs are IDs, in the order in which they are issued.
type Runs []Run

// IDs yields the IDs of all runs.
func (rs Runs) IDs() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for _, r := range rs {
			for id := range r.IDs() {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// Segment returns the first n IDs of room that are at least base and below
// limit, or as many as there are. n must be at least 1, base at least 0. Its
// errors are NoRange (the room has no range in l) and Exhausted (no ID is
// left between base and limit).
func (l Layout) Segment(room Room, base, n, limit int64) (Segment, error) {
	r, ok := l.Ranges[room]
	if !ok {
		return Segment{}, Errorf(NoRange, "room %s has no range in layout version %d", room, l.Version)
	}
	first, ok := l.align(r, base)
	if !ok || first >= limit {
		return Segment{}, Errorf(Exhausted, "no ID of room %s %v is left from %d to the limit %d", room, r, base, limit)
	}
	left := l.ordinal(r, limit) - l.ordinal(r, first)
	return Segment{Version: l.Version, Boundary: l.Boundary, Range: r, First: first, Count: min(n, left)}, nil
}

// align returns the least ID >= base whose residue lies in r; false if there
// is none up to MaxID.
func (l Layout) align(r Range, base int64) (int64, bool) {
	switch residue := base % l.Boundary; {
	case residue < r.Lower:
		return addChecked(base-residue, r.Lower)
	case residue < r.Upper:
		return base, true
	default:
		start, ok := addChecked(base-residue, l.Boundary)
		if !ok {
			return 0, false
		}
		return addChecked(start, r.Lower)
	}
}

// ordinal returns how many IDs below id have a residue in r. It is at most id,
// so it cannot overflow.
func (l Layout) ordinal(r Range, id int64) int64 {
	inBlock := min(max(id%l.Boundary-r.Lower, 0), r.Width())
	return id/l.Boundary*r.Width() + inBlock
}

// At returns the k-th ID, 0 <= k < Count. It panics outside, as a slice would.
func (s Segment) At(k int64) int64 {
	if k < 0 || k >= s.Count {
		panic(fmt.Sprintf("segment %v has no ID %d", s, k))
	}
	width := s.Range.Width()
	q := s.offset() + k // at most the dense index of an ID, so it cannot overflow
	return s.blockStart() + q/width*s.Boundary + q%width
}

// offset returns First's distance from its room's first ID in its block.
func (s Segment) offset() int64 { return s.First%s.Boundary - s.Range.Lower }

// blockStart returns the room's first ID in First's block.
func (s Segment) blockStart() int64 { return s.First - s.offset() }

// Last returns the last ID. The segment must not be empty.
func (s Segment) Last() int64 { return s.At(s.Count - 1) }

// Split returns the first n IDs of s and the rest, either of which may be
// empty. 0 <= n.
func (s Segment) Split(n int64) (head, tail Segment) {
	if n >= s.Count {
		return s, Segment{}
	}
	head, tail = s, s
	head.Count = n
	tail.First, tail.Count = s.At(n), s.Count-n
	if n == 0 {
		head = Segment{}
	}
	return head, tail
}

// below returns the IDs of s that lie below limit, which may be none.
func (s Segment) below(limit int64) Segment {
	if s.Count == 0 || s.First >= limit {
		return Segment{}
	}
	l := Layout{Boundary: s.Boundary}
	head, _ := s.Split(l.ordinal(s.Range, limit) - l.ordinal(s.Range, s.First))
	return head
}

// join returns s and next as one segment if next continues s as the rest of a Split
// does. Neither may be empty.
func (s Segment) join(next Segment) (Segment, bool) {
	whole := s
	whole.Count += next.Count
	same := s.Version == next.Version && s.Boundary == next.Boundary && s.Range == next.Range && s.Until == next.Until
	return whole, same && next.ordinal()-s.ordinal() == s.Count
}

// ordinal returns how many IDs below First are in the range.
func (s Segment) ordinal() int64 { return s.First/s.Boundary*s.Range.Width() + s.offset() }

// Runs yields the segment as runs of consecutive IDs, in growing order: one
// for each block that it touches, or a single one when the range is the whole
// block.
func (s Segment) Runs() iter.Seq[Run] {
	return func(yield func(Run) bool) {
		if s.Count == 0 {
			return
		}
		width, gap := s.Range.Width(), s.Boundary-s.Range.Width()
		n := width - s.offset()
		if gap == 0 {
			n = s.Count
		}
		for first, left := s.First, s.Count; ; {
			n = min(n, left)
			if !yield(Run{First: first, Count: n}) || n == left {
				return
			}
			left -= n
			first += n + gap
			n = width
		}
	}
}

// IDs yields every ID in growing order.
func (s Segment) IDs() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for run := range s.Runs() {
			for id := range run.IDs() {
				if !yield(id) {
					return
				}
			}
		}
	}
}

func (s Segment) String() string {
	return fmt.Sprintf("%d IDs from %d in %v mod %d (layout %d)", s.Count, s.First, s.Range, s.Boundary, s.Version)
}

// Validate checks a segment that came over the network. Its error is Invalid.
func (s Segment) Validate() error {
	l := Layout{Version: s.Version, Boundary: s.Boundary, Ranges: map[Room]Range{"segment": s.Range}}
	if err := l.Validate(); err != nil {
		return Errorf(Invalid, "segment: %w", err)
	}
	switch {
	case s.Version < 1:
		return Errorf(Invalid, "segment: layout version %d; allowed: 1 or more", s.Version)
	case s.First < 0 || !s.Range.Contains(s.First%s.Boundary):
		return Errorf(Invalid, "segment: first ID %d is not in %v mod %d", s.First, s.Range, s.Boundary)
	case s.Count < 1:
		return Errorf(Invalid, "segment: count %d; allowed: 1 or more", s.Count)
	}
	if left := l.ordinal(s.Range, MaxID) - l.ordinal(s.Range, s.First); s.Count > left {
		return Errorf(Invalid, "segment: count %d; only %d IDs are left from %d on", s.Count, left, s.First)
	}
	return nil
}

// addChecked returns a+b for a, b >= 0, and false when it exceeds MaxID.
func addChecked(a, b int64) (int64, bool) {
	sum, _ := bits.Add64(uint64(a), uint64(b), 0)
	return int64(sum), sum <= MaxID
}

// CountIDs returns how many IDs in [from, to) have a residue in r.
func (l Layout) CountIDs(r Range, from, to int64) int64 {
	if to <= from {
		return 0
	}
	return l.ordinal(r, to) - l.ordinal(r, from)
}

// Used returns the share of the IDs in [start, limit) that lies below next, 0 to 1.
func Used(start, limit, next int64) float64 {
	if next <= start {
		return 0
	}
	return min(float64(next-start)/float64(limit-start), 1)
}
