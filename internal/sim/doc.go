// Package sim simulates whole clusters, in its tests: many instances of many rooms, and
// two consoles. All of that is the real code (rooms, chains, ledger, consoles). It runs
// over the store in memory, which can make every fault by name, in the time of
// testing/synctest. The package stands above rooms and consoles, as a program does, and
// no package imports it.
//
//	make simulate                                              # 1,000 seeds, and the faults they met
//	make simulate ARGS='-seed 42'                              # one of them again, and its schedule
//	go test ./internal/sim                                     # fewer
//	go test ./internal/sim -fuzz FuzzSimulation -parallel 1    # scripts instead of seeds
//	go test ./internal/sim -run TestSimulation -with FAULT     # seeds that all have a fault, and often
//	LIVE=1 go test ./internal/sim -run TestRestoreMatrix       # restores without other faults, and what each promises
//	LIVE=1 go test ./internal/sim -run TestMoves               # each feature under each move, by docs/proof.md
//	make mutants                                               # shows that it finds those of cmd/simulate/mistakes
//
// A seed decides everything: the faults and how often they come, the layouts, rooms,
// tags and holds, each action of each process and its time, and the fate of every
// transaction.
//
// # One run
//
// For some time processes issue IDs. Meanwhile:
//
//   - Operators plan, pause, abort and continue migrations. They skip, change tags and
//     forget instances.
//   - Transactions meet their fates. Answers come late though their requests arrive.
//   - In one cluster of three a tag has a period, which begins as the run does, or an hour or
//     half a day later: for clocks hours off, either way, another period is the present one. An
//     operator's margin reaches over the leases of each period. In one of three a tag is deleted and
//     created again, with other steps: its second life repeats no ID of the first.
//   - In one cluster of three etcd has users: instances, consoles and operators have the rights of
//     their roles, and no other.
//   - In one cluster of three a tag has a max_skew.
//   - In one cluster of three a tag has a strict order. Instances pass calls for it on to each other, over the network
//     of their links.
//   - Consoles keep mirrors, in half of the clusters. They lag and start anew, with a file or with
//     nothing. Recover finds them by the keys that they write, as far as etcd has not forgotten these,
//     or a console whose clock is ahead has not removed them. An operator goes on with recover's own
//     margin where mirrors saw every lease.
//   - Pods crash, come back with their journals, leave in good order and are taken away.
//   - Processes crash, stop, are cut off, frozen, deafened and doubled. They are led to
//     another etcd cluster that has a copy of the store.
//   - Power fails for all processes at once. History is compacted.
//   - etcd is restored from backups: after a power failure, while an instance is cut
//     off, or while answers of the old etcd are still under way.
//   - Leasing is halted. Journals are lost.
//   - Hundreds of processes that are gone are remembered, and answer no question.
//   - The clocks of consoles, of instances and of the operator's machine are hours off, or a day.
//   - A newer version of the program writes values with fields that this one does not
//     know, or in a format that it cannot read.
//
// One cluster of four has time-ordered IDs as well. There each room has instances that
// take, renew and give back workers, each with a wall clock of its own. The clocks are
// set, stand still, go at double speed and jump each millisecond: within what clocks may
// differ by in one half of these clusters, by up to an hour in the other. Such instances
// are paused, and start again within a millisecond. They lend workers to callers' processes, which
// miss answers, end without a word and issue until their windows are over. Layouts reserve ranges,
// from which clients of CosId take machine IDs. All machines sleep for minutes. A
// recover goes on without an instance that just took a worker, and has no answer yet.
//
// Some clusters require journals. There an operator confirms instances while etcd has
// forgotten nothing. In half of these clusters power fails for all processes, and raft's
// own data is rolled back meanwhile: journals show that, or nothing does.
//
// After a restore an operator recovers as the runbook says, sometimes at once, in one of
// these ways:
//
//   - With the journals of instances that do not run. The operator goes on without an
//     instance only if its memory is lost for good. The margin covers all leases ever
//     made; it is 1 if all of them are known.
//   - Without naming any instance to go on without: the recover must refuse by itself.
//   - With the word that the machines of some are off, where that is so.
//   - Without an instance that nobody has ever heard of, which counts as missing; or with a
//     misspelled name at first, which must change nothing.
//   - Without an instance that runs, with a small margin. Another room may then get the
//     range of that instance's room, or etcd's roles may not let the instance raise
//     another room's mark.
//
// Then everything heals, and the simulation checks the final state.
//
// At every step:
//
//  1. No ID is issued twice. The exception is an instance that a recover left out: IDs
//     that it leased before, above the recover's marks, may be issued twice. But none of
//     them may be leased by another process after the instance has leased again.
//  2. Each ID lies in a range that its room had by then. It is of a lease that its
//     process asked for and that counts: without an error, not refused, answered by the
//     pinned etcd cluster, at a revision above those shown before. All other leases are
//     leased and lost. No lease counts in three more cases: if raft's data was rolled
//     back, of a tag that lost a lease, before a recover has ended; of a tag with
//     settings of a newer format; and of an instance that was left out by a recover and
//     may not raise marks, until the marks reach the end of its earlier leases.
//  3. The store does not complain (ledgertest): marks never fall, no lease stands below
//     its floor or without its conditions, no key that is kept for ever is deleted.
//  4. No call fails with Internal, unless it cannot read a value that a newer version
//     wrote.
//  5. Recover goes on without an instance only if the operator named it. An instance
//     that answered recover, or an earlier process of its journal, never turns out to hold
//     more than it said, and raises no mark. What recover does not call missing is in etcd, or
//     known to those that answered: the operator gives no margin for it.
//  6. etcd's roles refuse only the raise of another room's mark.
//
// Of time-ordered IDs:
//
//   - No worker, tick and sequence of a tag are issued twice, whatever clocks show. The
//     exception is an ID that two processes issued before and after a recover which went
//     on without an instance, where the clock of one of them or of the recover was wrong
//     by more than clocks may be.
//   - The tick lies in a window that its process asked for and that counts, as a lease
//     does. The worker lies in a slice that its room had by the layout that the process
//     reported last, or by a later one.
//   - A process writes windows of its own only, and keeps the rules of ledgertest.
//   - A machine ID of CosId's clients lies in a reserved range, no room's worker with its number has
//     a window, and a client gets it from another one only if that was silent for longer than the
//     guard in the present epoch, or gave it back. A restore may forget that a number was given.
//   - When all clocks are right again, and the times of recovers without an instance are
//     over, every instance that is sure to find a worker issues every tag again.
//
// At the end, when late transactions have arrived and no more faults come, these must be
// true as well. IDs that were leased in a stretch that a restore lost, and that lie in no
// era, only have to keep 1 to 6.
//
//  7. Every migration ends, and each instance of a room that has a range issues
//     every tag again.
//  8. Each ID lies in an era of its room, in the range that the room had in the
//     layout of that era.
//  9. An ID of a strict tag was issued, or its use by a client ended, no later
//     than hold after the commit of the layout that followed the last one which
//     kept its segment. (This is not checked if the seed has stale reads: the promise
//     relies on linearizable ones.)
//  10. No ID of a layout was issued after the instance reported a newer one, unless the
//     newer one leaves the room all residues that it had. Migrations wait for these
//     reports.
//  11. An ID of a residue that a migration took from a room in one move, and gave to
//     another room in a later one, was not issued by the first room after that. Only an
//     instance that the migration went on without may do so: a silent or forgotten one,
//     or one that an operator waived. (This is not checked if the seed has stale reads.)
//  12. An ID of a tag with a strict order is larger than all that were answered in its room before its call began. An
//     instance that a recover left out may break that. An ID of a tag with max_skew is not below what a look allowed,
//     once the instance was answered a lease that read the marks 2 s or more after the look, or a second one that
//     read them after it. (This is not checked where etcd went back, or shows the past.)
//  13. Fields of a newer version are still there, if etcd forgot nothing.
//  14. The cluster passes ledgertest.CheckCluster.
//
// A set of seeds is weak, and fails, if it never met some kind of fault, or no write
// that was done although its caller was told that it failed.
//
// # Determinism
//
// The clock of a bubble stands still until all goroutines sleep. So two events at
// different times happen in the order of their times. Therefore the simulation sleeps
// before everything that it does, for a number of nanoseconds that the seed decides;
// the last digits are the sleeper's own. It draws a transaction's fate from the seed,
// the process, the keys that the transaction reads and writes, and how often the process
// has sent such a one. It does not draw it from the order in which goroutines came to
// ask. The random bits of nonces, epochs and names come from the seed, too
// (testing/cryptotest).
//
// Only the order of goroutines that wake at one instant is left. They run in the order
// of Go's scheduler, which is the same each time on one processor, except for the choices
// that Go itself makes by chance. So a process of this test uses one processor,
// TestSimulation starts as many processes as there are processors, and `make simulate`
// builds them with a runtime that decides nothing by chance: see package steady.
// TestReplay checks that. There a seed goes the same way again, to the last line of its
// transcript, even on a busy machine. A plain `go test` runs the same seeds, but a few
// lines of their transcripts, and all that follows from them, may differ.
//
// # What is missing
//
//   - A process cannot be frozen alone, as all processes share one clock. Instead the
//     simulation has a connection that carries nothing, either way, for a while, and
//     then everything at once.
//   - Go cannot copy the memory of a running process (its chains, its incarnation), as
//     cloning a machine does. A double is a process that was started under the other's
//     name, with an address and a journal of its own. Of two copies with one incarnation
//     the one that loses a heartbeat stops: a test in the ledger shows that
//     (testdata/beats.txt of package ledger). No test sees the IDs that both issue before.
//     Copies of a journal are missing as well.
//   - There is no gRPC: the services' methods are called directly. The listeners given
//     to the servers never accept, but those of doors in TestMoves.
//   - The cases that no process can see (docs/restore.md) are missing: a restore of an
//     etcd that was just born, or just restored, and a rollback of raft's own data. Such
//     a rollback is simulated only if the cluster requires journals, had leased IDs at
//     the backup, and keeps only journals that show the rollback to their instances.
//   - No mark is deleted by hand: a recover raises such a mark only if an instance or a
//     journal remembers it.
package sim
