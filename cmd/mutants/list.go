package main

import (
	"fmt"
	"strings"
)

// mistake is one that is made on purpose.
type mistake struct {
	name      string
	what      string
	with      string // the fault of the simulation that it shows under, where it shows under few
	pkg, test string // what finds it where the simulation cannot see it
	because   string // why it cannot
}

// mistakes is every one of them.
var mistakes = []mistake{
	// Leases.
	{name: "no-layout", what: "a lease does not compare the layout"},
	{name: "no-epoch", what: "a lease does not compare the epoch"},
	{name: "no-mark", what: "a lease does not compare the mark"},
	{name: "no-registration", what: "a lease does not compare the instance's registration"},
	{name: "no-tag", what: "a lease does not compare the tag's settings, so a skip does not hold at once"},
	{name: "no-floor", what: "the first lease under a layout does not ask for the floor"},
	{name: "floor-before-layout", what: "a floor counts that was read before the layout that it is used under"},
	{name: "stale-floor", what: "the floor is read without the condition on the layout, and counts though the snapshot was stale", with: "stale read"},
	{name: "floor-of-present-rooms", what: "a room's mark does not count any longer when the room has left the layout"},
	{name: "floor-without-margin", what: "the floor leaves out what a mark lacks of the epoch's margin total", with: "backup and restore"},
	{name: "margin-below-start", what: "the margin is added to a mark that lies below the tag's start and skip, where leases begin", pkg: "./allocator/ledger", test: "TestMarginLiesAboveSkips",
		because: "a tag would have to be skipped far above its marks, a backup taken before its next lease, and its room left out"},
	{name: "absent-has-total", what: "a mark that is absent counts with the epoch's margin total", pkg: "./allocator/ledger", test: "TestFloorOfANewTag",
		because: "a room whose mark is absent would have to have leased of a new tag in a history that was lost, and to be left out, before any other room leased more"},
	{name: "retry-forgets-mark", what: "after a refusal the base is made without the mark's next"},
	{name: "retry-is-success", what: "a lease that is refused is taken for done where the mark is what it would have been"},
	{name: "unknown-is-success", what: "a lease of which no answer came is taken for done"},
	{name: "from-the-end", what: "a segment that would go beyond the limit is computed down from it"},

	// Chains.
	{name: "never-outdated", what: "what is held stays over every layout, whatever the room has by it"},
	{name: "kept-over-boundary", what: "what is held stays where the range contains its range, under another boundary too"},
	{name: "put-back-whole", what: "a link that ends early is put back whole, with what was taken of it"},
	{name: "leased-and-kept", what: "what a client leases stays in the chain"},
	{name: "renewed-early", what: "a chain says that it is renewed when it only was told to be"},
	{name: "no-growth-check", what: "a segment below the last one is accepted", pkg: "./allocator", test: "TestSourceThatLies",
		because: "no segment is: the ledger's base is never below the mark that its instance remembers, whatever etcd says. It is for other sources"},
	{name: "gate-asked-before", what: "the gate is asked before an ID is taken, and not after", pkg: "./allocator", test: "TestGateShutsMeanwhile",
		because: "no time passes between the two in one goroutine: a bubble's clock stands still while one runs, and no process is frozen alone"},

	// Instances and consoles.
	{name: "gate-open", what: "a strict tag goes on under a layout that was not confirmed"},
	{name: "confirmed-when-answered", what: "a layout counts as confirmed from the answer on, instead of the sending"},
	{name: "whole-hold-for-clients", what: "clients of a strict tag may use IDs for a whole hold from when they lease them"},
	{name: "copy-unseen", what: "an instance registers again over the heartbeat of a copy of its process", pkg: "./allocator/ledger", test: "TestHeartbeatThatIsNotAsItWasLeft",
		because: "its doubles are processes of the same name, not copies of a memory"},
	{name: "moves-unreported", what: "a migration moves on before instances have reported", pkg: "./console", test: "TestMigrateWaiting",
		because: "an instance there reports within milliseconds of a move, and what its room keeps may be issued after it"},

	// Going back in time.
	{name: "old-report", what: "a report that a restore brought back lets a migration go on", pkg: "./allocator/ledger", test: "TestReportsOfAnEarlierEpochDoNotCount",
		because: "its version must not lie below that of the epoch, which a recover puts above all that it knows: one seed in five hundred has that"},
	{name: "report-before-recover", what: "a report of a layout from before the recover counts, where the instance registered since", pkg: "./allocator/ledger", test: "TestReportsOfAnEarlierEpochDoNotCount",
		because: "a recover has to take residues from a room, and a migration to give them away, before the instance adopts the recover's layout: one seed in a thousand has that"},
	{name: "raise-takes-total", what: "a recover that raises a mark writes its margin total into it, so that the mark lacks none", with: "backup and restore"},
	{name: "no-margin", what: "a recover adds no margin to the epoch's total", with: "backup and restore"},
	{name: "no-barrier", what: "an instance that answered recover still accepts the answer to an older lease", with: "restore with answers under way"},
	{name: "barrier-unseen", what: "an instance accepts a barrier without asking its own etcd for the halt", with: "rehearsal of a recover"},
	{name: "unconfirmed-answers", what: "recover does not ask again before it begins the epoch: an answer counts that was void by then", pkg: "./allocator/ledger", test: "TestRecoverAsksOnlyWhatMayHaveLeased",
		because: "an answer is void where its instance meets an epoch in force between two questions: one seed in some hundreds has that"},
	{name: "recover-by-store", what: "recover raises marks by what the store knows alone", with: "backup and restore"},
	{name: "recover-unanswered", what: "recover goes on without instances that did not answer", with: "backup and restore"},
	{name: "left-without-beat", what: "an instance that left after the backup counts as one that left before", pkg: "./allocator/ledger", test: "TestRecoverAsksOnlyWhatMayHaveLeased",
		because: "the operator of the simulation gives a margin over all that a process leased whose memory is gone, whatever recover says of it"},
	{name: "missed-epoch", what: "an epoch that was never seen counts, though its layout version is an old one", with: "rollback to before a recover"},
	{name: "all-answered", what: "an instance takes it that every recover had its answer", pkg: "./allocator/ledger", test: "TestOrphanRaisesAllRooms",
		because: "in few runs only does another room lease what the instance had issued, after the instance had leased again"},
	{name: "orphan-raises-nothing", what: "an instance that a recover went on without raises no mark over what it leased", with: "recover without an instance whose range is swapped"},
	{name: "orphan-raises-own", what: "an instance that a recover went on without raises its own room's mark only", pkg: "./allocator/ledger", test: "TestOrphanRaisesAllRooms",
		because: "in few runs only does another room lease what the instance had issued, after the instance had leased again"},
	{name: "recover-versions", what: "a recover's layout version is above those that are known only: a forgotten one comes again", pkg: "./allocator/ledger/recovery", test: "TestNewVersion",
		because: "an instance follows an epoch that it does not know whatever its layout version, so in few runs only does one mistake a layout for another"},
	{name: "epoch-counts", what: "the epoch counts up from what the store knows: it comes again after a second restore", with: "backup and restore"},
	{name: "no-beat", what: "the beat is not compared", with: "restore after a power failure"},
	{name: "journal-late", what: "the journal is written after IDs are issued, with the next lease", with: "restore after a power failure"},
	{name: "no-revision-check", what: "a lease counts that etcd wrote at a revision below those that it had shown", with: "old revision"},
	{name: "no-cluster-check", what: "another etcd cluster's answer counts", with: "other etcd"},
	{name: "blank-leases", what: "an instance without its journal leases, where one is required", with: "journals required"},

	// Windows of workers.
	{name: "no-window-check", what: "a generator issues ticks beyond its worker's window", with: "time-ordered IDs"},
	{name: "from-below-until", what: "a window begins where the one before began, below its end", with: "restart at once"},
	{name: "lowered-by-another", what: "a process that gives a worker back lowers the window that another process has by then", with: "pause"},
	{name: "slice-not-compared", what: "a worker is renewed that the room's slice does not have any longer", with: "time-ordered IDs"},
	{name: "window-no-layout", what: "a window is put without the condition on the layout", with: "time-ordered IDs"},
	{name: "window-no-key", what: "a window is put over a worker's key that was written since it was read", with: "time-ordered IDs"},
	{name: "not-before-ignored", what: "a window begins at once after a recover that went on without an instance", with: "time-ordered IDs"},
	{name: "read-back-of-any-epoch", what: "a window of which no answer came is gone on with, though it was leased before a recover", with: "recover while a worker is taken"},
}

// selected returns the mistakes to make.
func selected(only string) ([]mistake, error) {
	if only == "" {
		return mistakes, nil
	}
	names := make([]string, 0, len(mistakes))
	for _, m := range mistakes {
		if m.name == only {
			return []mistake{m}, nil
		}
		names = append(names, m.name)
	}
	return nil, fmt.Errorf("there is no mistake %q; there are %s", only, strings.Join(names, ", "))
}
