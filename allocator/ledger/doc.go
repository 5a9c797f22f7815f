// Package ledger is what makes March safe: the only code that knows etcd, its
// keys and its transactions. It leases segments to a room's instances so that
// no ID is ever leased twice, whatever etcd, the network or the clocks do, and
// it keeps everything else that a cluster shares: layouts, tags,
// registrations.
//
// # Keys
//
// All under /march/<cluster>/. Values are JSON with int64 as strings and a
// format number; an unknown format is refused.
//
//	identity                     the cluster's uuid and the ID of its etcd cluster
//	epoch                        128 random bits, compared by every lease; or halted
//	beat                         "etcd was at least here": its raft index
//	settings                     those of the whole cluster; none until somebody sets them
//	layout                       the current layout, and all rooms that ever had a range
//	layouts/<version>            every layout that ever was
//	tags/<tag>                   a tag's settings
//	marks/<room>/<tag>           what a room leased of a tag: the next ID not yet leased, and the current era
//	eras/<room>/<tag>/<version>  an era that ended
//	rooms/<room>/<instance>      an instance's registration
//	alive/<room>/<instance>      its heartbeat, under an etcd lease
//	silent/<room>/<instance>     since when it was missed
//	migrations/<ulid>            a change of layout in moves, and how far it is
//	migration                    the ID of the one under way
//	driver                       the console that drives it, under an etcd lease
//	audit/<ulid>                 who changed what, when; written with the change
//
// An era is what a room leased of a tag under one layout: (stamp, layout
// version, first, end). A stamp is (epoch, mod revision of the layout): which
// layout, in a way that no one can retype.
//
// # Life of a segment
//
// An instance of room r wants n IDs of tag t (Instance.Source, lease.go):
//
//  1. It knows a layout L with its mod revision, and the epoch E.
//  2. It knows the tag's settings and the mark m of (r, t): read, or remembered
//     from its own last transaction.
//  3. The base is the largest of m.next, the tag's start and, where m's stamp is
//     not (E, L), the floor: the largest next over the marks of t in all rooms
//     that ever were, read in one transaction that is conditional on L and E.
//  4. The segment is the first n IDs >= base in r's range in L, below the
//     tag's limit.
//  5. One transaction: IF epoch, layout, tag, mark and the instance's own
//     registration are as known THEN put the mark and, where an era begins, the
//     ended one ELSE get them all.
//  6. The segment is ours only if there was no error, the transaction
//     succeeded, the answer is from our etcd cluster, and its revision is above
//     every revision seen before it was sent. In every other case it is leased
//     and lost: a gap. The mark is read again, nothing is assumed.
//
// # Why no ID is leased twice
//
// Take any two segments of one tag. Same room: both bumped the same mark by
// compare-and-swap, so they are disjoint. Two rooms under one layout: residues
// are disjoint. Two rooms under layouts u then v: the first committed while
// layout was u, so before v was written; the second room's first lease after u
// read its floor from a snapshot that shows a layout newer than u, and so saw
// the first segment's mark, and stays above it. Clocks, etcd leases and what an
// instance has heard of play no part; any layout may follow any other.
//
// # Invariants
//
//  1. A mark's next never shrinks, and a mark is never deleted, not with its
//     tag and not with its room. mark.go alone computes new marks.
//  2. The layout changes by one compare-and-swap on layout and epoch, which also
//     writes layouts/<version> and the audit entry. Versions only grow.
//  3. An invalid layout (a broken constraint, one that differs from its own
//     layouts/<version>, a list of rooms that shrank) is never adopted: nothing
//     is leased until it is repaired.
//  4. A transaction is sent once per try. A try whose answer did not come is
//     unknown: it may have happened.
//
// Beyond the design of record a lease compares the tag's mod revision too, so
// that a limit or a deletion takes effect at once, and the registration's mod
// revision, so that of two processes with one name only the newer leases.
//
// # Going back in time
//
// An etcd that was restored from a backup has forgotten marks, and its revisions
// repeat. So revisions, and what is remembered of layouts, belong to an epoch
// (epoch.go). The rules:
//
//  1. What shows that time went back: an epoch that is in force again after
//     another; a revision below one that was seen under the same epoch; an own
//     mark below what it was (memory.go, and over restarts package journal); a
//     raft index below that of the beat (beat.go).
//  2. An instance looks (look.go) when it starts, after every connection that
//     broke, and before a lease that comes more than 5 s after the last look. A
//     lease is ours only if it came over the connection that was looked through,
//     in the generation that it was sent in (Instance.accept).
//  3. The first sight is a doubt, which stops leasing in this process at once. A
//     second look, in the order of all writes, clears it up or confirms it, and
//     then halts leasing for all (halt.go): it is written over the very epoch that
//     was looked at. Another uuid or etcd cluster stops only who meets it. A console
//     does the same, and looks before it moves the layout or forgets an instance; an
//     operator's command halts nobody but on purpose.
//  4. While leasing is halted what is held is issued, layouts stay, nobody is
//     forgotten, and who stops stays registered: recover has to know of all.
//  5. What was leased is in the journal, synced, before a segment of it is
//     returned. Who starts in the place of a process whose journal it does not
//     have says so in its registration (rejoin.go): that counts as not answered.
//  6. Recover (recover.go) halts, then asks all that it can learn of. Who answers
//     accepts no answer to what it sent before, and leases nothing until there is
//     an epoch that it never saw. The marks of all rooms go above all that anybody
//     knows. Then one transaction begins a new random epoch, with a layout version
//     above all that were known, and, as far as the clock of who recovers goes
//     right, above all that were forgotten (newVersion).
//  7. Under a new epoch each instance compares what it holds with the marks, and
//     drops what lies above them (memory.go); it registers again where etcd has
//     forgotten it. Nothing of the epoch before counts any longer but its marks,
//     so nothing halts again.
//  8. Where journals are required (ClusterSettings), who starts without its own
//     leases nothing before its marks are confirmed, by a live instance's memory
//     or an operator (vouch.go).
//
// Versions of layouts that were lost on the way, and the stretch of IDs, are known
// as such (LayoutRecord.Lost).
//
// # What it cannot see
//
// A rollback of raft's own data with every process and journal lost, unless
// journals are required; an instance that a recover went on without, until it
// reaches etcd; a cloned process within one heartbeat. See the README.
package ledger
