package room

import "time"

// Growth opens the measure of how fast a mark rises.
type Growth = growth

// Note takes note of a segment.
func (g *Growth) Note(now time.Time, last int64) { g.note(now, last) }

// Rate returns by how much the mark rose per second.
func (g *Growth) Rate(now time.Time, last int64) float64 { return g.rate(now, last) }

// Rates opens what remembers rates.
type Rates = rates

// Start begins.
func (r *Rates) Start(now time.Time) { r.start(now) }

// Note takes note of how many IDs were issued in all.
func (r *Rates) Note(now time.Time, issued int64) { r.note(now, issued) }

// Get returns the rates.
func (r *Rates) Get() []float64 { return r.get() }
