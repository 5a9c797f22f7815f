package leased

import (
	"slices"

	"github.com/march-id/march/allocator"
)

// Finder finds the segments that IDs of an owner are of. It remembers the last
// one: IDs come in order, mostly. It is for one goroutine.
type Finder struct {
	lines []*Line
	last  int
}

// Finder returns a finder for what an owner leased; of all instances of the room
// where Instance is empty.
func (s *Segments) Finder(o Owner) *Finder {
	if o.Instance == "" {
		return &Finder{lines: s.rooms[o]}
	}
	return &Finder{lines: s.owners[o]}
}

// Found is what Find says of the first IDs of a run.
type Found int

const (
	// Within: they are of a segment.
	Within Found = iota
	// Foreign: they lie between the first and the last ID of a segment, and their
	// residue is not in its range.
	Foreign
	// Nowhere: they are of no segment.
	Nowhere
)

// Find returns what the first n IDs of a run are, and the segment where they are
// of one, or lie within one.
func (f *Finder) Find(run allocator.Run) (found Found, n int64, line *Line) {
	i := f.at(run.First)
	if i < 0 {
		return Nowhere, 1, nil
	}
	line = f.lines[i]
	seg := line.Segment
	residue := run.First % seg.Boundary
	switch {
	case run.First > seg.Last():
		return Nowhere, 1, nil
	case !seg.Range.Contains(residue):
		return Foreign, 1, line
	case seg.Range.Width() == seg.Boundary:
		n = seg.Last() - run.First + 1
	default:
		n = min(seg.Range.Upper-residue, seg.Last()-run.First+1)
	}
	return Within, min(n, run.Count), line
}

// at returns the last segment that begins at or before id, -1 for none.
func (f *Finder) at(id int64) int {
	if i := f.last; i < len(f.lines) && f.lines[i].Segment.First <= id && (i+1 == len(f.lines) || f.lines[i+1].Segment.First > id) {
		return i
	}
	i, exact := slices.BinarySearchFunc(f.lines, id, func(l *Line, id int64) int {
		switch {
		case l.Segment.First < id:
			return -1
		case l.Segment.First > id:
			return 1
		}
		return 0
	})
	if !exact {
		i--
	}
	f.last = max(i, 0)
	return i
}
