package allocator_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
)

func TestReserved(t *testing.T) {
	l := allocator.Layout{
		Boundary: 100,
		Ranges:   map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 25}, "b": {Lower: 50, Upper: 60}},
		Reserved: map[allocator.Room]allocator.Range{"other": {Lower: 30, Upper: 50}, "late": {Lower: 90, Upper: 100}},
	}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := l.ReservedNames(); !slices.Equal(got, []allocator.Room{"other", "late"}) {
		t.Errorf("names %v", got)
	}
	if got := l.Free(allocator.Range{Upper: 100}); !slices.Equal(got,
		[]allocator.Range{{Lower: 25, Upper: 30}, {Lower: 60, Upper: 90}}) {
		t.Errorf("free %v", got)
	}
	if _, ok := l.RoomOf(35); ok {
		t.Error("a reserved residue has a room")
	}
	same := l
	same.Reserved = map[allocator.Room]allocator.Range{"other": {Lower: 30, Upper: 50}}
	if l.Equal(same) {
		t.Error("a layout with fewer reserved ranges is equal")
	}
	for says, reserved := range map[string]map[allocator.Room]allocator.Range{
		"room a [0, 25) and reserved range x [20, 30) overlap in [20, 25)": {"x": {Lower: 20, Upper: 30}},
		"reserved ranges x [30, 40) and y [35, 45) overlap in [35, 40)": {"x": {Lower: 30, Upper: 40},
			"y": {Lower: 35, Upper: 45}},
		"reserved range x [90, 101); allowed: 0 <= lower < upper <= 100": {"x": {Lower: 90, Upper: 101}},
		"reserved range x [40, 40); allowed: 0 <= lower < upper <= 100":  {"x": {Lower: 40, Upper: 40}},
		"reserved: room": {"X": {Lower: 30, Upper: 40}},
	} {
		wrong := l
		wrong.Reserved = reserved
		if err := wrong.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", reserved, err, says)
		}
	}
}
