// Package history is the second opinion on a run: what etcd itself says of it.
//
// Follow records everything that a cluster wrote into etcd and that lasts, from
// an empty etcd on, by a watch, into an append-only file. Read replays it and
// holds every single transaction to the rules of the protocol (see package
// ledger): that a lease is made under the epoch and the layout in force, from
// the room's mark on, above the floor, the tag's start and a skip, within the
// room's range and the tag's limit; that marks never fall and nothing is deleted
// that must stay; that layouts only go forward. At the end of each life what is
// there must fit together by ledger's own checks, which see two leases that share
// an ID.
//
// # Lives
//
// An etcd that was restored from a backup is one that went back in time: its
// revisions repeat. What comes then is another life. Follow finds out by itself:
// by another cluster ID, by a lower revision or raft index, or by keys that were
// last written at revisions of which it knows all, and differ from what it knows.
// It looks once a second and whenever a watch ends. What the watch brought between
// the last look that found all well and one that did not may be of either life: it
// is left out, and counted.
//
// Where changes were compacted before they were seen, there is a gap: marks may
// have moved any number of times meanwhile, but never down.
package history
