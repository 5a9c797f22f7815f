// Package recovery makes a cluster lease again after its etcd went back in time: it was
// restored from a backup, rebuilt from one member, or halted. It is `march recover`.
//
// A restored etcd has forgotten leases, so its marks are too low: a lease by them would
// issue IDs again. The instances that made those leases remember them. Recovery asks each
// instance, raises the marks, and begins a new epoch, under which leasing goes on. Package
// ledger has what instances do meanwhile: the barrier and the way into the
// new epoch (restore.go). DESIGN 3.4 is the design of record.
//
// # Steps
//
//  1. Run reads what the store has, and asks every process that may have leased since
//     the backup what it remembers. Nothing is changed so far.
//  2. Only if that went well, Run halts leasing, with a halt of its own: a lease
//     compares the epoch, so none is made in this store from then on.
//  3. The second question is a barrier: an instance that accepts it issues nothing from
//     any transaction that it sent before, and leases nothing under any epoch that it
//     has seen. So what it reports is all that it will ever issue.
//  4. Run raises the marks that a memory knows to be higher than the store's, and the
//     workers whose windows it knows to end later.
//  5. Run writes another halt and confirms all answers. One transaction, which compares
//     that halt's nonce, then begins a new random epoch with a layout version above all
//     that are known. Its margin total covers leases of instances that did not answer:
//     the floor adds it to every mark of an older total, so a recovery costs the same
//     with ten tags and with ten million. Its not_before covers their windows.
//
// # Invariants
//
//  1. Nothing is changed before the operator has named every process that did not answer
//     and the tag of every mark that cannot be read.
//  2. Each write from the first halt to the new epoch compares the epoch's key with the
//     run's own halt. Of two runs at once, the first finds its halt gone and ends.
//  3. A mark is only raised, in the room that leased, and only to what a memory knows.
//  4. The new epoch lists the processes whose memory was taken: from a journal, or by an
//     answer that the process confirmed under the last halt (run.confirmAnswers).
//  5. The new epoch's margin total is not below any that the store, a journal or an answer
//     knows, and its layout version is above all of theirs.
//  6. A worker's end is only raised. Where an instance is left out, the new epoch's
//     not_before is LongestWindow and twice MaxAhead after the run's clock; it is never
//     below any that the store, a journal or an answer knows.
//
// A run that breaks off leaves leasing halted at worst, and may be repeated.
//
// One risk remains: an instance that did not answer issues the IDs that it holds until it
// next reaches etcd; see restore.go of package ledger, and docs/restore.md.
package recovery
