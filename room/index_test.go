package room_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/room"
)

// The index gives the same pages as a sorted list, after any additions and removals.
func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var x room.Index
	want := make(map[allocator.Tag]bool)
	for step := range 20_000 {
		tag := allocator.Tag(fmt.Sprintf("t%d", r.IntN(3000)))
		if step < 5000 { // in order, too
			tag = allocator.Tag(fmt.Sprintf("s%05d", step))
		}
		if r.IntN(3) > 0 {
			x.Put(tag)
			want[tag] = true
		} else {
			x.Remove(tag)
			delete(want, tag)
		}
		if step%500 != 0 {
			continue
		}
		sorted := slices.Sorted(maps.Keys(want))
		from, _ := slices.BinarySearch(sorted, tag+"\x00")
		page := sorted[from:]
		page = page[:min(len(page), 100)]
		if got := x.After(tag, 100); !slices.Equal(got, page) {
			t.Fatalf("after %s: %v, want %v", tag, got, page)
		}
		if got := x.After("", len(want)+1); !slices.Equal(got, sorted) {
			t.Fatalf("all: %d, want %d", len(got), len(sorted))
		}
	}
}
