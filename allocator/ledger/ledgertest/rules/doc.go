// Package rules says what a transaction may do to a cluster's keys in etcd. It is pure: it
// compares what a transaction writes with what was there before. The fake of package
// ledgertest asks it about each transaction before it is done, so a test fails at the write
// that breaks a rule; cmd/chaos asks it about each transaction of a recorded history.
//
// The rules follow from DESIGN 3, and not from the code that writes. They share with that
// code only the format of keys and values, which is package record's. Where a number can be
// reckoned in another way, it is: Floor and the slices of rooms use numbers of any size.
//
// # Rules
//
//  1. Identity, epoch, layout, marks and workers are never deleted. Of layouts, migrations
//     and audit entries the oldest goes when another one comes.
//  2. Audit entries and layouts of the history are never rewritten; the identity only with
//     a new epoch.
//  3. A layout comes with the same value in the history. Its version grows: by one, but at
//     a recover. Its list of rooms that ever were never shrinks, and its formats never
//     fall. No layout changes while leasing is halted, except in the transaction that
//     begins an epoch.
//  4. An epoch follows a halt, and is in force only once. The margin total never falls.
//  5. A mark's next never falls. A mark whose stamp, total, began and eras stay was raised;
//     any other was leased.
//  6. A lease is made under the epoch and the layout in force, of a tag that exists, by a
//     room with a range and a registered instance. It is above the mark, the tag's start
//     and the room's skip, below the tag's limit, and in the room's range. The first lease
//     under a stamp is above the floor, and in a tag with a period the first one of an epoch in
//     a period above the margins that count there. The mark keeps the latest eras.
//  7. A window of a worker is written under the epoch and the layout in force, in the slice
//     of a room with a registered instance. It goes on from where the same process began
//     it, or begins at the end of the one before or later, and not before the epoch's
//     not_before, unless the one before is of the epoch in force. A process that gives its
//     window back keeps its stamp, and needs no slice. While leasing is halted a window's
//     end only rises.
//  8. A lease compares the epoch, the layout, the tag, the mark and a registration of its
//     room, and of an ordered tag the room's holder; the take of a holder's key compares them but for
//     the mark, its release the key alone; a window the epoch, the layout, the worker and a
//     registration; a machine ID the epoch, the layout and all rooms' keys of the number. While
//     leasing is halted a window and a machine ID are raised, and only the epoch and the key are compared (Conditions).
package rules
