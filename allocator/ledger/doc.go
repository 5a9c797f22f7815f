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
// An instance of room r wants n IDs of tag t (Instance.Source, lease.go):
//
//  1. The instance knows a layout L with its mod revision, and the epoch E.
//  2. It knows the tag's settings and the mark m of (r, t). It has read them, or
//     remembers them from its own last transaction.
//  3. It computes the base, below which it leases nothing: the largest of m.next, the
//     tag's start and the tag's skip for r. The floor counts, too, if m's stamp is not
//     (E, L). The floor is the largest next + d over the marks of t in all rooms that
//     ever had a range. These marks are read in one transaction that is conditional on
//     L and E. d is the space that recovers left free since the mark's last lease
//     (record/mark.go): their margin in steps, each as long as a lease of the tag can
//     span. d lies above the tag's start and the room's skip, too. An absent mark counts as
//     the tag's start with the margin of all recovers. If the tag was created with
//     --fresh, only recovers since its creation count.
//  4. The segment is the first n IDs >= base in r's range in L, below the
//     tag's limit.
//  5. The instance sends one transaction: IF epoch, layout, tag, mark and its own
//     registration are as known THEN put the mark ELSE get them all. A new stamp
//     begins a new era in the mark.
//  6. The segment is the instance's only if all of this is true: there was no error;
//     the transaction succeeded; the answer is from the cluster's etcd; its revision
//     is above every revision seen before the request was sent; no barrier or other
//     epoch came up meanwhile; and the answer came over the connection that the last
//     probe checked, which a suspicion undoes. In every other case the segment is leased and lost: a
//     gap. The instance then assumes nothing and reads the mark again.
//  7. The mark is synced to the journal before the segment is returned.
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
// The argument does not use clocks or heartbeats, nor which changes an instance has
// heard of. Any layout may follow any other.
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
// An etcd that was restored from a backup has forgotten marks, and its revisions
// repeat. So revisions, and what is remembered of layouts, belong to an epoch
// (epoch_clock.go). The rules:
//
//  1. Any of these shows that time went back: an epoch that is in force again after
//     another; an epoch that was never seen, with a layout version that is not above
//     the highest known; a revision below one that was seen under the same epoch; a
//     mark of the instance's own that is lower than before (memory.go, and over
//     restarts package journal); a raft index below that of the beat (probe.go).
//  2. An instance probes etcd (probe.go) when it starts, after every connection that
//     broke, and before a lease that comes more than 5 s after the last probe.
//  3. The first sign is a suspicion. It stops leasing in this process at once. A second
//     probe, in the order of all writes, clears the suspicion up or confirms it. If it
//     confirms it, the process halts leasing for all (probe.go): it writes the halt over
//     the very epoch that it probed. Another uuid or etcd cluster stops only the
//     instance that meets it. A console does the same, and probes before it moves the
//     layout or forgets an instance. Of the operator's commands only `march halt` and
//     `march recover` halt leasing.
//  4. While leasing is halted, instances issue the IDs that they hold, layouts stay, and
//     no instance is forgotten. An instance that stops stays registered. Recover has to
//     know of all of them.
//  5. A process that starts without its predecessor's journal records that in its
//     registration (presence.go): the predecessor counts as not answered. An instance
//     probes if its heartbeat is gone, or is an earlier one of its own (presence.go).
//  6. Recover (package recovery) asks all instances that it can learn of before it changes
//     anything. It goes on without an instance only if the operator names it. Then it
//     writes a halt of its own over any other, and asks again, with a barrier
//     (restore.go). An instance accepts the barrier if its own etcd shows exactly that
//     halt. From then on it takes no answer to a request that it sent before, and
//     leases nothing under an epoch that it has seen. Recover raises each mark that a
//     memory knows to be higher, in the room that leased, and confirms all answers.
//  7. One transaction, which compares the halt's nonce, begins a new random epoch. It
//     has the list of the processes whose memory recover took, a margin total, and a
//     layout version above all known ones. The version is above all forgotten ones,
//     too, if the clock of recover's host goes right (recovery/decide.go). The margin is
//     for the instances that recover went on without, in steps. The floor adds it to
//     each mark of an older total, so recover writes no mark for it.
//  8. An instance enters a new epoch before it leases under it (restore.go): its journal has
//     the epoch then. If the list names the process that leased last, and the halt stopped
//     the last epoch that the instance entered, it keeps all. If the halt stopped another
//     one, it drops the segments that it holds. If the list does not name that process, it
//     was left out: it drops its segments, too, and compares the IDs that it leased with
//     the marks of all rooms. If the marks do not cover them, it raises the marks in all
//     rooms, or halts where it may not. In both cases an alarm names the tags of which
//     other instances may have leased the same IDs since.
//  9. Where journals are required (ClusterSettings), an instance that starts without
//     its journal leases nothing before an operator has confirmed its marks
//     (unconfirmed.go).
//  10. A process that stops in good order keeps what it did not issue, and the next one of its
//     name takes it, once (kept.go).
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
//  3. What an instance remembers, and its presence in etcd: memory.go, trouble.go, presence.go.
//  4. How it goes back in time with etcd: restore.go.
//  5. The state under which leasing is allowed, and its end: leasable.go.
//  6. The life of an instance, joining and leaving: instance.go.
//  7. Leases: claim.go, lease.go of IDs, kept.go of what the process before kept, window.go of workers.
package ledger
