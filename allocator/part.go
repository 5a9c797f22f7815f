package allocator

// Part is one room's part of a layout: its range and the boundary. The range is
// empty if the layout gives the room none. The zero value is the part of no layout.
type Part struct {
	Version  int64 // of the layout
	Boundary int64
	Range    Range
}

// Part returns the part of l that room has.
func (l Layout) Part(room Room) Part {
	return Part{Version: l.Version, Boundary: l.Boundary, Range: l.Ranges[room]}
}

// Part returns the part under which s was leased.
func (s Segment) Part() Part { return Part{Version: s.Version, Boundary: s.Boundary, Range: s.Range} }

// Keeps reports whether a segment that the room leased under another layout may
// stay with it under p: every residue that the segment can have is still the
// room's. That makes its IDs right, and they are unique anyway: a lease under
// any later layout begins above the marks of all rooms, and so above the segment.
func (p Part) Keeps(s Segment) bool {
	return p.Boundary == s.Boundary && p.Range.Lower <= s.Range.Lower && s.Range.Upper <= p.Range.Upper
}

// Outdates reports whether a room with part p must replace s. A segment of a newer
// layout stays: in that case p is old.
func (p Part) Outdates(s Segment) bool {
	return s.Version < p.Version && !p.Keeps(s)
}
