// Package room is the room server: one instance of a room, which issues the
// room's IDs from memory over gRPC and HTTP/JSON (package rest).
//
// # Life of an instance
//
//  1. It reads the layout and registers; from then on a registration of the
//     same name by another process fences it out (package ledger).
//  2. A tag's chain is made when the tag is first asked for, or at the start for
//     the tags named in Config.WarmTags. One read and one write in etcd, then
//     everything is served from memory.
//  3. It watches etcd. A new layout is adopted tag by tag, the busiest first: a
//     fresh segment under the new layout, then what was held under the old is
//     dropped. A tag that was not asked for of late (Config.ColdAfter) drops what
//     it holds and leases nothing: it is read, so that its next caller waits for
//     one transaction. When every chain is done the instance reports the version.
//     A changed tag's settings take effect at once.
//  4. When etcd is away it goes on with what it holds.
//  5. At the end it answers the calls under way and deregisters.
//
// # Invariants
//
//  1. Every ID it answers was taken from a chain, so it was leased by this
//     instance and is answered once.
//  2. The version it reports is that of no ID it will still issue under an older
//     layout: it reports after all chains are renewed.
//  3. A goroutine count that does not grow with tags: chains have none of
//     their own.
package room
