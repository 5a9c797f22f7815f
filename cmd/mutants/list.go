package main

import (
	"fmt"
	"slices"
	"strings"
)

// mistake is one that is made on purpose.
type mistake struct {
	name      string
	what      string
	with      string // the fault of the simulation that it shows under, if few seeds have that
	seed      int    // one that found it lately, if few seeds find it: it is tried first
	pkg, test string // the test that finds it if the simulation cannot
	because   string // why the simulation cannot
}

// wrongClock is the fault by which the simulation finds mistakes in margins of periods.
const wrongClock = "clock hours off"

// noLives is why the simulation does not find mistakes in second lives.
const noLives = "the simulation deletes one tag, a counter without a period, and seldom loses leases of it"

// leftOutTwice is why the simulation does not find mistakes in what is free of not_before.
const leftOutTwice = "two instances must have had one number within a window's length, and one be left out"

// mistakes are all of them.
var mistakes = []mistake{
	// Leases.
	{name: "no-layout", what: "a lease does not compare the layout"},
	{name: "no-epoch", what: "a lease does not compare the epoch"},
	{name: "no-mark", what: "a lease does not compare the mark"},
	{name: "no-registration", what: "a lease does not compare the instance's registration"},
	{name: "no-tag", what: "a lease does not compare the tag's settings, so a skip does not hold at once"},
	{name: "no-floor", what: "the first lease under a layout does not read the floor"},
	{name: "floor-before-layout", what: "a floor counts although it was read before its layout"},
	{name: "stale-floor", seed: 35, what: "the floor is read without the condition on the layout, " +
		"and counts although the snapshot was stale", with: "stale read"},
	{name: "floor-of-present-rooms", what: "a room's mark no longer counts once the room has left the layout"},
	{name: "floor-without-margin", what: "the floor ignores the part of the epoch's margin total that a mark lacks",
		with: "backup and restore"},
	{name: "margin-below-start", what: "the margin is added to a mark that lies below the tag's start and skip, " +
		"where leases begin", pkg: "./allocator/ledger", test: "TestScripts",
		because: "the tag would have to be skipped far above its marks, a backup taken before its next lease, " +
			"and its room left out"},
	{name: "absent-has-total", what: "an absent mark counts with the epoch's margin total", pkg: "./allocator/ledger",
		test: "TestScripts",
		because: "a room without a mark must have leased IDs of a new tag in a lost history, and be left out, " +
			"before any other room leased more"},
	{name: "retry-forgets-mark", what: "after a refusal the base ignores the mark's next"},
	{name: "retry-is-success", what: "a refused lease counts as done if the mark is the same as the lease " +
		"would have made it"},
	{name: "unknown-is-success", what: "a lease without an answer counts as done"},
	{name: "from-the-end", what: "a segment that would go beyond the limit is computed down from it"},

	// Chains.
	{name: "never-outdated", what: "a chain keeps its IDs over every layout, whatever range the room has then"},
	{name: "kept-over-boundary", what: "a chain keeps its IDs if the new range contains the old one, " +
		"even under another boundary"},
	{name: "put-back-whole", what: "a link that ends early is put back whole, with the IDs that were taken from it"},
	{name: "leased-and-kept", what: "the IDs that a client leases stay in the chain"},
	{name: "renewed-early", what: "a chain reports that it is renewed when it was only told to renew"},
	{name: "no-growth-check", what: "a segment below the last one is accepted", pkg: "./allocator",
		test: "TestSourceThatLies",
		because: "the ledger never returns such a segment: its base is never below the mark that its instance " +
			"remembers, whatever etcd says. The check is for other sources"},
	{name: "gate-asked-before", what: "the gate is asked before an ID is taken, and not after", pkg: "./allocator",
		test: "TestGateShutsMeanwhile",
		because: "no time passes between the two in one goroutine: a bubble's clock stands still while one runs, " +
			"and no process is frozen alone"},

	// Instances and consoles.
	{name: "gate-open", seed: 31, what: "a strict tag goes on under a layout that was not confirmed"},
	{name: "confirmed-when-answered", what: "a layout counts as confirmed from the time of the answer, " +
		"and not of the request"},
	{name: "whole-hold-for-clients", what: "clients of a strict tag may use IDs for a whole hold after their lease"},
	{name: "copy-unseen", what: "an instance registers again over the heartbeat of a copy of its process",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "the simulation's doubles are processes of the same name, not copies of a memory"},
	{name: "moves-unreported", what: "a migration moves on before instances have reported", pkg: "./console",
		test: "TestMigrateWaiting",
		because: "an instance in the simulation reports within milliseconds of a move, " +
			"and IDs that its room keeps may be issued after the move"},

	// Going back in time.
	{name: "old-report", what: "a migration goes on because of a report that a restore brought back",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "the report's version must not be below the epoch's, which a recover puts above all that it knows: " +
			"one seed in five hundred has that"},
	{name: "report-before-recover", what: "a report of a layout from before the recover counts if the instance has " +
		"registered since", pkg: "./allocator/ledger", test: "TestScripts",
		because: "a recover has to take residues from a room, and a migration to give them away, " +
			"before the instance adopts the recover's layout: one seed in a thousand has that"},
	{name: "raise-takes-total", what: "a recover that raises a mark writes its margin total into it, " +
		"so that the mark counts as having it", with: "backup and restore"},
	{name: "raise-above-the-halt", what: "a mark that recover raises gets a margin total that no halt has yet",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "a recover of the simulation seldom breaks off after a raise, and then goes on without an instance"},
	{name: "raise-keeps-total", what: "a mark that recover raises keeps its old margin total, " +
		"so that earlier margins are added once more", pkg: "./allocator/ledger",
		test: "TestScripts",
		because: "it makes rooms go too far, and a duplicate only after a restore to before several recovers " +
			"whose own margins were exact"},
	{name: "mirror-lowered", what: "a mirror follows a mark down, as a restored store shows it",
		pkg: "./allocator/ledger/mirror", test: "TestMirrorNeverFalls",
		because: "recover would have to be without the instance that leased, and the mirror's console would have to " +
			"read the restored store first, which it does not while leasing is halted"},
	{name: "views-joined", what: "a mirror's view goes on over another connection",
		pkg: "./allocator/ledger/mirror", test: "TestViewIsOneConnection",
		because: "the simulation's operator knows what mirrors saw without their views"},
	{name: "vanished-is-left", what: "a process whose registration vanished from a mirror counts as one that left",
		pkg: "./allocator/ledger", test: "TestMirrorKnowsWhoLeft",
		because: "forgotten instances that run answer recover in the simulation"},
	{name: "mirrors-totals-ignored", what: "a recover does not take the margin totals that mirrors saw",
		pkg: "./allocator/ledger", test: "TestEpochThatOnlyMirrorsKnow",
		because: "only a mirror may have seen the recover that etcd forgot, and some instance mostly has, too"},
	{name: "mirrors-epoch-latest", what: "an epoch that only mirrors know counts as the one that the halt stopped",
		pkg: "./allocator/ledger", test: "TestEpochThatOnlyMirrorsKnow",
		because: "no instance may be in the epoch of the recover that etcd forgot, which is rare"},
	{name: "rehearsal-is-later", what: "a mirror that followed a rehearsal on a copy counts as one that saw all",
		pkg: "./allocator/ledger", test: "TestMirrorOfARehearsal",
		because: "the simulation's consoles follow no copy"},
	{name: "tombstone-over-a-living-tag", what: "a tag that a mirror saw takes the place of one that lives",
		pkg: "./allocator/ledger", test: "TestMirrorPutsTagsBackAsDeleted",
		because: "no ID comes twice by that: the tag only issues none"},
	{name: "gone-still-registered", what: "a mirror takes a process for registered whose registration a recover took " +
		"away", pkg: "./allocator/ledger/mirror", test: "TestRecoverBetweenTwoViews",
		because: "no ID comes twice by that: each recover asks for the process again"},
	{name: "no-margin", what: "a recover adds no margin to the epoch's total", with: "backup and restore"},
	{name: "no-barrier", what: "an instance that answered recover still accepts the answer to an older lease",
		with: "restore with answers under way"},
	{name: "barrier-unseen", what: "an instance accepts a barrier without reading the halt in its own etcd",
		with: "rehearsal of a recover"},
	{name: "unconfirmed-answers", what: "recover does not ask again before it begins the epoch: " +
		"an answer counts although it is void by then", pkg: "./allocator/ledger",
		test: "TestRecoverAsksOnlyWhatMayHaveLeased",
		because: "an answer is void if its instance sees an epoch in force between two questions: " +
			"one seed in some hundreds has that"},
	{name: "recover-by-store", what: "recover raises marks by the store alone", with: "backup and restore"},
	{name: "recover-unanswered", what: "recover goes on without instances that did not answer",
		with: "backup and restore"},
	{name: "left-without-beat", what: "an instance that left after the backup counts as one that left before",
		pkg: "./allocator/ledger", test: "TestRecoverAsksOnlyWhatMayHaveLeased",
		because: "the simulation's operator chooses a margin above all leases of a process without memory, " +
			"whatever recover says about it"},
	{name: "missed-epoch", what: "an epoch that the instance never saw counts, although its layout version " +
		"is an old one", with: "rollback to before a recover"},
	{name: "all-answered", what: "an instance assumes that every recover had its answer", pkg: "./allocator/ledger",
		test: "TestScripts",
		because: "only few runs have another room lease IDs that the instance had issued, " +
			"after the instance leased again"},
	{name: "orphan-raises-nothing", what: "an instance that a recover left out raises no mark over its earlier leases",
		seed: 264, with: "recover without an instance whose range is swapped"},
	{name: "present-floor", what: "an instance that a recover left out is covered by the floor of now, " +
		"which may have risen since another room read its own",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "another room must have read its floor and leased nothing, " +
			"while an instance of the one's own room went on"},
	{name: "orphan-raises-own", what: "an instance that a recover left out raises only its own room's mark",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "only few runs have another room lease IDs that the instance had issued, " +
			"after the instance leased again"},
	{name: "recover-versions", what: "a recover's layout version is only above the known ones: " +
		"a forgotten one comes again", pkg: "./allocator/ledger/record", test: "TestRecoverVersion",
		because: "an instance follows an unknown epoch whatever its layout version, " +
			"so only few runs have an instance mistake a layout for another"},
	{name: "epoch-counts", what: "the epoch counts up from the store's last one: it comes again after a second restore",
		with: "backup and restore"},
	{name: "no-beat", what: "the beat is not compared", with: "restore after a power failure"},
	{name: "journal-late", seed: 40, what: "the journal is written after IDs are issued, with the next lease",
		with: "restore after a power failure"},
	{name: "no-revision-check", what: "a lease counts although etcd wrote it at a revision below one that it had shown",
		with: "old revision"},
	{name: "suspicion-keeps-check", what: "a lease counts whose answer comes while a suspicion stands",
		pkg: "./allocator/ledger", test: "TestLeaseUnderASuspicion",
		because: "a restore ends the connection of the lease, too"},
	{name: "no-cluster-check", what: "another etcd cluster's answer counts", with: "other etcd"},
	{name: "blank-leases", what: "an instance without its journal leases although journals are required",
		with: "journals required"},

	// Windows of workers.
	{name: "no-window-check", what: "a generator issues ticks beyond its worker's window", with: "time-ordered IDs"},
	{name: "from-below-until", what: "a window begins at the start of the previous one, below its end",
		with: "restart at once"},
	{name: "lowered-by-another", seed: 33, what: "a process that gives a worker back lowers the window of the " +
		"worker's next owner", with: "pause"},
	{name: "own-rooms-keys", what: "who takes a number reads its own room's keys only",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "few seeds move a number that has a window to a room that takes it then"},
	{name: "key-of-before-ignored", what: "the key that all rooms wrote for a number before counts no longer " +
		"once rooms write keys of their own", pkg: "./allocator/ledger",
		test:    "TestScripts",
		because: "the simulation's clusters have the newest formats from the beginning"},
	{name: "goes-on-over-others", what: "a process goes on with a number that another room has had since",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "a process would have to keep a window over two moves, and another room to take the number " +
			"between them"},
	{name: "client-of-another-room",
		what: "a room takes another one's word that its client of a machine ID has ended, " +
			"or that a client has the number of another one", pkg: "./allocator/ledger",
		test: "TestScripts", because: "the simulation's rooms do not lie"},
	{name: "client-own-key-only", what: "who gives a machine ID compares its own room's key only",
		pkg: "./allocator/ledger/machine", test: "TestManyAtOnce",
		because: "the simulation has no clients of CosId"},
	{name: "stopped-and-unseen",
		what: "windows begin soon after a recover without a machine that is off, although no " +
			"mirror saw whether it lent workers", pkg: "./allocator/ledger", test: "TestScripts",
		because: "another instance must take the number that a caller goes on with: few seeds have that"},
	{name: "stopped-lender",
		what: "windows begin soon after a recover without a machine that is off, although its room " +
			"lent workers", pkg: "./allocator/ledger", test: "TestScripts",
		because: "another instance must take the number that a caller goes on with: few seeds have that"},
	{name: "stopped-that-answers", what: "recover believes that the machine of an instance that answers is off",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "the simulation's operator says so only of machines that are off"},
	{name: "slice-not-compared", what: "a worker is renewed although it left the room's slice",
		with: "time-ordered IDs"},
	{name: "window-no-layout", what: "a window is written without the condition on the layout",
		with: "time-ordered IDs"},
	{name: "window-no-key", what: "a window is written over a worker's key that changed since it was read",
		with: "time-ordered IDs"},
	{name: "not-before-ignored", what: "a window begins at once after a recover that went on without an instance",
		with: "time-ordered IDs"},
	{name: "own-by-another-room", what: "a process takes another room's word that a window is its own",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "the simulation's rooms do not lie"},
	{name: "raised-by-another-room", what: "recover takes another room's key for one that covers a lost window",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "the simulation's rooms do not lie"},
	{name: "free-of-another", what: "a number that was free of an earlier not_before is free of each later one",
		pkg: "./allocator/ledger", test: "TestScripts", because: leftOutTwice},
	{name: "freed-by-one-before", what: "recover frees a number by the word of an owner before the last one",
		pkg: "./allocator/ledger", test: "TestScripts", because: leftOutTwice},
	{name: "same-not-before", what: "a recover without an instance repeats the not_before of another one",
		pkg: "./allocator/ledger", test: "TestScripts", because: leftOutTwice},
	{name: "freed-when-over", what: "recover frees a number whose window is over by some clock",
		pkg: "./allocator/ledger", test: "TestScripts", because: leftOutTwice},
	{name: "read-back-of-any-epoch", what: "a process goes on with a window that got no answer, " +
		"although the window was leased before a recover", with: "recover while a worker is taken"},

	// Recover, entering an epoch and leaving.
	{name: "answer-of-the-one-before", what: "the answer of a process counts for the next one of its name, " +
		"which leased since", pkg: "./allocator/ledger", test: "TestScripts",
		because: "a recover must be given an older copy of a journal, or a void answer of a process that leased later"},
	{name: "not-in-the-stopped-epoch", what: "an instance that answered keeps what it holds, although the recover " +
		"before went on without it", pkg: "./allocator/ledger", test: "TestScripts",
		because: "another instance of its room must lease between two recovers, of which one leaves it out"},
	{name: "known-raises", what: "an instance that was cut off between two recovers raises marks, or halts",
		pkg: "./allocator/ledger", test: "TestScripts", because: "no ID comes twice by that"},
	{name: "epoch-not-journaled", what: "an instance enters an epoch without a note in its journal",
		pkg: "./allocator/ledger", test: "TestScripts", because: "no ID comes twice by that, only halts without end"},
	{name: "epoch-journaled-first", what: "an instance that was left out notes the epoch before it raises the marks",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "it must end between the note and the raise"},
	{name: "journal-failed", what: "a lease counts although the journal could not be written",
		pkg: "./allocator/ledger", test: "TestLeaseWithoutItsJournalIsLost",
		because: "the journals of the simulation can be written, or not before a lease either"},
	{name: "covers-unseen", what: "a leaving instance covers the processes before it, although etcd has not shown " +
		"their leases", pkg: "./allocator/ledger", test: "TestScripts",
		because: "etcd must go back unseen between two processes of a name, and the second one leave"},
	{name: "leave-unchecked", what: "an instance leaves after a heartbeat over a connection that was not checked",
		pkg: "./allocator/ledger", test: "TestLeaveTakesACheckedHeartbeat",
		because: "two backups of one history must be restored, the older one first (the model has that)"},
	{name: "went-back-unseen", what: "recover goes on although etcd went back while it asked",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "the simulation restores no backup while a recover runs"},
	{name: "changes-of-another", what: "recover asks a new process at an address for changes since the answer of " +
		"another one", pkg: "./allocator/ledger", test: "TestRecoverAsksTheNextProcessOfAnAddressForAll",
		because: "each process of the simulation has an address of its own"},
	{name: "displaced-answer-counts",
		what: "an answer counts although another process is at its address before it is " +
			"confirmed", pkg: "./allocator/ledger", test: "TestRecoverAsksTheNextProcessOfAnAddressForAll",
		because: "each process of the simulation has an address of its own"},
	{name: "named-not-missing", what: "an instance that the operator names, and nobody remembers, is not missing",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "an instance that all have forgotten must have leased what comes again: few seeds have that"},
	{name: "typo-accepted", what: "an instance of a room that never was may be named", with: "backup and restore"},
	{name: "halt-is-silence", what: "a client of CosId counts as silent while leasing is halted",
		with: "time-ordered IDs"},
	{name: "machine-of-a-worker", seed: 39, with: "time-ordered IDs",
		what: "a client gets the number of a room's worker whose window is not over"},
	{name: "total-of-the-store", what: "recover ignores the margin totals of memories",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "the store must have forgotten a recover, and the next leases lie above its margin anyway"},
	{name: "margin-for-a-day", what: "a margin counts in periods that begin in the next 25 hours, not 49",
		pkg: "./allocator/ledger", test: "TestPeriodsOverRecovers",
		because: "the clocks of a recover and of a lost instance must be off by a day each, one behind, one ahead"},
	{name: "margin-where-opened", what: "a margin counts only for the lease that opens a period",
		pkg: "./allocator/ledger", test: "TestPeriodsOverRecovers",
		because: "one seed in thirty has another room open the period before the recover"},
	{name: "no-margin-in-a-period", what: "no margin is left free above the marks of a tag with a " +
		"period", with: wrongClock},
	{name: "period-without-margin", what: "the first lease in a period lies at the period's first ID, whatever " +
		"margins count there", with: wrongClock},
	{name: "margin-opens-a-period", what: "a margin takes a lease into a period that has not begun",
		pkg: "./allocator/ledger", test: "TestPeriodsOverRecovers",
		because: "such an ID is dated ahead, and no duplicate"},
	{name: "nonce-unchecked", what: "a caller goes on with a worker of which it shows a nonce that was used before",
		pkg: "./room", test: "TestLend",
		because: "a clone of a caller issues what the caller issues before it asks for the next window"},
	{name: "no-read-back", what: "a machine ID is given without being read back",
		pkg: "./allocator/ledger/machine", test: "TestNumberIsReadBack",
		because: "etcd must go back between two requests of one call, and no instance be asked for machine IDs"},

	// Second lives of names.
	{name: "tombstone-ignored", what: "a new tag takes nothing over from the deleted tag of its name",
		pkg: "./allocator/ledger", test: "TestScripts", because: noLives},
	{name: "least-ignored", what: "a margin need not lie above the starts and skips of earlier lives",
		pkg: "./allocator/ledger", test: "TestScripts", because: noLives},
	{name: "start-below-the-old-life", what: "a new tag with another period begins below the end of the old one's IDs",
		pkg: "./allocator/ledger", test: "TestScripts", because: noLives},
	{name: "later-epoch", what: "a new tag of time-ordered IDs may count time from later than the deleted one did",
		pkg: "./allocator/ledger", test: "TestScripts", because: noLives},
	{name: "skip-of-present-rooms", what: "a skip of all rooms does not hold for a room that comes later",
		pkg: "./allocator/ledger", test: "TestScripts",
		because: "a later room's floor lies above the marks of the others, so that no ID comes twice"},
}

// selected returns the mistakes to make: those with names, which commas separate.
func selected(names string) ([]mistake, error) {
	if names == "" {
		return mistakes, nil
	}
	wanted := strings.Split(names, ",")
	todo := slices.DeleteFunc(slices.Clone(mistakes), func(m mistake) bool { return !slices.Contains(wanted, m.name) })
	if len(todo) < len(wanted) {
		return nil, fmt.Errorf("%q are not all mistakes of list.go", wanted)
	}
	return todo, nil
}
