// Package console is the operators' service: it shows and changes layouts and
// tags, lists rooms and instances, and plans, drives and undoes migrations,
// over gRPC, over HTTP/JSON (package serve), and as pages for a browser (folder
// web).
//
// A console keeps nothing that it could not read again. Every change goes to etcd through
// package ledger. So all consoles of a cluster answer alike, and no data is lost when one dies.
// The console checks everything from outside here, at the edge: it gives the ledger parsed names
// and valid numbers.
//
// # The snapshot
//
// What a console knows of its cluster is one value, a snapshot. It never changes: whatever reads
// a part makes the next snapshot (view.publish), under the one lock. Calls, pages, problems,
// metrics and capacity read a snapshot, so what they show is of one moment. Each part has its own
// time, its own promise, and one function that reads it:
//
//   - cluster: the layout, the settings, the registered instances and the migration under way.
//     readCluster reads it each 10 s, and for each call that shows it, so such a call sees each
//     change that ended before the call began. Calls at the same time share a read (fresh). While
//     etcd does not answer, it stays as it was, and whatever shows it says as of when (shown).
//   - instances, in cluster: how long each has been silent. Each console counts that for itself,
//     in memory, on its monotonic clock (silence.go).
//   - answers: what the instances tell of themselves, and their rates of the last two minutes.
//     readAnswers asks them each second while callers want it, and otherwise each 10 s. After 3 s
//     an answer is unknown, and so is that of an instance which did not answer: neither is shown as
//     0, or as what it was before.
//   - etcd: its size, its alarms and its members. tend reads it each minute, each 5 s while
//     something is wrong with it.
//   - workers: how many are in use, each minute, and when time bits end, each hour.
//   - trends: how fast these grow, from the largest values of each hour of two weeks.
//   - tags: the index that searches and capacity need. It is the one part that grows with the
//     cluster, so readTags makes it only while callers want it, and spends a tenth of the time on
//     it. It is unknown until it was read once; then a search answers with the first tags.
//
// A part that could not be read stays as it was, with its time. Before the first read it is
// unknown, and nothing is shown of it. Only the costs of plans are kept elsewhere (cost.go):
// they belong to a plan and not to the cluster.
//
// # Migrations
//
//  1. Package plan finds the moves from a layout to a target. Each residue that a room
//     gains by a move was held by no other room before the move, unless the move is a
//     switch.
//  2. drive.go makes the moves. Every console tries each move, and one succeeds: a
//     move changes layout and migration in one transaction that compares both. It goes by what it
//     reads itself, in one transaction with the check that etcd did not go back in time, and by
//     no snapshot.
//  3. Between two moves a console waits for every registered instance that could still
//     issue residues which the next move gives to another room (drive.go).
package console
