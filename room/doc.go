// Package room is the room server: one instance of a room, which issues the
// room's IDs from memory over gRPC and HTTP/JSON (package serve).
//
// # Life of an instance
//
//  1. The instance reads the layout and registers. If another process registers
//     under the same name later, that one takes its place: the instance drops the
//     segments that it holds, and stops (package ledger).
//  2. It makes a tag's issuer when a caller first asks for the tag, or at the start
//     if Config.WarmTags names the tag. That of a counter has a chain, which takes one
//     read and one write in etcd. That of a time-ordered tag shares a worker (Windows).
//     Then the instance serves everything from memory.
//  3. It watches etcd for new layouts. A new layout keeps a segment if the boundary is
//     the same and the room's new range contains the segment's range. Such a segment
//     stays, so a room that lost nothing leases nothing. The instance replaces every
//     other segment, tag by tag, the busiest tag first: it leases a fresh segment
//     under the new layout, then drops the old one. A tag that no caller asked for
//     recently (Config.ColdAfter) drops its segments and leases nothing. Its mark is read,
//     so that its next caller waits for one transaction only. When every chain is
//     done the instance reports the layout's version.
//  4. A changed tag's settings take effect at once.
//  5. When etcd is away the instance goes on with the segments that it holds.
//  6. At the end it answers the calls under way and deregisters.
//
// # Invariants
//
//  1. Every ID that the instance answers was taken from a chain, or from a generator in the
//     window of a worker. So this instance leased it, and answers it once.
//  2. Once the instance has reported a layout's version, each ID that it issues is of
//     a segment that was leased under that layout or a later one, or that the layout
//     keeps. It reports after the last chain is renewed.
//  3. The number of goroutines does not grow with the number of tags: issuers have
//     none of their own.
package room
