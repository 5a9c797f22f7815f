package allocator_test

import (
	"errors"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
)

// bigAt computes Segment.At with numbers of any size.
func bigAt(s allocator.Segment, k int64) *big.Int {
	boundary, width := big.NewInt(s.Boundary), big.NewInt(s.Range.Upper)
	width.Sub(width, big.NewInt(s.Range.Lower))
	block, residue := new(big.Int).QuoRem(big.NewInt(s.First), boundary, new(big.Int))
	dense := new(big.Int).Mul(block, width)
	dense.Add(dense, residue).Sub(dense, big.NewInt(s.Range.Lower)).Add(dense, big.NewInt(k))
	block, residue = dense.QuoRem(dense, width, new(big.Int))
	id := block.Mul(block, boundary)
	return id.Add(id, residue).Add(id, big.NewInt(s.Range.Lower))
}

// bigLeft returns how many IDs s.Range has from s.First on below limit.
func bigLeft(boundary int64, r allocator.Range, first, limit int64) *big.Int {
	below := func(id int64) *big.Int {
		block, residue := new(big.Int).QuoRem(big.NewInt(id), big.NewInt(boundary), new(big.Int))
		in := min(max(residue.Int64(), r.Lower), r.Upper) - r.Lower
		return block.Mul(block, big.NewInt(r.Width())).Add(block, big.NewInt(in))
	}
	return new(big.Int).Sub(below(limit), below(first))
}

// drawWidth draws all kinds of widths: the reciprocal has its edges at 1, 2,
// powers of two, 2^31 and 2^32.
func drawWidth(t *rapid.T) int64 {
	near := func(n int64) *rapid.Generator[int64] { return rapid.Int64Range(n-3, n+3) }
	return rapid.OneOf(rapid.SampledFrom([]int64{1, 2, 3, 1 << 20, 1 << 31, 1 << 62}), rapid.Int64Range(1, 100),
		near(1<<31), near(1<<32), near(1<<62), rapid.Int64Range(1, allocator.MaxID)).Draw(t, "width")
}

// drawSegment draws a valid segment: any width, gap or none, near 0, near the
// end of the space or anywhere.
func drawSegment(t *rapid.T) allocator.Segment {
	s := allocator.Segment{Version: 1}
	width := drawWidth(t)
	gap := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, min(100, allocator.MaxID-width)),
		rapid.Int64Range(0, allocator.MaxID-width)).Draw(t, "gap")
	s.Boundary = width + gap
	s.Range.Lower = rapid.OneOf(rapid.Just(int64(0)), rapid.Just(gap), rapid.Int64Range(0, gap)).Draw(t, "lower")
	s.Range.Upper = s.Range.Lower + width
	// The last dense index whose ID is below MaxID, and one up to it.
	end := bigLeft(s.Boundary, s.Range, 0, allocator.MaxID).Int64()
	if end == 0 {
		t.Skip("a range without an ID")
	}
	index := rapid.OneOf(rapid.Int64Range(0, min(end-1, 300)), rapid.Int64Range(max(end-300, 0), end-1),
		rapid.Int64Range(0, end-1)).Draw(t, "index")
	zero := allocator.Segment{Boundary: s.Boundary, Range: s.Range, First: s.Range.Lower, Count: end}
	s.First = bigAt(zero, index).Int64()
	left := end - index
	s.Count = rapid.OneOf(rapid.Just(left), rapid.Int64Range(1, min(left, 1000)),
		rapid.Int64Range(1, left)).Draw(t, "count")
	return s
}

// ordinals returns the ordinals worth testing: both ends, and those around multiples of the width.
func ordinals(t *rapid.T, s allocator.Segment) []int64 {
	ks := []int64{0, s.Count / 2, s.Count - 1}
	width := s.Range.Width()
	for range 20 {
		k := rapid.Int64Range(0, s.Count-1).Draw(t, "k")
		edge := k/width*width - (s.First%s.Boundary - s.Range.Lower)
		ks = append(ks, k, edge-1, edge, edge+1)
	}
	return slices.DeleteFunc(ks, func(k int64) bool { return k < 0 || k >= s.Count })
}

func TestSegmentArithmeticAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSegment(t)
		if err := s.Validate(); err != nil {
			t.Fatalf("%v: %v", s, err)
		}
		for _, k := range ordinals(t, s) {
			if want := bigAt(s, k); !want.IsInt64() || s.At(k) != want.Int64() {
				t.Fatalf("%v at %d: %d, want %v", s, k, s.At(k), want)
			}
		}
		if s.Last() != bigAt(s, s.Count-1).Int64() || s.Last() == allocator.MaxID {
			t.Errorf("%v: last %d", s, s.Last())
		}
		n := rapid.OneOf(rapid.Int64Range(0, min(s.Count, 3)), rapid.Int64Range(0, s.Count), rapid.Just(s.Count),
			rapid.Just(int64(allocator.MaxID))).Draw(t, "n")
		head, tail := s.Split(n)
		if head.Count+tail.Count != s.Count || head.Count != min(n, s.Count) {
			t.Fatalf("%v split at %d: %v and %v", s, n, head, tail)
		}
		if head.Count > 0 && (head.First != s.First || head.Validate() != nil) ||
			tail.Count > 0 && (tail.First != s.At(n) || tail.Last() != s.Last() || tail.Validate() != nil) {
			t.Errorf("%v split at %d: %v and %v", s, n, head, tail)
		}
		if tail.Count == 0 && tail != (allocator.Segment{}) || head.Count == 0 && head != (allocator.Segment{}) {
			t.Errorf("%v split at %d: an empty half is not zero: %v and %v", s, n, head, tail)
		}
	})
}

func TestSegmentRunsAndIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSegment(t)
		s.Count = min(s.Count, 500)
		var want []int64
		for k := range s.Count {
			want = append(want, bigAt(s, k).Int64())
		}
		if got := slices.Collect(s.IDs()); !slices.Equal(got, want) {
			t.Fatalf("%v: IDs %v, want %v", s, got, want)
		}
		var runs []allocator.Run // the fewest possible
		for _, id := range want {
			if n := len(runs) - 1; n >= 0 && runs[n].First+runs[n].Count == id {
				runs[n].Count++
			} else {
				runs = append(runs, allocator.Run{First: id, Count: 1})
			}
		}
		if got := slices.Collect(s.Runs()); !slices.Equal(got, runs) {
			t.Fatalf("%v: runs %v, want %v", s, got, runs)
		}
		for range s.IDs() { // both iterators may be left early
			break
		}
		for range s.Runs() {
			break
		}
	})
	if got := slices.Collect(allocator.Segment{}.IDs()); got != nil {
		t.Errorf("the zero segment has IDs %v", got)
	}
}

func TestLayoutSegmentAgainstEnumeration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		boundary := rapid.Int64Range(1, 30).Draw(t, "boundary")
		r := allocator.Range{Lower: rapid.Int64Range(0, boundary-1).Draw(t, "lower")}
		r.Upper = rapid.Int64Range(r.Lower+1, boundary).Draw(t, "upper")
		l := allocator.Layout{Version: 7, Boundary: boundary, Ranges: map[allocator.Room]allocator.Range{room: r}}
		base := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(allocator.MaxID-100,
			allocator.MaxID)).Draw(t, "base")
		limit := rapid.OneOf(rapid.Int64Range(base, base+min(100, allocator.MaxID-base)),
			rapid.Just(int64(allocator.MaxID)), rapid.Int64Range(0, 50)).Draw(t, "limit")
		n := rapid.OneOf(rapid.Int64Range(1, 60), rapid.Int64Range(allocator.MaxID-3, allocator.MaxID)).Draw(t, "n")

		var want []int64
		for id := base; id < limit && int64(len(want)) < min(n, 61); id++ {
			if residues(r)[id%boundary] {
				want = append(want, id)
			}
		}
		seg, err := l.Segment(room, base, n, limit)
		if len(want) == 0 {
			if !errors.Is(err, allocator.Exhausted) {
				t.Fatalf("%v from %d below %d: %v, %v, want exhausted", r, base, limit, seg, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := seg.Validate(); err != nil {
			t.Errorf("%v: %v", seg, err)
		}
		if left := bigLeft(boundary, r, want[0], limit); seg.Count != min(n, left.Int64()) || seg.Last() >= limit {
			t.Errorf("%v: count, want %d or less than n = %d", seg, left, n)
		}
		head, _ := seg.Split(int64(len(want)))
		if got := slices.Collect(head.IDs()); !slices.Equal(got, want) {
			t.Errorf("%v from %d below %d: %v, want %v", r, base, limit, got, want)
		}
	})
	if _, err := strided().Segment("nowhere", 0, 1, allocator.MaxID); !errors.Is(err, allocator.NoRange) {
		t.Errorf("unknown room: %v, want no_range", err)
	}
}

