package history

import (
	"slices"

	"github.com/march-id/march/allocator"
)

// Finder finds the segments of an owner's IDs. It remembers the last one, because IDs mostly
// come in order. It is for one goroutine.
type Finder struct {
	lines []*Line
	most  []int64 // the highest last ID of the segments up to each
	last  int
}

// Finder returns a finder for the segments of an owner; of all instances of the room if
// Instance is empty, and of all rooms if Room is.
func (s *Segments) Finder(o Owner) *Finder {
	f := &Finder{lines: s.owners[o]}
	switch {
	case o.Room == "":
		f.lines = s.tags[o.Tag]
	case o.Instance == "":
		f.lines = s.rooms[o]
	}
	most := int64(-1)
	for _, l := range f.lines {
		most = max(most, l.Segment.Last())
		f.most = append(f.most, most)
	}
	return f
}

// Found is the result of Find for the first IDs of a run.
type Found int

const (
	// Nowhere: they are in no segment.
	Nowhere Found = iota
	// Foreign: they lie between the first and the last ID of a segment, but their residue is
	// not in its range.
	Foreign
	// Within: they are in a segment.
	Within
)

// Find classifies the first n IDs of a run, and returns their segment if they are in one, or
// lie between its ends.
func (f *Finder) Find(run allocator.Run) (found Found, n int64, line *Line) {
	// In a correct run it is the first segment tried or none: segments of a room are apart.
	for i := f.at(run.First); i >= 0 && f.most[i] >= run.First; i-- {
		seg := f.lines[i].Segment
		residue := run.First % seg.Boundary
		switch {
		case run.First > seg.Last():
		case !seg.Range.Contains(residue):
			found, line = Foreign, f.lines[i]
		case seg.Range.Width() == seg.Boundary:
			return Within, min(seg.Last()-run.First+1, run.Count), f.lines[i]
		default:
			return Within, min(seg.Range.Upper-residue, seg.Last()-run.First+1, run.Count), f.lines[i]
		}
	}
	return found, 1, line
}

// at returns the last segment that begins at or before id, -1 for none.
func (f *Finder) at(id int64) int {
	if i := f.last; i < len(f.lines) && f.lines[i].Segment.First <= id &&
		(i+1 == len(f.lines) || f.lines[i+1].Segment.First > id) {
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
