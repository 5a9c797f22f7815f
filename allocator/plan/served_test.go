package plan_test

import (
	"fmt"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
)

// What rooms gain, and what they give up to nobody, also where the boundary changes.
func TestGainingAndFreed(t *testing.T) {
	of := func(boundary int64, ranges map[allocator.Room]allocator.Range) allocator.Layout {
		return allocator.Layout{Boundary: boundary, Ranges: ranges}
	}
	type rooms = map[allocator.Room]allocator.Range
	to := func(lower, upper int64) allocator.Range { return allocator.Range{Lower: lower, Upper: upper} }
	ab := of(100, rooms{"a": to(0, 50), "b": to(50, 100)})
	reserved := of(100, rooms{"a": to(0, 50), "b": to(50, 80)})
	reserved.Reserved = rooms{"asia": to(80, 90)}
	for name, test := range map[string]struct {
		target        allocator.Layout
		gaining, free string
	}{
		"nothing": {ab, "[]", "[]"},
		"a move": {of(100, rooms{"a": to(0, 25), "b": to(25, 100)}),
			"[b]", "[]"},
		"a swap": {of(100, rooms{"b": to(0, 50), "a": to(50, 100)}),
			"[b a]", "[]"},
		"a new room": {of(100, rooms{"a": to(0, 50), "b": to(50, 75),
			"c": to(75, 100)}), "[c]", "[]"},
		"a drain":        {of(100, rooms{"b": to(50, 100)}), "[]", "[{a 0.5}]"},
		"in part":        {of(100, rooms{"a": to(10, 40), "b": to(40, 90)}), "[b]", "[{a 0.1} {b 0.1}]"},
		"reserved":       {reserved, "[]", "[{b 0.1}]"},
		"the same parts": {of(1000, rooms{"a": to(0, 500), "b": to(500, 1000)}), "[]", "[]"},
		"coarser":        {of(3, rooms{"a": to(0, 1), "b": to(1, 3)}), "[]", "[]"},
		"another boundary": {of(1000, rooms{"a": to(0, 501),
			"b": to(600, 1000)}), "[a]", "[{b 0.099}]"},
	} {
		if got := fmt.Sprint(plan.Gaining(ab, test.target)); got != test.gaining {
			t.Errorf("%s: gaining %s, want %s", name, got, test.gaining)
		}
		if got := fmt.Sprint(plan.FreedBy(ab, test.target)); got != test.free {
			t.Errorf("%s: freed %s, want %s", name, got, test.free)
		}
	}
}
