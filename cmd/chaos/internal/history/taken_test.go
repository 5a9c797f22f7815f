package history_test

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/chaos/internal/history"
)

// A segment is its room's until a layout takes one of its residues, and again once a later
// layout gives the residue back.
func TestTaken(t *testing.T) {
	began := time.Unix(1e9, 0)
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	seg := allocator.Segment{Version: 2, Boundary: 100, Range: allocator.Range{Lower: 10, Upper: 20},
		First: 10, Count: 5}
	h := &history.History{}
	if taken := h.Taken("a", seg, at(0)); !taken.IsZero() {
		t.Errorf("taken at %v in an empty history", taken)
	}
	for second, l := range []struct {
		version, boundary, lower, upper int64
		taken                           int // the second, or -1 if not taken
	}{
		{1, 100, 0, 10, -1},  // before the segment was leased
		{2, 100, 10, 20, -1}, // the segment's own
		{3, 100, 0, 50, -1},
		{4, 100, 11, 50, 3},
		{5, 100, 30, 50, 3},
		{6, 100, 10, 50, -1}, // given back
		{1, 100, 0, 10, 6},   // a restore
		{7, 100, 10, 20, -1},
		{8, 10, 10, 20, 8},
	} {
		h.Layouts = append(h.Layouts, history.Layout{Time: at(second), Layout: record.Layout{Layout: allocator.Layout{
			Version: l.version, Boundary: l.boundary,
			Ranges: map[allocator.Room]allocator.Range{"a": {Lower: l.lower, Upper: l.upper}},
		}}})
		want := time.Time{}
		if l.taken >= 0 {
			want = at(l.taken)
		}
		if got := h.Taken("a", seg, at(second)); !got.Equal(want) {
			t.Errorf("as of second %d: taken at %v, want %v", second, got, want)
		}
	}
	if !h.Keeps(3, "a", seg) || h.Keeps(4, "a", seg) || h.Keeps(3, "b", seg) || h.Keeps(9, "a", seg) {
		t.Error("the versions that keep it are 2, 3, 6 and 7")
	}
}
