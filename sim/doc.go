// Package sim is a simulation of whole clusters, in its tests: many instances
// of many rooms and two consoles, all the real code (rooms, chains, ledger,
// consoles), over the store in memory that has every fault by name, in the time
// of testing/synctest. It stands above rooms and consoles, as a program does,
// and nothing imports it.
//
//	make simulate                                     # 1,000 seeds, and what they met
//	make simulate ARGS='-seed 42'                     # one of them again, and its schedule
//	go test ./sim                                     # fewer, fewer still with -short
//	go test ./sim -fuzz FuzzSimulation -parallel 1    # scripts instead of seeds
//	go test ./sim -run TestSimulation -with FAULT     # seeds that all have a fault, and often
//	make mutants                                      # that it finds mistakes: see sim/mutants
//
// A seed decides everything: which faults there are and how often, the layouts,
// rooms, tags and holds, who does what and when, and the fate of every
// transaction.
//
// # What one run is
//
// For some time processes issue IDs while operators plan, pause, abort and
// continue migrations, skip, change tags and forget instances, and while
// transactions meet their fates, processes crash, stop, are cut off, frozen,
// deafened and doubled, led to another etcd cluster that has a copy of the store,
// answers come late though requests arrive, power fails for all at once, heartbeats
// expire, history is compacted; and while etcd is restored from backups (after a
// power failure; while somebody is cut off; with answers of the old etcd under way
// still), leasing is fenced, marks are deleted by hand, journals are lost. Some
// clusters require journals: there an operator confirms instances for which nobody
// vouches, while etcd has forgotten nothing; and in half of them power fails for all,
// and raft's own data is rolled back meanwhile, which journals show, or nothing.
// Somebody recovers as the runbook says, at once sometimes: with the journals of
// those that do not run, and without an instance only where its memory is lost for good, with
// a margin over all that was ever leased, and of 1 where all is known; or naming
// nobody to go on without, and relying on being refused; or leaving somebody out
// who runs, with a small margin. Then all heals, and what must be true at last is
// checked.
//
// At every step:
//
//  1. No ID is issued twice: but for those that an instance leased before a recover
//     that left it out, above the marks of that, which may be.
//  2. Each ID lies in a range that its room had by then, and is of a lease that its
//     process asked for and that counts: no error, not refused, answered by the
//     pinned etcd cluster, at a revision above those shown before. The others are
//     leased and lost. Where raft's data was rolled back none counts of a tag that
//     lost a lease, before somebody has recovered.
//  3. The store's own complaints (ledgertest): marks never fall, no lease stands
//     below its floor or without its conditions, nothing that is kept for ever
//     is deleted.
//  4. No call fails for a reason that is nobody's (Internal).
//  5. Recover goes on without nobody who was not named; and an instance that
//     answered it never turns out to hold more than it said.
//
// At the end, when late transactions have arrived and no more faults come (what
// was leased in a stretch that a restore lost is held to 1 to 5 only, where it lies
// in no era):
//
//  6. Every migration ends, and each instance of a room that has a range issues
//     every tag again.
//  7. Each ID lies in an era of its room, in the range that the room had in the
//     layout of that era.
//  8. An ID of a strict tag was issued, or its use by a client ended, no later
//     than hold after the commit of the layout that replaced its own. (Not where
//     the seed has stale reads: that promise rests on linearizable ones.)
//  9. No ID of a layout was issued after the instance reported a newer one, which
//     is what migrations wait for.
//  10. An ID of a residue that a migration took from a room in one move, and gave
//     to another room in a later one, was not issued after that, unless by an
//     instance that the migration went on without: silent, forgotten, or waived by
//     an operator. (Not where the seed has stale reads.)
//  11. ledgertest.CheckCluster.
//
// A set of seeds in which a kind of fault was never met, or no write that was
// done although its caller was told that it failed, is weak and fails.
//
// # What is deterministic
//
// The clock of a bubble stands still until all goroutines sleep, so two things
// that happen at different times happen in that order. Hence everything that the
// simulation does is preceded by a sleep of so many nanoseconds as the seed says,
// of which the last digits are the sleeper's own; and what it draws for a
// transaction is drawn from the seed, the process, what the transaction reads and
// writes, and how often the process sent the like, not from the order in which
// goroutines came to ask. Random bits (of nonces, epochs, names) are the seed's, too
// (testing/cryptotest).
//
// Goroutines that wake at one instant are left: they run in the order of Go's
// scheduler, which is the same each time on one processor, but for what Go itself
// leaves to chance. So a process of this test uses one, TestSimulation starts as
// many as there are, and `make simulate` builds them with a runtime that decides
// nothing by chance, see package steady. TestReplay holds it to that: there a seed
// goes the same way again, to the last line of its transcript, on a busy machine,
// too. A plain `go test` runs the same seeds, and a few of their lines, and what
// comes after, may differ.
//
// # What is missing
//
//   - A process cannot be frozen alone, as all share one clock: what stands for it
//     is a connection that carries nothing, either way, for a while, and then all
//     of it.
//   - Copies of what a running process has in memory (its chains, its incarnation),
//     as a cloned machine is one: Go cannot make them. A double is a process that
//     was started under the other's name, at an address and with a journal of its
//     own. That of two copies with one incarnation the one that loses a heartbeat
//     stops is tested in the ledger (TestRunEndsWhenTheRegistrationIsLost); what both
//     issue before that, nobody sees. Copies of a journal are missing as well.
//   - gRPC: the services' methods are called directly. The listeners given to the
//     servers never accept.
//   - What the README says cannot be seen: a restore of an etcd that was just born,
//     or restored, and a rollback of raft's own data, but for one where the cluster
//     requires journals, had leased IDs at the backup, and keeps such journals only
//     as show it to whoever has them. A mark is deleted by hand only while leasing is
//     halted and nobody recovers yet; IDs of its room are then not held against eras,
//     which went with it.
package sim
