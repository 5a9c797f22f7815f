package record_test

import (
	"slices"
	"testing"

	"github.com/march-id/march/allocator/ledger/record"
)

// Of more processes than are kept, those that left go first, the oldest before others; then the
// oldest of the rest.
func TestTrimSeen(t *testing.T) {
	all := []record.SeenInstance{{Incarnation: "1"}, {Incarnation: "2", Left: 5}, {Incarnation: "3"},
		{Incarnation: "4", Left: 3}, {Incarnation: "5"}}
	for most, want := range map[int][]string{
		6: {"1", "2", "3", "4", "5"}, 5: {"1", "2", "3", "4", "5"}, 4: {"1", "3", "4", "5"}, 3: {"1", "3", "5"},
		2: {"3", "5"}, 0: nil,
	} {
		var kept []string
		for _, s := range record.TrimSeen(slices.Clone(all), most) {
			kept = append(kept, s.Incarnation)
		}
		if !slices.Equal(kept, want) {
			t.Errorf("at most %d: %v, want %v", most, kept, want)
		}
	}
}
