// Package ledger is the protocol that makes March safe. It leases segments to a room's
// instances so that no ID is ever leased twice, whatever etcd, the network or the
// clocks do; the exceptions are at the end of this comment. It decides which
// transactions are sent. Package store sends them to etcd, and package record has the
// keys and values. Package admin has what operators change and list beside leasing:
// layouts, tags, migrations, settings, instances. Package recovery brings a cluster back
// whose etcd went back in time.
//
// The design of record is DESIGN.md in the root of the repository; its section 3 is
// the protocol. This comment says which file has which step.
//
// # Keys
//
// All keys are under /march/<cluster>/. Section 3.1 of the design lists them, and package
// record says how values are written and read. The number of keys of each kind is bounded:
// by the number of tags and rooms, by the number of instances, or by a number (bounds.go).
// The write that adds one key too many removes the oldest.
//
// A stamp is the pair (epoch, mod revision of the layout). It names one layout as it
// was written once: the same layout written again has another stamp. An era is the
// part of a tag that a room leased under one stamp: (layout version, epoch, first,
// end).
//
// # Life of a segment
//
// Section 3.2 of the design has the steps. Source and Lease (lease.go) ask for the state under which a lease may be
// made (leasable.go), which probes etcd if that is due (probe.go). read has the tag, the mark and the floor, and next
// the segment; record/mark.go computes floors and marks. claim sends the transaction, accept decides whether the
// segment is ours, and toJournal syncs the mark (claim.go).
//
// # Why no ID is leased twice
//
// Take any two segments of one tag.
//
//   - Of one room: both leases moved the same mark by compare-and-swap, so the
//     segments are disjoint.
//   - Of two rooms under one layout: the rooms' residues are disjoint.
//   - Of two rooms under layouts u, then v: the first lease committed while the layout
//     was u, so before v was written. The second room's first lease after u read its
//     floor from a snapshot that shows a layout newer than u. So it saw the first
//     segment's mark, and stays above it.
//
// The argument does not use clocks or heartbeats, nor when an instance learns of a change.
// Any layout may follow any other.
//
// # Invariants
//
//  1. A mark's next never shrinks. A mark is never deleted, not with its tag and not
//     with its room. Only record/mark.go computes new marks.
//  2. The layout changes by one compare-and-swap on layout and epoch, which also
//     writes layouts/<version> and the audit entry. Versions only grow.
//  3. An invalid layout (a broken constraint, one that differs from its own
//     layouts/<version>, a list of rooms that shrank) is never adopted: nothing
//     is leased until it is repaired.
//  4. A transaction is sent once per try. If the answer to a try does not come, its
//     outcome is unknown: the transaction may have happened.
//
// A lease compares the tag's mod revision, so that a limit or a deletion takes
// effect at once. It compares the registration's mod revision, so that of two
// processes with one name only the newer one leases.
//
// # Going back in time
//
// Section 3.4 of the design has the rules. An etcd that was restored from a backup has forgotten marks, and its
// revisions repeat. So revisions, and what is remembered of layouts, belong to an epoch (epoch_clock.go).
//
//   - Evidence: an epoch that comes again, an old one that was missed, a revision or a raft index that is too low
//     (epoch_clock.go, probe.go); an own mark or window that is too low (claim.go, window.go, and over restarts
//     package journal); a heartbeat or a registration that is gone (presence.go).
//   - Stopping: a suspicion, the second probe, the halt (probe.go).
//   - What recover has to know: which processes are registered, and which left with all their leases in etcd
//     (presence.go, instance.go); of which the memory is lost (presence.go, unconfirmed.go).
//   - Going on: the barrier, and the way into the new epoch (restore.go); recover itself is package recovery.
//   - What a process that stops in good order keeps for the next one of its name: kept.go.
//
// IDs between a room's eras of two epochs may have been leased and then forgotten.
//
// # What it cannot see
//
//   - A rollback of raft's own data, if the instance that leases first remembers
//     nothing of the lost part.
//   - An instance that a recover went on without, until it reaches etcd.
//   - A cloned process, within one heartbeat.
//
// docs/restore.md has every case.
//
// # Files
//
// A function calls functions of its own file and of the files before it, in this order:
//
//  1. What this process knows, and its log: trace.go, epoch_clock.go, unconfirmed.go, state.go,
//     contact.go.
//  2. Transactions and their bounds, and probes of etcd: ledger.go, bounds.go, probe.go.
//  3. What an instance remembers, and its presence in etcd: memory.go, trouble.go, presence.go; and the conditional
//     write of all leases, from the sending to the journal: claim.go.
//  4. How it goes back in time with etcd: restore.go.
//  5. The state under which leasing is allowed, and its end: leasable.go; and of ordered tags
//     (3.6 of the design) the tenure: tenure.go.
//  6. The life of an instance, joining and leaving: instance.go.
//  7. Leases: lease.go of IDs, skew.go of how far they are behind, kept.go of what the process before
//     kept, holder.go of ordered tags, window.go of workers.
package ledger
