package allocator

import "fmt"

// Range is a room's half-open interval of residues [Lower, Upper). The zero
// value is empty and not valid in a layout.
type Range struct {
	Lower int64 `json:"lower,string"` // the least residue, inclusive
	Upper int64 `json:"upper,string"` // the end, exclusive
}

// Width returns how many residues, and so how many IDs per block, the range
// has.
func (r Range) Width() int64 { return r.Upper - r.Lower }

// Contains reports whether Lower <= residue < Upper.
func (r Range) Contains(residue int64) bool { return r.Lower <= residue && residue < r.Upper }

// Intersect returns the residues that r and o have in common, and whether there are
// any.
func (r Range) Intersect(o Range) (Range, bool) {
	both := Range{Lower: max(r.Lower, o.Lower), Upper: min(r.Upper, o.Upper)}
	return both, both.Lower < both.Upper
}

func (r Range) String() string { return fmt.Sprintf("[%d, %d)", r.Lower, r.Upper) }
