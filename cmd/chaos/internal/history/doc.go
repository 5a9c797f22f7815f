// Package history is the second opinion on a run: it checks etcd's own history.
//
// Follow records all lasting keys that a cluster writes into etcd, from an empty etcd
// on. It uses a watch, and writes an append-only file. Read replays the file and checks
// every single transaction against the rules of the protocol: package rules. At the
// end of each life all keys must pass package verify, which sees two leases that share an
// ID.
//
// # Lives
//
// An etcd that was restored from a backup has gone back in time: its revisions repeat. From
// then on it has another life. Follow finds that out by itself: by another cluster ID, by a
// lower revision or raft index, or by keys that differ from its record though they were last
// written at revisions that it has recorded in full. It checks once a second and whenever a
// watch ends. If a check finds another life, the changes that the watch brought since the last
// good check may be of either life: Read leaves them out, and counts them.
//
// If changes were compacted before Follow saw them, there is a gap: marks may have moved any
// number of times meanwhile, but never down.
//
// # Segments
//
// An instance logs a segment before a caller gets an ID of it. Match compares these segments with etcd's
// history, and with each other:
//
//   - Each segment of an instance must be a rise of a mark in the history, and no two instances
//     have the same rise.
//   - No two segments share an ID, over all instances, rooms and lives of etcd.
//   - A rise without an instance is a gap. Either some instance logged a failed transaction
//     that took effect all the same, or the instance died in between.
package history
