package main

import (
	"maps"
	"testing"

	"github.com/march-id/march/allocator"
)

// Before, the ports of a room followed its place in the layout: after two rooms had changed
// places, a restart changed their ports.
func TestRoomsKeepTheirPorts(t *testing.T) {
	rooms := func(names ...allocator.Room) allocator.Layout {
		l := allocator.Layout{Boundary: 100, Ranges: make(map[allocator.Room]allocator.Range)}
		for i, name := range names {
			l.Ranges[name] = allocator.Range{Lower: int64(10 * i), Upper: int64(10*i + 10)}
		}
		return l
	}
	for _, test := range []struct {
		what    string
		layouts []allocator.Layout
		want    map[allocator.Room]int
	}{
		{"the first", []allocator.Layout{rooms("eu", "us", "ap")}, map[allocator.Room]int{"eu": 0, "us": 1, "ap": 2}},
		{"a rotation", []allocator.Layout{rooms("a", "b", "c"), rooms("c", "a", "b")},
			map[allocator.Room]int{"a": 0, "b": 1, "c": 2}},
		{"a new one in between", []allocator.Layout{rooms("b", "d"), rooms("a", "b", "c", "d")},
			map[allocator.Room]int{"b": 0, "d": 1, "a": 2, "c": 3}},
		{"one that went", []allocator.Layout{rooms("a", "b"), rooms("b"), rooms("b", "c")},
			map[allocator.Room]int{"c": 0, "b": 1}},
	} {
		if got := slotsOf(test.layouts); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}