func TestSegmentValidateRefuses(t *testing.T) {
	good := allocator.Segment{Version: 1, Boundary: 100, Range: allocator.Range{Lower: 10, Upper: 20},
		First: 110, Count: 5}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*allocator.Segment){
		"zero":           func(s *allocator.Segment) { *s = allocator.Segment{} },
		"version 0":      func(s *allocator.Segment) { s.Version = 0 },
		"boundary 0":     func(s *allocator.Segment) { s.Boundary = 0 },
		"boundary < 0":   func(s *allocator.Segment) { s.Boundary = -100 },
		"empty range":    func(s *allocator.Segment) { s.Range.Upper = 10 },
		"swapped range":  func(s *allocator.Segment) { s.Range = allocator.Range{Lower: 20, Upper: 10} },
		"negative lower": func(s *allocator.Segment) { s.Range.Lower = -1 },
		"past boundary":  func(s *allocator.Segment) { s.Range.Upper = 101 },
		"first below":    func(s *allocator.Segment) { s.First = 109 },
		"first above":    func(s *allocator.Segment) { s.First = 120 },
		"first < 0":      func(s *allocator.Segment) { s.First = -90 },
		"count 0":        func(s *allocator.Segment) { s.Count = 0 },
		"count < 0":      func(s *allocator.Segment) { s.Count = -1 },
		"past the end":   func(s *allocator.Segment) { s.Count = allocator.MaxID },
		"one past the end": func(s *allocator.Segment) {
			s.Boundary, s.Range, s.First, s.Count = 1, allocator.Range{Upper: 1}, allocator.MaxID-3, 4
		},
		"MaxID itself": func(s *allocator.Segment) {
			s.Boundary, s.Range, s.First, s.Count = 1, allocator.Range{Upper: 1}, allocator.MaxID, 1
		},
	} {
		s := good
		change(&s)
		if err := s.Validate(); !errors.Is(err, allocator.Invalid) {
			t.Errorf("%s: %v: %v, want invalid", name, s, err)
		}
	}
}

func FuzzSegmentAgainstBig(f *testing.F) {
	f.Add(int64(100), int64(10), int64(20), int64(110), int64(5), int64(3))
	f.Add(int64(allocator.MaxID), int64(0), int64(allocator.MaxID), int64(0), int64(allocator.MaxID), int64(1<<40))
	f.Add(int64(1), int64(0), int64(1), int64(allocator.MaxID-1), int64(1), int64(0))
	f.Add(int64(1<<33), int64(1), int64(1<<31+1), int64(1), int64(1<<31+7), int64(1<<31))
	f.Fuzz(func(t *testing.T, boundary, lower, upper, first, count, k int64) {
		s := allocator.Segment{Version: 1, Boundary: boundary, Range: allocator.Range{Lower: lower, Upper: upper},
			First: first, Count: count}
		if s.Validate() != nil {
			return
		}
		if last := bigAt(s, count-1); last.Cmp(big.NewInt(allocator.MaxID)) >= 0 {
			t.Fatalf("%v is valid, but its last ID is %v", s, last)
		}
		if k = max(k, 0) % count; s.At(k) != bigAt(s, k).Int64() {
			t.Fatalf("%v at %d: %d, want %v", s, k, s.At(k), bigAt(s, k))
		}
		link, rest := allocator.NewLink(s, count)
		if got := link.Segment().Count; got+rest.Count != count || rest.Count > 0 && rest.First != s.At(got) {
			t.Fatalf("%v: link of %d, rest %v", s, got, rest)
		}
		if k %= link.Segment().Count; link.At(k) != s.At(k) {
			t.Fatalf("%v: link has %d at %d, want %d", s, link.At(k), k, s.At(k))
		}
	})
}

func TestUsed(t *testing.T) {
	for _, test := range []struct {
		start, limit, next int64
		want               float64
	}{
		{1, 101, 0, 0}, // nothing leased yet
		{1, 101, 1, 0}, // nor now
		{1, 101, 51, 0.5},
		{1, 101, 101, 1},
		{1, 101, 1000, 1}, // the limit was lowered
		{0, allocator.MaxID, allocator.MaxID, 1},
		{allocator.MaxID - 2, allocator.MaxID, allocator.MaxID - 1, 0.5},
	} {
		if got := allocator.Used(test.start, test.limit, test.next); got != test.want {
			t.Errorf("Used(%d, %d, %d): %v, want %v", test.start, test.limit, test.next, got, test.want)
		}
	}
}
