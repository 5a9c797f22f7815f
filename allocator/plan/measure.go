package plan

import (
	"math/bits"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

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
