package record_test

import (
	"testing"

	"github.com/march-id/march/allocator/ledger/record"
)

// TestOrderOfULIDs: the IDs of one millisecond are in the order in which they were made, also when
// the clock showed others between them.
func TestOrderOfULIDs(t *testing.T) {
	t.Parallel()
	last := map[uint64]string{}
	for n := range 1000 {
		ms := 1_600_000_000_000 - uint64(n%3)
		id := record.ULIDAt(ms)
		if id <= last[ms] {
			t.Fatalf("%d: %s came after %s", ms, id, last[ms])
		}
		last[ms] = id
	}
	if last[1_600_000_000_000] <= last[1_600_000_000_000-1] {
		t.Errorf("%v: not in the order of their times", last)
	}
}
