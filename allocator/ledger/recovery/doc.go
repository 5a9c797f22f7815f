// Package recovery makes a cluster lease again after its etcd went back in time: it was
// restored from a backup, rebuilt from one member, or halted. It is `march recover`.
//
// Section 3.4 of the design, Going on, has the steps. Run (recovery.go) reads the store and halts leasing (stored.go),
// asks mirrors (mirrors.go) and instances, twice after a halt (ask.go), decides (decide.go), raises what the store has
// too low (raise.go), and begins the new epoch (epoch.go). Package ledger has what instances do meanwhile: the barrier,
// and the way into the new epoch (restore.go).
//
// # Invariants
//
//  1. Nothing is changed before the operator has named every process that did not answer
//     and the tag of every mark that cannot be read.
//  2. Each write from the first halt to the new epoch compares the epoch's key with the
//     run's own halt. Of two runs at once, the first finds its halt gone and ends.
//  3. A mark is only raised, in the room that leased, and only to what a memory or a
//     mirror knows.
//  4. The new epoch lists the processes whose memory was taken: from a journal, or by an
//     answer that the process confirmed under the last halt (run.confirmAnswers).
//  5. The new epoch's margin total is not below any that the store, a journal, an answer or a
//     mirror knows, and its layout version is above all of theirs.
//  6. A worker's end is only raised. Where an instance is left out, the new epoch's
//     not_before is LongestWindow and twice MaxAhead after the run's clock, less if all
//     of them were stopped (run.windowsBegin). It is never below any that one of these knows.
//
// A run that breaks off leaves leasing halted at worst, and may be repeated.
//
// One risk remains: an instance that did not answer issues the IDs that it holds until it
// next reaches etcd; see restore.go of package ledger, and docs/restore.md.
package recovery
