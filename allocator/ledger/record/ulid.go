package record

import (
	"crypto/rand"

	"github.com/oklog/ulid/v2"
)

// entropy grows with each ULID of this process. It is told the same millisecond each time: it would
// begin anew with each other one, and the order would be lost when a clock is set back, or when
// goroutines interleave at the end of a millisecond.
var entropy = ulid.LockedMonotonicReader{MonotonicReader: ulid.Monotonic(rand.Reader, 0)}

// NewULID returns the ID of a new audit entry or migration. The IDs that one process makes in one
// millisecond sort as they were made.
func NewULID() string { return ulidAt(ulid.Now()) }

func ulidAt(ms uint64) string {
	var id ulid.ULID
	_ = id.SetTime(ms)                   // it has room until the year 10889
	_ = entropy.MonotonicRead(0, id[6:]) // its only error is an overflow, and then it begins anew
	return id.String()
}
