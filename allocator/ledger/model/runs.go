package main

import (
	"fmt"
	"strings"
)

// run is one question to the model.
type run struct {
	kind    string // holds, mutant or limit
	name    string
	what    string // what is asked, or what is broken
	options string // of march.pml, without the mutant's own
	states  int64  // the fewest that must be met: what spin 6.5.2 met when it was recorded, less 1%
	large   bool   // left out by -quick
	deep    bool   // of a mutant or limit: search depth first, where breadth first (the shortest way) takes too long
}

const (
	holds  = "holds"  // no ID is issued twice, and all states were met
	mutant = "mutant" // the protocol broken in one place: an ID is issued twice
	limit  = "limit"  // an assumption taken away: an ID is issued twice, as README says
)

// runs is everything that is asked of the model.
var runs = []run{
	{holds, "any-layout", "two rooms under any layout after any other",
		"", 987039, false, false},
	{holds, "boundary-3", "the same, with boundaries up to 3",
		"IDS=6 STEP=1 BOUNDARY=3", 5747252, true, false},
	{holds, "three-layouts", "three layouts in a row",
		"IDS=4 STEP=1 CHANGES=2", 2023916, true, false},
	{holds, "room-mates", "two instances in one room, one in the other",
		"INSTANCES=3 IDS=3", 1883926, true, false},
	{holds, "late", "a request arrives after its sender gave up",
		"IDS=3 LATE=1", 538952, false, false},
	{holds, "stale", "a member of etcd answers from the past",
		"IDS=4 STEP=1 SNAPSHOTS=2", 2441330, true, false},
	{holds, "skip", "a helper raises marks",
		"IDS=3 STEP=1 RAISES=1", 627460, false, false},
	{holds, "restore", "etcd goes back to a backup, and recover",
		"IDS=2 STEP=1 BOUNDARY=1 RESTORES=1", 1032319, false, false},
	{holds, "restore-any-layout", "the same with boundaries up to 2",
		"IDS=2 STEP=1 BOUNDARY=2 RESTORES=1", 6840749, true, false},
	{holds, "restore-room-mates", "the same with two instances in one room",
		"INSTANCES=3 IDS=2 STEP=1 BOUNDARY=1 RESTORES=1 CHANGES=0", 2850539, true, false},
	{holds, "restore-three-layouts", "a restore among three layouts",
		"IDS=1 STEP=1 BOUNDARY=1 RESTORES=1 CHANGES=2", 2762606, true, false},
	{holds, "restore-twice", "two restores of one backup",
		"IDS=2 STEP=1 BOUNDARY=1 RESTORES=2", 11628669, true, false},
	{holds, "restore-late", "a late request and a restore",
		"IDS=1 STEP=1 BOUNDARY=1 RESTORES=1 LATE=1", 480560, false, false},
	{holds, "forget", "an operator forgets an instance, before or after a restore",
		"IDS=1 STEP=1 BOUNDARY=1 RESTORES=1 FORGETS=1", 1563812, false, false},
	{holds, "fence", "a halt that was a mistake, or on purpose, and recover",
		"IDS=3 STEP=1 BOUNDARY=1 FENCES=1", 1364149, false, false},

	{mutant, "NO_LAYOUT", "a lease does not compare the layout",
		"NO_KILLS IDS=4", 478811, false, false},
	{mutant, "NO_FLOOR", "the first lease under a layout does not ask for the floor",
		"NO_KILLS IDS=4", 356400, false, false},
	{mutant, "FLOOR_BEFORE_LAYOUT", "the floor is read before the layout that it is used under",
		"NO_KILLS IDS=4", 564703, false, false},
	{mutant, "STALE_FLOOR", "the floor may come from a stale snapshot, without the condition on the layout",
		"NO_KILLS IDS=4 SNAPSHOTS=1", 2401117, false, false},
	{mutant, "NO_EPOCH", "neither leases nor stamps have an epoch",
		"NO_KILLS IDS=1 STEP=1 BOUNDARY=1 RESTORES=1 CHANGES=2", 240993, false, true},
	{mutant, "EPOCH_COUNTS", "the epoch counts up from the one in the store: it comes again after a second restore",
		"NO_KILLS IDS=1 STEP=1 BOUNDARY=1 RESTORES=2 CHANGES=2", 2199066, false, true},
	{mutant, "SKIP_STAMPS", "a helper that raises a mark writes the new stamp, so that the next lease passes by the floor",
		"NO_KILLS IDS=4 RAISES=1", 4190603, false, false},
	{mutant, "UNKNOWN_IS_SUCCESS", "a lease of which no answer came is taken for done",
		"NO_KILLS IDS=4", 195536, false, false},
	{mutant, "MARK_DELETED", "a room's mark goes when the room leaves the layout",
		"NO_KILLS IDS=4", 434841, false, false},
	{mutant, "NO_BARRIER", "an instance that answered recover still accepts the answer to an older lease",
		"NO_KILLS IDS=1 STEP=1 BOUNDARY=1 RESTORES=1", 464167, false, false},
	{mutant, "RECOVER_EACH_ROOM", "recover raises each room that the store knows by that room's journals, and no others",
		"NO_KILLS IDS=1 STEP=1 BOUNDARY=1 RESTORES=1", 1020328, false, false},
	{mutant, "RETRY_FORGETS", "after a refusal the base is made without the mark's next",
		"NO_KILLS IDS=4 INSTANCES=3", 589836, false, false},
	{mutant, "NO_REGISTRATION", "a lease does not compare the instance's registration, and recover does not know who was forgotten",
		"IDS=2 STEP=1 BOUNDARY=1 RESTORES=1 FORGETS=1", 33979, false, true},
	{mutant, "FORGET_UNCHECKED", "an instance is forgotten in a store that was restored, so that recover does not ask it",
		"IDS=2 STEP=1 BOUNDARY=1 RESTORES=1 FORGETS=1", 1249168, false, true},

	{limit, "CARRIED", "a lease goes out over a new connection before the beat was looked at",
		"NO_KILLS IDS=1 STEP=1 BOUNDARY=1 RESTORES=1", 1025487, false, false},
	{limit, "UNSEEN_RESTORE", "the look at the beat does not see the restore",
		"NO_KILLS IDS=1 STEP=1 BOUNDARY=1 RESTORES=1", 1393566, false, false},
	{limit, "LEFT_OUT", "recover goes on without an instance that issued more than the others know",
		"NO_KILLS IDS=1 STEP=1 BOUNDARY=1 RESTORES=1", 573294, false, false},
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

// verdict returns what is wrong with the outcome of r; nothing where it is empty.
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

// find returns the run with a name.
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
