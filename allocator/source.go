package allocator

import "context"

// Source leases segments of one tag. In a room it is the ledger, in a client
// the room, in tests memory.
//
// A Source keeps these promises: no ID is ever in two segments, of this source or any
// other of the same tag. Each segment lies above all segments that this source returned
// before, unless the chain is Unordered.
// Lease may return fewer than n IDs, never none, and never more than one
// segment's worth of arithmetic. It returns soon after ctx ends. Its errors
// carry a Kind: Unavailable means that the store cannot be reached (for any
// tag); anything else is about this tag alone. After an error whatever was
// leased is lost, a gap.
//
// A Chain calls its source from one goroutine at a time.
type Source interface {
	Lease(ctx context.Context, n int64) (Segment, error)
}
