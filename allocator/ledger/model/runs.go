package main

import (
	"fmt"
	"slices"
	"strings"
)

// run is one question to the model.
type run struct {
	kind    string // holds, mutant or limit
	name    string
	what    string // the question, or the broken part
	options string // of the model, without the mutant's own
	states  int64  // the fewest that must be met: as many as spin 6.5.2 met when they were recorded, less 1%
	large   bool   // left out by -quick
	deep    bool   // of a mutant or limit: search depth first, where breadth first (the shortest way) takes too long
}

const (
	holds  = "holds"  // no ID is issued twice, and all states were met
	mutant = "mutant" // the protocol is broken in one place: an ID is issued twice
	limit  = "limit"  // an assumption is taken away: an ID is issued twice, as README says
)

// runs has every run of the three models.
var runs = slices.Concat(segmentRuns, windowRuns, lifeRuns)

// segmentRuns are the runs of march.pml.
var segmentRuns = []run{
	{holds, "any-layout", "two rooms under any layout after any other",
		"", 485111, false, false},
	{holds, "boundary-3", "the same, with boundaries up to 3",
		"IDS=6 STEP=1 BOUNDARY=3", 2669879, true, false},
	{holds, "three-layouts", "three layouts in a row",
		"IDS=4 STEP=1 CHANGES=2", 699328, false, false},
	{holds, "room-mates", "two instances in one room, one in the other",
		"INSTANCES=3 IDS=3", 509177, false, false},
	{holds, "late", "a request arrives after its sender gave up",
		"IDS=3 LATE=1", 278883, false, false},
	{holds, "stale", "a member of etcd answers from the past",
		"IDS=4 STEP=1 SNAPSHOTS=2", 1134771, false, false},
	{holds, "skip", "an operator raises marks",
		"IDS=3 STEP=1 RAISES=1", 267492, false, false},
	{holds, "margin-any-layout", "a recover with a margin, without a restore, among any layouts",
		"NO_KILLS IDS=5 STEP=1 RUNS=1 MARGIN=1", 3347890, true, false},

	{holds, "restore", "etcd goes back to a backup, and all instances answer recover",
		"SMALL IDS=2 RESTORES=1", 355877, false, false},
	{holds, "restore-any-layout", "the same with boundaries up to 2",
		"IDS=2 STEP=1 RESTORES=1", 5483613, true, false},
	{holds, "restore-room-mates", "the same with two instances in one room",
		"SMALL INSTANCES=3 IDS=2 RESTORES=1 CHANGES=0", 815432, false, false},
	{holds, "restore-three-layouts", "a restore among three layouts",
		"SMALL IDS=1 RESTORES=1 CHANGES=2", 591400, false, false},
	{holds, "restore-twice", "two restores of one backup, with a change of layout",
		"SMALL IDS=2 RESTORES=2", 6316168, true, false},
	{holds, "restore-late", "a request that was sent before a restore reaches etcd after it",
		"SMALL IDS=1 RESTORES=1 LATE=1", 235722, false, false},
	{holds, "forget", "an operator forgets an instance, before or after a restore",
		"SMALL IDS=1 RESTORES=1 FORGETS=1", 441448, false, false},
	{holds, "leave", "an instance leaves in good order between two backups, and both are restored",
		"ONE_ROOM NO_KILLS IDS=2 RESTORES=2 BACKUPS=2 LEAVES=1 RUNS=1", 348590, false, false},
	{holds, "recover-restored", "etcd goes back to a halted backup while recover runs",
		"ONE_ROOM NO_KILLS IDS=1 RESTORES=2 BACKUPS=2 HALTED_BACKUP RUNS=1", 10834, false, false},
	{holds, "rollback", "raft's own data goes back to before a recover that every instance has seen",
		"SMALL NO_RESENT IDS=2 ROLLBACKS=1 RUNS=2 CHANGES=0", 230251, false, false},
	{holds, "rollback-twice", "the same two times in a row, with a change of layout",
		"SMALL NO_KILLS NO_RESENT IDS=1 ROLLBACKS=2 RUNS=3", 1557864, false, false},

	{holds, "margin", "an instance is left out, and the margin covers it, with a change of layout",
		"SMALL NO_KILLS NO_RESENT IDS=4 RESTORES=1 MARGIN=1", 1628406, false, false},
	{holds, "margin-start", "the same in one room, where the tag's start lies above its marks by as much as a margin",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=5 START=2 RESTORES=1 MARGIN=1", 177869, false, false},
	{holds, "margin-journal", "the same in one room, where a name restarts without its journal",
		"ONE_ROOM NO_KILLS NO_RESENT LOST_JOURNAL IDS=3 RESTORES=1 MARGIN=1", 2094112, true, false},
	{holds, "margin-idle", "the same over two recovers, in between which the tag may stay idle",
		"ONE_ROOM EARLY NO_KILLS NO_RESENT LOST_JOURNAL IDS=3 RESTORES=1 RUNS=2 MARGIN=1", 1544507, false, false},
	{holds, "left-out", "an instance is left out without a margin, and returns, with a change of layout",
		"SMALL NO_RESENT ORPHANS IDS=2 RESTORES=1", 2422790, true, false},
	{holds, "left-out-raised", "the same from a backup of the start, where an operator raises marks",
		"SMALL EARLY NO_KILLS NO_RESENT ORPHANS IDS=2 RESTORES=1 RAISES=1 CHANGES=1", 300777, false, false},
	{holds, "left-out-margin", "an instance is left out with a margin that may cover it, and returns, " +
		"with a change of layout",
		"SMALL EARLY NO_KILLS NO_RESENT ORPHANS IDS=4 RESTORES=1 MARGIN=1 CHANGES=1", 191769, false, false},
	{holds, "left-out-twice", "the same over two restores of one backup",
		"ONE_ROOM NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=2", 800793, false, false},
	{holds, "barrier", "the barrier is refused, its answer is lost, recover is broken off and run again; and kills",
		"ONE_ROOM EARLY NO_RESENT ORPHANS REFUSED LOST_ANSWERS IDS=1 RESTORES=1 RUNS=2", 293235, false, false},

	{holds, "whole", "left out or not, with a change of layout, refused barriers, lost answers, recover run again",
		"SMALL EARLY NO_KILLS NO_RESENT ORPHANS REFUSED LOST_ANSWERS IDS=2 RESTORES=1 RUNS=2", 1538552, false, false},
	{holds, "whole-twice", "the same over two restores, in one room",
		"ONE_ROOM EARLY NO_KILLS NO_RESENT ORPHANS REFUSED LOST_ANSWERS IDS=2 RESTORES=2 RUNS=2", 4426786, true, false},

	{mutant, "NO_LAYOUT", "a lease does not compare the layout",
		"SMALL NO_KILLS IDS=2", 6293, false, false},
	{mutant, "NO_FLOOR", "the first lease under a layout does not ask for the floor",
		"SMALL NO_KILLS IDS=2", 3795, false, false},
	{mutant, "FLOOR_BEFORE_LAYOUT", "the floor is read before the layout that it is used under",
		"SMALL NO_KILLS IDS=2", 23472, false, false},
	{mutant, "STALE_FLOOR", "the floor may come from a stale snapshot, without the condition on the layout",
		"SMALL NO_KILLS IDS=2 SNAPSHOTS=1", 47275, false, false},
	{mutant, "RAISE_STAMPS", "a raise writes the new stamp, so that the next lease passes by the floor",
		"SMALL NO_KILLS IDS=4 RAISES=1", 182208, false, false},
	{mutant, "UNKNOWN_IS_SUCCESS", "a lease without an answer counts as done",
		"SMALL ROOM_MATES NO_KILLS IDS=2", 2253, false, false},
	{mutant, "MARK_DELETED", "a room's mark goes when the room leaves the layout",
		"SMALL NO_KILLS IDS=2 CHANGES=2", 13136, false, false},
	{mutant, "RETRY_FORGETS", "after a refusal the base is made without the mark's next",
		"SMALL ROOM_MATES NO_KILLS IDS=2", 7000, false, false},
	{mutant, "NO_EPOCH", "neither leases nor stamps have an epoch",
		"SMALL NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=1 CHANGES=1", 664816, false, false},
	{mutant, "EPOCH_COUNTS", "the epoch counts up from the one in the store: it comes again after a second restore",
		"ONE_ROOM NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=2", 47223, false, true},
	{mutant, "NO_REGISTRATION", "a lease does not compare the instance's registration",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 RESTORES=1 FORGETS=1", 92358, false, false},
	{mutant, "FORGET_UNCHECKED", "an instance is forgotten in a store that was restored, " +
		"so that recover does not ask it",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 RESTORES=1 FORGETS=1", 114538, false, false},
	{mutant, "LEFT_AT_ANY_REVISION", "recover does not ask an instance that left, though it left after the backup",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 RESTORES=1 LEAVES=1 RUNS=1", 28918, false, false},
	{mutant, "LEAVE_UNCHECKED", "an instance leaves over an unchecked connection, at a revision that comes again",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=2 RESTORES=2 BACKUPS=2 LEAVES=1 RUNS=1", 1966270, false, false},
	{mutant, "NO_BARRIER", "an instance that answered recover still accepts the answer to an older lease",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 RESTORES=1", 38151, false, false},
	{mutant, "REFUSED_COUNTS", "an instance that refused the barrier counts as one that answered",
		"ONE_ROOM NO_KILLS NO_RESENT ORPHANS REFUSED IDS=1 RESTORES=1", 176861, false, false},
	{mutant, "BARRIER_IS_ENOUGH", "an instance that accepted any barrier takes itself for one that the epoch lists",
		"ONE_ROOM NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=1 RUNS=2", 7789, false, true},
	{mutant, "LISTED_IS_ENOUGH", "an instance that the epoch lists goes on, though it was not in the epoch before",
		"ONE_ROOM EARLY NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=1 RUNS=2", 12321, false, true},
	{mutant, "STOPPED_OF_THE_STORE", "recover takes the restored store's epoch for the latest, " +
		"though an answer knows better",
		"ONE_ROOM EARLY NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=2", 67808, false, true},
	{mutant, "FORGOTTEN_ROOM", "a room that the restored store has forgotten does not go back into the layout's list",
		"SMALL NO_KILLS NO_RESENT IDS=1 RESTORES=1 CHANGES=1", 137975, false, false},
	{mutant, "RECOVER_OVER_A_RESTORE", "recover writes the epoch though etcd went back since it raised the marks",
		"ONE_ROOM NO_KILLS NO_RESENT HALTED_BACKUP IDS=1 RESTORES=2 BACKUPS=2 RUNS=1", 57882, false, false},
	{mutant, "NO_MARGIN", "the floor does not add the margin",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 RESTORES=1 MARGIN=1", 55563, false, false},
	{mutant, "MARGIN_IN_IDS", "the margin is counted in IDs of the room, and not in the blocks that a lease may span",
		"ROOM_MATES NO_KILLS NO_RESENT IDS=3 STEP=1 BOUNDARY=2 RESTORES=1 MARGIN=1 CHANGES=0", 472184, false, false},
	{mutant, "MARGIN_BELOW_START", "the margin is added to a mark that lies below the tag's start, where leases begin",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=5 START=2 RESTORES=1 MARGIN=1", 95040, false, false},
	{mutant, "LAST_MARGIN", "the floor adds the margin of the last recover, and not what the mark lacks of the total",
		"ONE_ROOM EARLY NO_KILLS NO_RESENT LOST_JOURNAL IDS=1 RESTORES=1 RUNS=2 MARGIN=1", 624604, false, false},
	{mutant, "JOURNAL_NOT_MISSED", "an instance that started without its journal answers for the incarnation before",
		"ONE_ROOM NO_KILLS NO_RESENT LOST_JOURNAL IDS=1 RESTORES=1 RUNS=1 MARGIN=1", 19587, false, true},
	{mutant, "ORPHAN_KEEPS_CHAIN", "an instance that was left out keeps its chain when it meets the epoch",
		"ONE_ROOM NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=1", 103383, false, false},
	{mutant, "ORPHAN_TAKES_ANSWER", "an instance that was left out takes an answer that it had not read",
		"ONE_ROOM NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=1", 111611, false, false},
	{mutant, "ORPHAN_LOOKS_AT_ITS_OWN", "an instance that was left out looks at its own room's mark only",
		"SMALL EARLY NO_KILLS NO_RESENT ORPHANS IDS=2 RESTORES=1 RAISES=1 CHANGES=1", 13196, false, true},
	{mutant, "ORPHAN_RAISES_ITS_OWN", "an instance that was left out raises its own room's mark only",
		"SMALL NO_KILLS NO_RESENT ORPHANS IDS=2 RESTORES=1 CHANGES=1", 108710, false, true},
	{mutant, "ORPHAN_LOOKS_AT_THE_PRESENT_FLOOR", "an instance that was left out looks at the floor of now, " +
		"and not at the one when the epoch began",
		"SMALL EARLY NO_KILLS NO_RESENT ORPHANS IDS=2 RESTORES=1 RAISES=1 CHANGES=1", 165199, false, true},
	{mutant, "RAISE_UNDER_ANY_LAYOUT", "the transaction that raises all marks does not compare the layout",
		"SMALL NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=1 CHANGES=1", 755474, false, false},
	{mutant, "KNOWN_TO_ANY_EPOCH", "an instance that the recover before took counts as known, and raises nothing",
		"ONE_ROOM NO_KILLS NO_RESENT ORPHANS IDS=1 RESTORES=1 RUNS=2", 7789, false, true},
	{mutant, "JOURNAL_FIRST", "an instance that was left out journals the epoch before it raises the " +
		"marks, and crashes",
		"ONE_ROOM NO_RESENT ORPHANS IDS=1 RESTORES=1", 20336, false, true},
	{mutant, "UNSEEN_IS_NEW", "an epoch that an instance never saw is new to it, whatever its layout version",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 ROLLBACKS=1 RUNS=1", 22720, false, false},

	{limit, "CARRIED", "an answer is taken though it came over another connection than the one that was checked",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 RESTORES=1 LATE=1", 35903, false, false},
	{limit, "UNSEEN_RESTORE", "the look at the beat does not see the restore",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 RESTORES=1", 15339, false, false},
	{limit, "LEFT_OUT", "recover goes on without an instance and without a margin",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=1 RESTORES=1", 52099, false, false},
	{limit, "SMALL_MARGIN", "the margin is smaller than what the instance that was left out leased",
		"ONE_ROOM NO_KILLS NO_RESENT IDS=3 RESTORES=1 MARGIN=1", 885207, false, false},
}

// file is the name of r's model.
func (r run) file() string {
	switch {
	case slices.Contains(windowRuns, r):
		return "workers.pml"
	case slices.Contains(lifeRuns, r):
		return "lives.pml"
	}
	return "march.pml"
}

// defines returns spin's options for r.
func (r run) defines() []string {
	args := make([]string, 0, 8)
	for _, option := range strings.Fields(r.options) {
		args = append(args, "-D"+option)
	}
	switch r.kind {
	case mutant:
		args = append(args, "-DMUTANT_"+r.name)
	case limit:
		args = append(args, "-DLIMIT_"+r.name)
	}
	return args
}

// verdict returns what is wrong with the outcome of r, or an empty text.
func (r run) verdict(o outcome, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case r.kind != holds && !o.violated:
		return fmt.Sprintf("%s %s was not caught: no ID was issued twice", r.kind, r.name)
	case r.kind == holds && o.violated:
		return fmt.Sprintf("%s: an ID was issued twice; `-replay %s` shows how", r.name, r.name)
	case r.kind == holds && !o.complete:
		return fmt.Sprintf("%s: not all states were met within the bounds of memory and depth", r.name)
	case o.states < r.states:
		return fmt.Sprintf("%s met %d states, fewer than the %d recorded: the model shrank", r.name, o.states, r.states)
	}
	return ""
}

// result is r's entry in the table.
func (r run) result(verdict string) string {
	switch {
	case verdict != "":
		return "FAILED"
	case r.kind == holds:
		return "unique"
	}
	return "caught"
}

// find returns the run of a name.
func find(name string) (run, error) {
	names := make([]string, 0, len(runs))
	for _, r := range runs {
		if r.name == name {
			return r, nil
		}
		names = append(names, r.name)
	}
	return run{}, fmt.Errorf("there is no run %q; there are %s", name, strings.Join(names, ", "))
}
