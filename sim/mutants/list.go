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
	{name: "retry-forgets-mark", what: "after a refusal the base is made without the mark's next"},
	{name: "retry-is-success", what: "a lease that is refused is taken for done where the mark is what it would have been"},
	{name: "unknown-is-success", what: "a lease of which no answer came is taken for done"},
	{name: "from-the-end", what: "a segment that would go beyond the limit is computed down from it"},

	// Chains.
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
	{name: "moves-unreported", what: "a migration moves on before instances have reported"},

	// Going back in time.
	{name: "raise-stamps", what: "who raises a mark writes the new stamp, so that the next lease passes by the floor", with: "backup and restore"},
	{name: "no-barrier", what: "an instance that answered recover still accepts the answer to an older lease", with: "restore with answers under way"},
	{name: "recover-by-store", what: "recover raises marks by what the store knows alone", with: "backup and restore"},
	{name: "recover-each-room", what: "recover raises each room by what its own instances remember", with: "backup and restore"},
	{name: "recover-unanswered", what: "recover goes on without who did not answer", with: "backup and restore"},
	{name: "recover-versions", what: "a recover's layout version is above those that are known only: a forgotten one comes again", with: "restore with answers under way"},
	{name: "epoch-counts", what: "the epoch counts up from what the store knows: it comes again after a second restore", with: "backup and restore"},
	{name: "no-beat", what: "the beat is not compared", with: "restore after a power failure"},
	{name: "journal-late", what: "the journal is written after IDs are issued, with the next lease", with: "restore after a power failure"},
	{name: "no-revision-check", what: "a lease counts that etcd wrote at a revision below those that it had shown", with: "old revision"},
	{name: "no-cluster-check", what: "another etcd cluster's answer counts", with: "other etcd"},
	{name: "blank-leases", what: "an instance without its journal leases, where one is required", with: "journals required"},
	{name: "vouched-by-word", what: "the store is not held against what an instance remembers that vouches", with: "journals required"},
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
