package allocator_test

import (
	"math/big"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
)

// TestLinkIDsAreTheSegments steps through whole small links, and looks at the
// edges of large ones.
func TestLinkIDsAreTheSegments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSegment(t)
		piece := rapid.OneOf(rapid.Int64Range(1, 300), rapid.Just(s.Count),
			rapid.Int64Range(1, allocator.MaxID)).Draw(t, "piece")
		for begin := int64(0); begin < s.Count; {
			_, whole := s.Split(begin)
			link, rest := allocator.NewLink(whole, piece)
			n := link.Segment().Count
			if n < 1 || n > piece || n+rest.Count != whole.Count {
				t.Fatalf("%v in pieces of %d: link of %d, rest %v", whole, piece, n, rest)
			}
			if rest.Count > 0 && rest.First != s.At(begin+n) {
				t.Fatalf("%v: rest begins at %d, want %d", s, rest.First, s.At(begin+n))
			}
			head, _ := whole.Split(n)
			for _, k := range ordinals(t, head) {
				if got, want := link.At(k), bigAt(s, begin+k).Int64(); got != want {
					t.Fatalf("%v: link from %d has %d at %d, want %d", s, begin, got, k, want)
				}
			}
			for k := range min(n, 300) {
				if got, ok := link.Try(); !ok || got != s.At(begin+k) {
					t.Fatalf("%v: %d-th ID %d (%t), want %d", s, begin+k, got, ok, s.At(begin+k))
				}
				if link.Taken() != k+1 || link.Left() != n-k-1 {
					t.Fatalf("after %d IDs of %d: taken %d, left %d", k+1, n, link.Taken(), link.Left())
				}
			}
			if id, ok := link.Try(); n <= 300 && ok {
				t.Fatalf("%v: a link of %d gives one more: %d", s, n, id)
			}
			if begin += n; begin > 300 {
				break
			}
		}
	})
}

// TestLinkReciprocalIsExact tries every ordinal around each edge at which a wrong
// reciprocal would fail, at the largest ordinals that a link has.
func TestLinkReciprocalIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.OneOf(rapid.Int64Range(1, 10), rapid.Int64Range(1<<31-5, 1<<31+5), rapid.Int64Range(1, 1<<31+5),
			rapid.Int64Range(1<<31, 1<<34)).Draw(t, "width")
		offset := rapid.OneOf(rapid.Just(int64(0)), rapid.Just(width-1), rapid.Int64Range(0, width-1)).Draw(t, "offset")
		s := allocator.Segment{Version: 1, Boundary: width + 1, Range: allocator.Range{Lower: 1, Upper: width + 1},
			First: 1 + offset, Count: 1 << 40}
		link, _ := allocator.NewLink(s, s.Count)
		n := link.Segment().Count
		if width <= 1<<31 && n+offset < 1<<32 || n < 1 {
			t.Fatalf("width %d, offset %d: a link of only %d", width, offset, n)
		}
		for range 50 {
			k := rapid.OneOf(rapid.Int64Range(max(0, n-10), n-1), rapid.Int64Range(0, n-1)).Draw(t, "k")
			edge := (k+offset)/width*width - offset
			for _, k := range []int64{k, edge - 1, edge, edge + 1, n - 1} {
				if k < 0 || k >= n {
					continue
				}
				if got, want := link.At(k), bigAt(s, k); want.Cmp(big.NewInt(got)) != 0 {
					t.Fatalf("width %d, offset %d: ID %d at %d, want %v", width, offset, got, k, want)
				}
			}
		}
	})
}

