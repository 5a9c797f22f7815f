// Package worker leases workers of time-ordered IDs to an instance: numbers that one
// process at a time may use, each for a window of time. Package timeid makes the IDs;
// it issues a tick only if all of it lies in the window.
//
// The design of record is DESIGN.md in the root of the repository; its section 8 is
// the protocol.
//
// # Words
//
// Workers of a width, 2^bits of them, form one pool. One worker serves all tags of its
// width in a process. A room's key of a worker, windows/<room>/<bits>/<number>, has the owner
// and the window [from, until). A room's slice is the workers that it may take: the image of
// its range (timeid.Slice). A pinned worker is a number that an operator chose,
// counted from the slice's lower end.
//
// # Life of a window
//
//  1. Take reads all rooms' keys of the slice's workers and the heartbeats in one snapshot, under
//     the condition that epoch and layout are as known (ledger.Instance.ReadWorkers).
//  2. It compares its own clock with those of the heartbeats (clock.go), and chooses
//     a worker (choose.go) whose window is over.
//  3. One transaction puts the window: IF epoch, layout, registration and the room's own
//     key are as known. The window begins at the latest end in all rooms' keys or later, so
//     that no two owners have a time in common. The answer must show, and the
//     journal must have, the same as for a segment before the window is used
//     (ledger.Instance.PutWorker).
//  4. Renew moves the window's end when half of it is over. The window's start stays.
//     Its length grows with the age of the process (window.go).
//  5. GiveBack moves the end back to the end of the last tick that was used.
//     Otherwise the window ends by itself.
//
// # Invariants
//
//  1. A window that is put over another owner's begins at that owner's end or later.
//     The same holds for the owner's own next generator: only a Worker goes on
//     without a gap, and a generator goes on with it.
//  2. Only the owner lowers an end, and never below a tick that it used, and never that
//     of a worker that was taken for a caller.
//  3. A window in memory ends at the end that an accepted transaction wrote, or before.
//     An answer that was lost changes etcd at most: the next Renew reads the key back.
//     One with the own incarnation is the own window, which goes on.
//  4. A worker is taken or renewed only under a layout whose slice has it. A layout
//     under which another room has the worker compares as another one, so that room
//     reads the key that this one wrote, and this one reads that room's before it goes on.
//  5. Under an epoch with not_before no window begins before that time, but those that
//     go on: an instance that the recover left out may issue until then.
//
// Uniqueness does not depend on clocks. The clock decides only where a window begins
// at the earliest, and when it is renewed.
package worker
