package timeid_test

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// slowImage is the image of a residue, computed with big numbers.
func slowImage(residue, boundary int64, workerBits int) int64 {
	product := new(big.Int).Lsh(big.NewInt(residue), uint(workerBits))
	quotient, rest := new(big.Int).QuoRem(product, big.NewInt(boundary), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return quotient.Int64()
}

// Disjoint ranges have disjoint slices, whatever the width, and the slices of ranges
// that cover the boundary cover all workers.
func TestSlicesAreDisjointAndCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		boundary := rapid.OneOf(rapid.Int64Range(1, 64), rapid.Int64Range(1, allocator.MaxID),
			rapid.Just(int64(math.MaxInt64))).Draw(t, "boundary")
		workerBits := rapid.IntRange(0, timeid.MaxBits-1).Draw(t, "bits")
		cuts := rapid.SliceOfN(rapid.Int64Range(0, boundary), 0, 8).Draw(t, "cuts")
		cuts = append(cuts, 0, boundary)
		slices.Sort(cuts)
		end := int64(0) // of the slices so far
		for i := range cuts[1:] {
			r := allocator.Range{Lower: cuts[i], Upper: cuts[i+1]}
			slice := timeid.Slice(r, boundary, workerBits)
			if want := (allocator.Range{Lower: slowImage(r.Lower, boundary, workerBits),
				Upper: slowImage(r.Upper, boundary, workerBits)}); slice != want {
				t.Fatalf("slice of %v of %d with %d bits is %v, want %v", r, boundary, workerBits, slice, want)
			}
			if slice.Lower != end || slice.Upper < slice.Lower {
				t.Fatalf("slice %v of %v does not begin at %d, where the one before ends", slice, r, end)
			}
			end = slice.Upper
		}
		if end != 1<<workerBits {
			t.Fatalf("the slices end at %d, want 2^%d", end, workerBits)
		}
	})
}

func TestSliceExamples(t *testing.T) {
	for _, test := range []struct {
		lower, upper, boundary int64
		bits                   int
		want                   allocator.Range
	}{
		{0, 50, 100, 10, allocator.Range{Lower: 0, Upper: 512}},
		{50, 100, 100, 10, allocator.Range{Lower: 512, Upper: 1024}},
		{1, 2, 3, 2, allocator.Range{Lower: 2, Upper: 3}},
		{0, 1024, 1024, 10, allocator.Range{Lower: 0, Upper: 1024}}, // the worker is the residue
		{7, 9, 1024, 10, allocator.Range{Lower: 7, Upper: 9}},
		{1, 2, 1_000_000, 3, allocator.Range{Lower: 1, Upper: 1}}, // too narrow for a worker
		{0, 1, 1_000_000, 3, allocator.Range{Lower: 0, Upper: 1}},
		{0, math.MaxInt64, math.MaxInt64, 62, allocator.Range{Lower: 0, Upper: 1 << 62}},
		{0, 10, 10, 0, allocator.Range{Lower: 0, Upper: 1}},
		{1, 10, 10, 0, allocator.Range{Lower: 1, Upper: 1}},
	} {
		if got := timeid.Slice(allocator.Range{Lower: test.lower, Upper: test.upper}, test.boundary,
			test.bits); got != test.want {
			t.Errorf("slice of [%d, %d) of %d with %d bits: got %v, want %v", test.lower, test.upper, test.boundary,
				test.bits, got, test.want)
		}
	}
}

func TestRoomsOfWorkers(t *testing.T) {
	l := allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 40},
		"b": {Lower: 50, Upper: 100}}}
	for worker, want := range map[int64]allocator.Room{0: "a", 409: "a", 410: "", 511: "", 512: "b", 1023: "b"} {
		if room, ok := timeid.RoomOf(l, worker, 10); room != want || ok != (want != "") {
			t.Errorf("worker %d: got room %q, %v; want %q", worker, room, ok, want)
		}
	}
	if slice, ok := timeid.SliceOf(l, "c", 10); ok {
		t.Errorf("room c has no range, and got the slice %v", slice)
	}
}
