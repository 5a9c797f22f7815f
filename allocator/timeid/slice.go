package timeid

import (
	"math/bits"

	"github.com/march-id/march/allocator"
)

// Slice returns the workers of a room with the range r, out of the 2^w workers of
// a width of w bits: the image of the range,
//
//	[ceil(Lower * 2^w / boundary), ceil(Upper * 2^w / boundary))
//
// So slices of disjoint ranges are disjoint, and slices of ranges that cover [0, boundary)
// cover all workers. A slice is empty (Width is 0) if the range is too narrow to have a worker
// of its own. r and boundary are of a valid layout, and workerBits is 0 to MaxBits-1.
func Slice(r allocator.Range, boundary int64, workerBits int) allocator.Range {
	return allocator.Range{Lower: image(r.Lower, boundary, workerBits), Upper: image(r.Upper, boundary, workerBits)}
}

// image returns ceil(residue * 2^w / boundary), for 0 <= residue <= boundary. The
// product needs up to 126 bits; the quotient is at most 2^w.
func image(residue, boundary int64, workerBits int) int64 {
	high, low := bits.Mul64(uint64(residue), 1<<workerBits)
	quotient, rest := bits.Div64(high, low, uint64(boundary))
	if rest > 0 {
		quotient++
	}
	return int64(quotient)
}

// SliceOf returns the slice of a room in a layout, and whether the room has a range there.
func SliceOf(l allocator.Layout, room allocator.Room, workerBits int) (allocator.Range, bool) {
	r, serves := l.Ranges[room]
	if !serves {
		return allocator.Range{}, false
	}
	return Slice(r, l.Boundary, workerBits), true
}

// RoomOf returns the room that has a worker in its slice of a layout, and whether there is one.
func RoomOf(l allocator.Layout, worker int64, workerBits int) (allocator.Room, bool) {
	for room, r := range l.Ranges {
		if Slice(r, l.Boundary, workerBits).Contains(worker) {
			return room, true
		}
	}
	return "", false
}
