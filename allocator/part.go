package allocator

// Part is what a layout gives to one room: a range under a boundary, an empty
// range where it gives none. The zero value is the part of no layout.
type Part struct {
	Version  int64 // of the layout
	Boundary int64
	Range    Range
}

// Part returns what l gives to room.
func (l Layout) Part(room Room) Part {
	return Part{Version: l.Version, Boundary: l.Boundary, Range: l.Ranges[room]}
}

// Part returns what s was leased under: all of what its room had then.
func (s Segment) Part() Part { return Part{Version: s.Version, Boundary: s.Boundary, Range: s.Range} }

// Keeps reports whether a segment that the room leased under another layout may
// stay with it under p: every residue that the segment can have is still the
// room's. That makes its IDs right, and they are unique anyway: a lease under
// any later layout begins above the marks of all rooms, and so above the segment.
func (p Part) Keeps(s Segment) bool {
	return p.Boundary == s.Boundary && p.Range.Lower <= s.Range.Lower && s.Range.Upper <= p.Range.Upper
}

// Outdates reports whether a room that follows p has to replace s. A segment of
// a newer layout stays: p is what is old then.
func (p Part) Outdates(s Segment) bool {
	return s.Version < p.Version && !p.Keeps(s)
}
