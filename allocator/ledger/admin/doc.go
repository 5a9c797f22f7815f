// Package admin is the administration of a cluster: what operators, consoles and rooms
// change and list beside leasing. It creates, changes and deletes tags; makes the cluster
// and changes its layout, at once or in the moves of a migration; keeps the cluster's
// settings; lists, forgets and confirms instances; reads the audit; names the room that
// leased an ID; and forecasts what a change of layout does to tags.
//
// Package ledger is the protocol, and knows nothing of this package. Admin sends every
// transaction through a ledger, which knows the epoch and the layout, and notices if
// etcd went back in time.
//
// # Invariants
//
//  1. A change is one transaction, which also writes its audit entry, and removes the
//     oldest key of a kind that is at its bound.
//  2. A change whose answer was lost is looked up: each value that is written carries a
//     nonce, or is as it was wanted. An error Unavailable says that this failed too.
//  3. The layout changes by one compare-and-swap on layout and epoch, which also writes
//     layouts/<version>. A move of a migration compares and writes the migration, too.
//     Nothing changes a layout, deletes a tag, or forgets or confirms an instance while
//     leasing is halted; each of these first probes etcd.
//  4. A mark is never deleted. Only DeleteTag writes one, and it only raises it.
//  5. Methods that only show values skip a value that cannot be read, and name its
//     key.
package admin
