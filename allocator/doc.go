// Package allocator is the domain of March, pure: which IDs a room may issue,
// and how one process issues them from memory without ever waiting when it can
// help it.
//
// # Words
//
// An ID is an int64 from 0 to 2^63-1. A layout has a boundary, the same for
// all rooms, and gives each room a range [lower, upper): the room issues only
// IDs with lower <= id mod boundary < upper. The block of an ID is
// id / boundary; a room's part of one block is a run of upper-lower
// consecutive IDs. A segment is the first n such IDs from some base on, leased
// by one process; it is arithmetic, so it takes a few words however many IDs
// it holds. A chain is the segments that a process holds for one tag, linked,
// refilled ahead of need by a Refiller from a Source.
//
// # Invariants
//
//  1. A valid layout's ranges never overlap, so two rooms under one layout
//     never share an ID.
//  2. Every ID of a segment lies in its range and below the tag's limit.
//     Segments are computed up from a base, never down from an end, and no
//     sum or product wraps: the end of the space is an error (Exhausted).
//  3. A chain hands out each ID of its segments at most once, in growing order
//     (an Unordered one: within each segment). An ID that was taken but could
//     not be delivered is skipped, never reused.
//  4. At most one refill of a chain is under way at any time, and however it
//     ends, fails or hangs, the chain can be refilled again.
//  5. A chain with a Gate hands out no ID that the gate did not let through
//     after the ID was taken, nor one that had reached its segment's Until.
//  6. After Expire a chain holds nothing that has reached its Until.
//
// # Life of an ID
//
//  1. Chain.TryNext loads the head link, adds one to its counter, and compares
//     with the link's end. Below it, two multiplications make the ID.
//  2. At the link's end a caller takes the chain's lock and puts the next link
//     at the head. If the chain then holds less than its target, it is queued
//     with the Refiller, once.
//  3. The Refiller asks the Source for a step of IDs. The segment goes to the
//     chain's tail, and whoever waited goes on.
//
// # What it does not do
//
// It knows no etcd, no network and no tag's settings but those it was given.
// That two processes never hold the same ID is the Source's promise (package
// ledger); this package only keeps it.
package allocator
