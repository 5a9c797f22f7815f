// Package timeid makes and reads time-ordered IDs: int64 numbers of time, worker and
// sequence, as Snowflake's are. It does no input or output of its own, and starts no
// goroutine. Its caller gives it a clock, a worker and a window of time.
//
// # Words
//
// A tick is one unit of time (1 ms, 10 ms or 1 s) counted from the epoch. A worker
// is a number that one process at a time may use. The sequence counts the IDs of
// one worker within a tick. A Layout says how many bits each has, and in which
// order. A window is the time [from, until) for which a worker is a generator's. A
// Preset is a layout that other systems use.
//
// # Invariants
//
//  1. A generator issues each pair of tick and sequence at most once, whatever its
//     clock does: IDs are taken in growing order from one atomic word.
//  2. A generator issues an ID only of a tick that lies in its window as a whole.
//     So two generators with one worker never issue the same ID if their windows do
//     not overlap. Uniqueness rests on this and not on clocks.
//  3. No ID is ahead of the clock that its generator read, but with Offset: then by
//     MaxAhead at most.
//  4. The IDs of one generator only grow, in the order in which they are taken.
//  5. Compose and Decompose are each other's inverse, for every valid layout.
//
// # Life of an ID
//
//  1. TryNext reads the clock. If the clock is still in the tick of the last reading, TryNext
//     adds one to the word and compares it with the tick's last word. If it is not above that,
//     two shifts make the ID.
//  2. Otherwise take takes a word by compare-and-swap: the first of the clock's tick, or the
//     next one of the last tick. It applies the policies, and sets from the window how far
//     TryNext may add.
//  3. If neither has a word, Next waits or returns a typed error.
//
// # What it does not do
//
// The package does not know which other process has the worker: the ledger leases windows. It
// does not write or read texts of IDs, either.
package timeid
