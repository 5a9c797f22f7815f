package plan_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
)

// everyLayout returns all layouts of some or all of the rooms.
func everyLayout(boundary int64, rooms []allocator.Room) []allocator.Layout {
	all := []allocator.Layout{{Version: 1, Boundary: boundary, Ranges: map[allocator.Room]allocator.Range{}}}
	for _, room := range rooms {
		for _, l := range all {
			for lower := range boundary {
				for upper := lower + 1; upper <= boundary; upper++ {
					more := allocator.Layout{Version: 1, Boundary: boundary, Ranges: maps.Clone(l.Ranges)}
					more.Ranges[room] = allocator.Range{Lower: lower, Upper: upper}
					if more.Validate() == nil {
						all = append(all, more)
					}
				}
			}
		}
	}
	return all[1:] // a layout has at least one room
}

// safe reports whether a move is allowed: no room gains a residue that another room holds.
func safe(before, after allocator.Layout) bool {
	for gainer, r := range after.Ranges {
		for holder, held := range before.Ranges {
			if gainer != holder && max(r.Lower, held.Lower) < min(r.Upper, held.Upper) {
				return false
			}
		}
	}
	return true
}

// least returns, for each layout, the fewest safe moves from layout i to it, or 0 if there are
// none. Every layout on the way has all rooms of keep.
func least(all []allocator.Layout, next [][]int, i int, keep []allocator.Room) []int {
	moves := make([]int, len(all))
	reached := []int{i}
	for len(reached) > 0 {
		at := reached[0]
		reached = reached[1:]
		for _, j := range next[at] {
			if j != i && moves[j] == 0 && hasAll(all[j], keep) {
				moves[j] = moves[at] + 1
				reached = append(reached, j)
			}
		}
	}
	return moves
}

func hasAll(l allocator.Layout, rooms []allocator.Room) bool {
	for _, room := range rooms {
		if _, ok := l.Ranges[room]; !ok {
			return false
		}
	}
	return true
}

// TestPlansAreShort compares the planner with a search over every sequence of layouts. The
// planner refuses a plan only if there is none, and its plans are at most one move longer than
// the shortest.
func TestPlansAreShort(t *testing.T) {
	for _, c := range []struct {
		boundary int64
		rooms    []allocator.Room
		worst    int // moves more than the fewest, as measured
	}{
		{3, []allocator.Room{"a", "b", "c"}, 1},
		{4, []allocator.Room{"a", "b", "c"}, 1},
		{6, []allocator.Room{"a", "b"}, 1},
	} {
		all := everyLayout(c.boundary, c.rooms)
		next := make([][]int, len(all))
		for i, before := range all {
			for j, after := range all {
				if safe(before, after) {
					next[i] = append(next[i], j)
				}
			}
		}
		var plans, refusals int
		over := make(map[int]int)
		for i, from := range all {
			byKeep := make(map[int][]int)
			for j, target := range all {
				if i == j {
					continue
				}
				var keep []allocator.Room
				set := 0
				for k, room := range c.rooms {
					_, had := from.Ranges[room]
					if _, will := target.Ranges[room]; had && will {
						keep = append(keep, room)
						set |= 1 << k
					}
				}
				if byKeep[set] == nil {
					byKeep[set] = least(all, next, i, keep)
				}
				fewest := byKeep[set][j]
				p, err := plan.New(from, target, false)
				if fewest == 0 {
					refusals++
					if !errors.Is(err, allocator.Refused) {
						t.Fatalf("%v to %v: %v, want refused", from, target, err)
					}
					continue
				}
				plans++
				if err != nil {
					t.Fatalf("%v to %v: %v, want %d moves", from, target, err, fewest)
				}
				extra := len(p.Moves) - fewest
				over[extra]++
				if extra < 0 || extra > c.worst {
					t.Fatalf("%v to %v: %d moves, the fewest are %d: %+v", from, target, len(p.Moves), fewest, p.Moves)
				}
			}
		}
		t.Logf("boundary %d, rooms %v: %d plans, %v by moves over the fewest; %d refused", c.boundary,
			c.rooms, plans, over, refusals)
	}
}
