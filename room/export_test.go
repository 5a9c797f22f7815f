package room

import "time"

// Growth opens the measure of how fast a mark rises.
type Growth = growth

// Note takes note of a segment.
func (g *Growth) Note(now time.Time, last int64) { g.note(now, last) }

// Rate returns by how much the mark rose per second.
func (g *Growth) Rate(now time.Time, last int64) float64 { return g.rate(now, last) }
