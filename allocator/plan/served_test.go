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
	ab := of(100, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 100}})
	reserved := of(100, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 80}})
	reserved.Reserved = map[allocator.Room]allocator.Range{"asia": {Lower: 80, Upper: 90}}
	for name, test := range map[string]struct {
		target        allocator.Layout
		gaining, free string
	}{
		"nothing": {ab, "[]", "[]"},
		"a move": {of(100, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 25}, "b": {Lower: 25, Upper: 100}}),
			"[b]", "[]"},
		"a swap": {of(100, map[allocator.Room]allocator.Range{"b": {Lower: 0, Upper: 50}, "a": {Lower: 50, Upper: 100}}),
			"[b a]", "[]"},
		"a new room": {of(100, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 75},
			"c": {Lower: 75, Upper: 100}}), "[c]", "[]"},
		"a drain":        {of(100, map[allocator.Room]allocator.Range{"b": {Lower: 50, Upper: 100}}), "[]", "[{a 0.5}]"},
		"in part":        {of(100, map[allocator.Room]allocator.Range{"a": {Lower: 10, Upper: 40}, "b": {Lower: 40, Upper: 90}}), "[b]", "[{a 0.1} {b 0.1}]"},
		"reserved":       {reserved, "[]", "[{b 0.1}]"},
		"the same parts": {of(1000, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 500}, "b": {Lower: 500, Upper: 1000}}), "[]", "[]"},
		"coarser":        {of(3, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 1}, "b": {Lower: 1, Upper: 3}}), "[]", "[]"},
		"another boundary": {of(1000, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 501},
			"b": {Lower: 600, Upper: 1000}}), "[a]", "[{b 0.099}]"},
	} {
		if got := fmt.Sprint(plan.Gaining(ab, test.target)); got != test.gaining {
			t.Errorf("%s: gaining %s, want %s", name, got, test.gaining)
		}
		if got := fmt.Sprint(plan.FreedBy(ab, test.target)); got != test.free {
			t.Errorf("%s: freed %s, want %s", name, got, test.free)
		}
	}
}
