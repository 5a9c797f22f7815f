package history_test

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/cmd/chaos/internal/history"
)

// A version that is in force again after a restore is replaced when it is replaced
// for good; one that the restore took away, then.
func TestReplaced(t *testing.T) {
	began := time.Now()
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	h := &history.History{}
	if len(h.Replaced()) > 0 {
		t.Error("something was replaced in an empty history")
	}
	for second, version := range []int64{1, 2, 3, 2, 5, 6} { // version 2 is restored at second 3
		h.Layouts = append(h.Layouts, history.Layout{Time: at(second), LayoutRecord: ledger.LayoutRecord{Layout: allocator.Layout{Version: version}}})
	}
	got := h.Replaced()
	for version, second := range map[int64]int{1: 1, 3: 3, 2: 4, 5: 5} {
		if !got[version].Equal(at(second)) {
			t.Errorf("version %d was replaced at %v, want %v", version, got[version], at(second))
		}
	}
	if _, replaced := got[6]; replaced || len(got) != 4 {
		t.Errorf("replaced: %v", got)
	}
}
