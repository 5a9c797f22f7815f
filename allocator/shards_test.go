package allocator_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
)

// The shards that a room reaches, and how evenly, against those of each of its IDs.
func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		boundary, n := rapid.Int64Range(1, 60).Draw(t, "boundary"), rapid.Int64Range(1, 60).Draw(t, "shards")
		lower := rapid.Int64Range(0, boundary-1).Draw(t, "lower")
		r := allocator.Range{Lower: lower, Upper: rapid.Int64Range(lower+1, boundary).Draw(t, "upper")}
		got := map[int64]int64{}
		for id := range boundary * n { // then it is all over again
			if r.Contains(id % boundary) {
				got[id%n]++
			}
		}
		most := int64(0)
		for _, ids := range got {
			most = max(most, ids)
		}
		fullest := float64(most) / float64(r.Width()) // of r.Width() * n IDs on n shards
		l := allocator.Layout{Boundary: boundary, Ranges: map[allocator.Room]allocator.Range{"a": r}}
		if s := l.Spread(n)[0]; s.Room != "a" || s.Reached != int64(len(got)) || math.Abs(s.Fullest-fullest) > 1e-9 {
			t.Fatalf("%v mod %d on %d shards: %+v, want %d and %v", r, boundary, n, s, len(got), fullest)
		}
	})
	half := allocator.Layout{Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 500}}}
	if s := half.Spread(1000)[0]; s.Reached != 500 || s.Fullest != 2 {
		t.Errorf("half of 1000 on 1000 shards: %+v", s)
	}
	huge := allocator.Layout{Boundary: math.MaxInt64 - 1, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: 0, Upper: math.MaxInt64 - 1}}}
	if s := huge.Spread(math.MaxInt64 - 1)[0]; s.Reached != math.MaxInt64-1 || s.Fullest != 1 {
		t.Errorf("all of the largest boundary: %+v", s)
	}
}