// TestLinkTakeN takes random numbers of IDs, and single IDs in between, and expects
// the runs of the segment.
func TestLinkTakeN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSegment(t)
		s.Count = min(s.Count, 400)
		link, _ := allocator.NewLink(s, s.Count)
		n := link.Segment().Count
		var got []allocator.Run
		begin := int64(0)
		for begin < n {
			ask := rapid.OneOf(rapid.Int64Range(1, 50), rapid.Int64Range(1, allocator.LargestStep)).Draw(t, "ask")
			runs, took := link.TakeN(ask, nil)
			if took != min(ask, n-begin) {
				t.Fatalf("took %d of %d, asked for %d with %d left", took, n, ask, n-begin)
			}
			_, part := s.Split(begin)
			part, _ = part.Split(took)
			if want := slices.Collect(part.Runs()); !slices.Equal(runs, want) {
				t.Fatalf("%v: runs %v, want %v", part, runs, want)
			}
			got, begin = append(got, runs...), begin+took
		}
		if _, took := link.TakeN(1, nil); took != 0 || link.Left() != 0 || link.Taken() != n {
			t.Fatalf("a spent link gives %d; taken %d of %d", took, link.Taken(), n)
		}
		// Into one slice, neighbours are joined.
		link, _ = allocator.NewLink(s, s.Count)
		var joined []allocator.Run
		for took := int64(1); took > 0; {
			joined, took = link.TakeN(rapid.Int64Range(1, 50).Draw(t, "step"), joined)
		}
		head, _ := s.Split(n)
		if want := slices.Collect(head.Runs()); !slices.Equal(joined, want) {
			t.Fatalf("%v: joined %v, want %v, parts were %v", head, joined, want, got)
		}
	})
}

func TestLinkClose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSegment(t)
		link, _ := allocator.NewLink(s, rapid.Int64Range(1, allocator.MaxID).Draw(t, "piece"))
		n := link.Segment().Count
		late := rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64Range(0, n), rapid.Int64Range(0, 1<<61)).Draw(t, "taken")
		link.Skip(late)
		want := min(late, n)
		if link.Taken() != want || link.Left() != n-want {
			t.Fatalf("%d of %d taken: taken %d, left %d", late, n, link.Taken(), link.Left())
		}
		if got := link.Close(); got != want {
			t.Fatalf("close says %d, want %d", got, want)
		}
		for range 3 { // a billion callers later, too
			if id, ok := link.Try(); ok {
				t.Fatalf("a closed link gives %d", id)
			}
			if _, got := link.TakeN(1<<40, nil); got != 0 {
				t.Fatalf("a closed link gives %d IDs", got)
			}
			if link.Left() != 0 {
				t.Fatalf("a closed link has %d left", link.Left())
			}
			link.Skip(1 << 60)
		}
	})
}

// TestLinkCloseRace: close returns the number of IDs that callers took.
func TestLinkCloseRace(t *testing.T) {
	s, err := strided().Segment(room, 1, 100_000, allocator.MaxID)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		link, _ := allocator.NewLink(s, s.Count)
		var takers sync.WaitGroup
		took := make([]int64, 4)
		for i := range took {
			takers.Go(func() {
				for {
					n := int64(1)
					if i%2 == 0 {
						if _, ok := link.Try(); !ok {
							return
						}
					} else if _, n = link.TakeN(7, nil); n == 0 {
						return
					}
					took[i] += n
				}
			})
		}
		for link.Taken() < 1000 {
		}
		closed := link.Close()
		takers.Wait()
		if sum := took[0] + took[1] + took[2] + took[3]; sum != closed {
			t.Fatalf("takers got %d, close says %d", sum, closed)
		}
	}
}

func TestSizesForCacheLines(t *testing.T) {
	if allocator.LinkSize != 256 || allocator.CounterOffset != 128 {
		t.Errorf("link: %d bytes, counter at %d, want 256 and 128", allocator.LinkSize, allocator.CounterOffset)
	}
	if size := allocator.ChainSize; size <= 416 || size > 448 {
		t.Errorf("chain: %d bytes, want the size class 448, a multiple of 64", size)
	}
	if allocator.LockOffset < 64 {
		t.Errorf("chain: the lock is at %d, in the cache line of the head", allocator.LockOffset)
	}
}
