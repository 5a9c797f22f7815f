// Command chaos tortures March: a three-member etcd, rooms, consoles and
// callers, real processes with a TCP proxy in each of their connections (but those
// of consoles to rooms, and of who watches), and a seeded schedule of faults, while
// operators migrate, skip and change tags. At the end it heals everything and
// checks all that was seen: every ID ever issued, what etcd kept, and how long
// anybody had to wait.
//
//	go run ./cmd/chaos --time 60s
//	go run ./cmd/chaos --time 10m --seed 7
//	go run ./cmd/chaos check DIR
//
// The seed decides which faults come in which order, what they hit, and for how
// long; what the cluster makes of them depends on the machine's moods, too. So
// a seed leads to the same torture, not to the same run; what happened is in the
// run's directory (package record), and can be checked again.
//
// A run is over when its time is, and fails by a broken promise: an ID twice or
// out of range, a process that panics or does not come back within 5 s of a fault,
// calls that fail while the reserve lasts, a migration that does not end; package
// report has all of them. One that breaks is checked as far as it came. A run that
// met too few faults to show anything is weak, and fails as well.
//
// Life of a fault: it is drawn from a deck that has each kind once, begins, lasts
// for a while, ends; then all callers of all instances must be given IDs again,
// and the time that it takes is written down. Meanwhile another lane stops single
// processes for up to a minute; these are left out of what is measured.
//
// # Track record
//
// What it found in March, by which fault, and how to find it again in a tree
// without the repair:
//
//   - An instance that had written its registration again in the stretch that a
//     restore lost never leased again after march recover: it compared a mod
//     revision that does not exist (ledger, TestRecoverAfterServing).
//     chaos --only "restore etcd" --time 150s --seed 6
//   - A second march recover asks for processes that the first was told to go on
//     without, where an instance started in between and read their registrations.
//     It must be told so again; nothing is lost by it.
//     chaos --only "restore etcd" --time 120s --seed 6
package main
