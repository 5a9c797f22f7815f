// Command chaos tortures March. It runs a three-member etcd, rooms and consoles as real
// processes, and calls them. Each of their connections has a TCP proxy in it, except
// those of consoles to rooms and those that watch the run. Faults hit them by a seeded
// schedule, while operators migrate, skip and change tags. At the end the command
// heals everything and checks the whole record: every ID ever issued, etcd's history,
// and how long callers had to wait.
//
//	go run ./cmd/chaos --time 60s
//	go run ./cmd/chaos --time 10m --seed 7
//	go run ./cmd/chaos check DIR
//
// The seed decides which faults come in which order, which processes they hit, and for how
// long. Their effect depends on the machine's timing, too. So a seed leads to the same faults,
// not to the same run. The record of a run is in its directory (package runlog), and can be
// checked again.
//
// A run ends when its time is over. It fails by a broken promise: an ID twice or out of range,
// a process that panics or does not come back within 5 s of a fault, calls that fail while the
// reserve lasts, a migration that does not end. Package report has the whole list. A run that
// breaks is checked as far as it came. A run with too few faults to show anything is weak, and
// fails as well.
//
// The journals are on a disk of the run's own, so that the disk can be full and can hang. The
// run can mount such a disk as root on Linux, with loop devices. On other machines the log says
// that the run has no faults of the disk.
//
// Two tags have a strict order, one in each room and one over all rooms, with a tenure shorter than the
// pauses of instances. Instances pass calls for these on to each other over links of their own, which faults
// hold and cut.
//
// A run shows each feature and each move of the table in docs/proof.md, and a run of ten minutes or more in
// which one did not happen is weak. Layouts have a spare room or leave it out: it is new, drained, or lost, when
// all of it is killed and the migration goes on without. One tag has a quota, which some calls exceed. Upgrades
// replace all consoles and instances in good order, by the same build unless --previous names another one: then they
// start with that, and each upgrade goes from one build to the other, or back.
// Runs of odd seeds change boundaries. Those of even seeds have a tag with the worker last, which forbids that,
// and an instance with a worker of its own.
//
// Callers take IDs in each way that March has, by single calls, batches, contiguous ones, of several tags at
// once, by streams, by the Go client with segments and windows that it was lent, and at the doors for Redis,
// Leaf, TinyId and CosId, of tags with periods, with plain and with opaque texts, which they compare. Clients of CosId
// take machine IDs and give them back.
//
// Rooms, consoles and their callers speak TLS, with certificates that end after five minutes and are renewed
// each half a minute. etcd asks each process for its own user.
//
// Three tags have time-ordered IDs: one counts ms, one seconds, and one, in runs of even seeds, has the worker
// last. Faults set the clocks of instances wrong, too (package skew).
// The check compares the IDs with the windows of workers in etcd's history. The run does not measure how long
// their callers wait: after some restores, no window begins for 20 minutes.
//
// A fault is drawn from a deck that has each kind once. It begins, lasts for a while, and ends.
// Then all callers of all instances must get IDs again, and the run records how long that
// takes. Meanwhile another lane stops single processes for up to a minute; these are not
// measured.
//
// # Track record
//
// These are the defects that it found in March, and mistakes made on purpose. Each has the
// fault that showed it, and the command that finds it again in a tree without the repair:
//
//   - An instance that had written its registration again in the stretch that a
//     restore lost never leased again after march recover: it compared a mod
//     revision that does not exist (ledger, TestRecoverAfterServing).
//     chaos --only "restore etcd" --time 150s --seed 6
//   - Mistakes on purpose in windows (cmd/simulate has them), each made in march by go build
//     -overlay: a generator that does not look at its window, a window that begins below the
//     end of the one before, a renewal that does not look at the slice.
//     chaos --only "clock ahead,kill room" --time 20s --seed 5 --march MUTANT
//     chaos --only "kill whole room,kill room,clock a little back" --time 30s --seed 5 --march MUTANT
//     chaos --only "kill room,cut callers" --time 30s --seed 5 --march MUTANT
//   - A second march recover asks for processes that the first was told to go on
//     without, where an instance started in between and read their registrations.
//     It must be told so again; nothing is lost by it.
//     chaos --only "restore etcd" --time 120s --seed 6
package main
