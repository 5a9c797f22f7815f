// Package mirror keeps what one process saw of a cluster's store. A console keeps a mirror, and
// `march recover` asks it: leases that were made since a backup stand in no memory but that of
// the instance that made them, and where that instance is lost a mirror has seen them.
//
// Two rules say what a mirror may be used for (section 3.4 of the design):
//
//  1. What only raises is kept from every history that was seen, each number for itself, and is
//     never lowered, whatever the store shows later: how far marks and windows reach, margin
//     totals, the largest steps of tags. A number that is too high costs IDs and is never wrong.
//  2. What permits something is tied to the history in which it was seen. Whether a mirror saw
//     all leases up to a time is said by its views. A view is what one connection to one member
//     showed: one history, as a restore of etcd ends all connections. Only what came over one
//     connection is joined.
//
// Mirror is the data and its rules, without clocks and without a lock. Follower fills one from
// the store, in one goroutine. File keeps one on disk.
package mirror
