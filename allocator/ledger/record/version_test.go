package record_test

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
)

// A clock that went wrong is no worse than none: versions lie 1,000 above those that
// are known, at least.
func TestRecoverVersion(t *testing.T) {
	at := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		known int64
		at    time.Time
		want  int64
	}{
		{1, at, 86_400},
		{85_400, at, 86_400},
		{85_401, at, 86_401},
		{1_000_000, at, 1_001_000},
		{1, at.Add(time.Second), 86_401},
		{1, time.Unix(0, 0), 1001}, // a clock that was never set
	} {
		if got := record.RecoverVersion(test.known, test.at); got != test.want {
			t.Errorf("after version %d, at %v: version %d, want %d", test.known, test.at, got, test.want)
		}
	}
}
