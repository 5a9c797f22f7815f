package main

// lifeRuns are the runs of lives.pml.
var lifeRuns = []run{
	{holds, "lives", "a name is deleted and used again, before or after a restore that loses a lease",
		"", 1607526, false, false},
	{holds, "lives-further", "the same with smaller steps, further up",
		"IDS=14 STEP=2", 4472072, true, false},

	{mutant, "TOMBSTONE_IGNORED", "the next life takes nothing over from the tombstone",
		"", 102519, false, false},
	{mutant, "STEP_FORGOTTEN", "the next life does not take over the largest step",
		"", 117796, false, false},
	{mutant, "BASE_TOTAL_RAISED", "the next life's base total is the epoch's margin total, and not the tombstone's",
		"", 110342, false, false},
	{mutant, "LEAST_IGNORED", "a margin lies above the new life's start and skip, and not above those of earlier lives",
		"", 126234, false, false},
	{mutant, "UNUSED_BY_MARKS", "a tag without marks leaves no tombstone, even if a lost history may have leased of it",
		"", 121717, false, false},
	{mutant, "SKIP_OF_ROOMS", "a skip of all rooms is one of each room that there is then: " +
		"a later room leases below it",
		"", 9276, false, false},

	{limit, "SETTINGS_LOST", "a lease that a restore lost was made by settings that the restore lost, too",
		"", 86297, false, false},
}
