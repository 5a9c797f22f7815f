package allocator_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
)

// drawRange draws any two bounds, also in the wrong order. They lie close enough to
// a random place to list the residues in between.
func drawRange(t *rapid.T, name string, place int64) allocator.Range {
	near := rapid.Int64Range(0, 40)
	return allocator.Range{
		Lower: place + near.Draw(t, name+" lower"),
		Upper: place + near.Draw(t, name+" upper"),
	}
}

// residues lists a range, one residue at a time.
func residues(r allocator.Range) map[int64]bool {
	all := make(map[int64]bool)
	for i := r.Lower; i < r.Upper; i++ {
		all[i] = true
	}
	return all
}

func TestRangeAgainstListedResidues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		place := rapid.SampledFrom([]int64{0, 17, 1 << 32, allocator.MaxID - 40}).Draw(t, "place")
		a, b := drawRange(t, "a", place), drawRange(t, "b", place)
		inA, inB := residues(a), residues(b)
		if a.Lower <= a.Upper && a.Width() != int64(len(inA)) {
			t.Errorf("%v: width %d, want %d", a, a.Width(), len(inA))
		}
		both, ok := a.Intersect(b)
		want := 0
		for d := range int64(41) {
			i := place + d
			if a.Contains(i) != inA[i] {
				t.Errorf("%v contains %d: %t, want %t", a, i, a.Contains(i), inA[i])
			}
			if inA[i] && inB[i] {
				want++
				if !both.Contains(i) {
					t.Errorf("%v and %v share %d, but it is not in %v", a, b, i, both)
				}
			}
		}
		if ok != (want > 0) || ok && both.Width() != int64(want) {
			t.Errorf("%v and %v have %v (%t) in common, want %d residues", a, b, both, ok, want)
		}
		if back, okBack := b.Intersect(a); back != both || okBack != ok {
			t.Errorf("intersect of %v and %v depends on the order: %v, %v", a, b, both, back)
		}
	})
}
