package format

import "math/bits"

// permutation reorders the numbers 0 to largest.
type permutation interface {
	forward(n uint64) uint64
	backward(n uint64) uint64
	largest() uint64
	missing() string // the name of a key that is not there
}

// reverse puts the lowest bit of a number of so many bits first, the next one second, and
// so on: numbers that follow each other lie far apart, in a store that splits its keys
// into ranges. With 63 bits it is Spanner's bit_reversed_positive and
// BIT_REVERSE(n, TRUE), which keep the sign.
type reverse int

func (r reverse) forward(n uint64) uint64  { return bits.Reverse64(n) >> (64 - int(r)) }
func (r reverse) backward(n uint64) uint64 { return r.forward(n) }
func (r reverse) largest() uint64          { return 1<<r - 1 }
func (r reverse) missing() string          { return "" }
