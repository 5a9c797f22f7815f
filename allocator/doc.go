// Package allocator is the arithmetic of March: which IDs a room may issue, and
// how one process issues them from memory. A caller waits only if the process has
// run out of IDs, or has to catch up with other rooms. The package does no input or output of its own.
//
// # Words
//
// An ID is an int64 from 0 to 2^63-2. A layout has a boundary, the same for
// all rooms, and gives each room a range [lower, upper): the room issues only
// IDs with lower <= id mod boundary < upper. The block of an ID is
// id / boundary; a room's part of one block is a run of upper-lower
// consecutive IDs. A segment is the first n such IDs from some base on. One
// process leases it. It is computed and not stored ID by ID, so it takes a few
// words of memory however many IDs it holds. A chain is the segments that a process
// holds for one tag, in the order of their leases. A link is the part of the first
// segment from which callers take IDs now; the chain's tail is the rest. A chain's
// target is how many IDs it aims to hold. A Refiller refills it from a Source before it
// runs out.
//
// # Invariants
//
//  1. A valid layout's ranges never overlap, so two rooms under one layout
//     never share an ID.
//  2. Every ID of a segment lies in its range and below the tag's limit.
//     Segments are computed up from a base, never down from an end. No sum or
//     product wraps: the end of the space is an error (Exhausted).
//  3. A chain hands out each ID of its segments at most once, in growing order.
//     In an Unordered chain the order holds only within each segment. An ID that
//     was taken but could not be delivered is skipped, never reused.
//  4. At most one refill of a chain is under way at any time. The chain can be
//     refilled again however that refill ends, even if it fails or hangs.
//  5. A chain with a Gate asks the gate after it has taken an ID, and hands the ID
//     out only if the gate lets it through and the segment's Until is not reached.
//  6. After Expire a chain holds no segment that has reached its Until.
//
// # Life of an ID
//
//  1. Chain.TryNext loads the head link, adds one to its counter, and compares
//     with the link's end. If it is below the end, two multiplications make the
//     ID.
//  2. At the link's end a caller takes the chain's lock and puts the next link
//     at the head. If the chain then holds less than its target, it is queued
//     with the Refiller, once.
//  3. The Refiller asks the Source for a step of IDs. The segment goes to the
//     chain's tail, and the callers that wait for IDs go on.
//
// # What it does not do
//
// The package knows no etcd and no network. It knows only those settings of a tag
// that its caller gives it. The Source (package ledger) promises that two processes
// never hold the same ID; this package only keeps the promise.
package allocator
