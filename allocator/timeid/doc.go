// Package timeid makes and reads time-ordered IDs: int64 numbers of time, worker and
// sequence, as Snowflake's are. It does no input or output of its own, and starts no
// goroutine.
//
// # Words
//
// A tick is one unit of time (1 ms, 10 ms or 1 s) counted from the epoch. A worker
// is a number that one process at a time may use. The sequence counts the IDs of
// one worker within a tick. A Layout says how many bits each has, and in which
// order. A window is the time [from, until) for which a worker is a generator's. A
// Preset is a layout that other systems use.
//
// # What it does not do
//
// The package does not know who has a worker: the ledger leases windows. Text forms
// of IDs are not its matter, either.
package timeid
