package record

import (
	"fmt"
	"strings"
)

// Damage describes an unreadable key: what it stops, and what an operator can do about it.
// Verify and every list of problems use these words.
type Damage struct {
	Stops   string // "all leasing, in every room", say
	Remedy  string // begins with a small letter and has no full stop
	Command string // applies the remedy; empty if no command does
}

const (
	allLeasing = "all leasing, in every room"
	onlyLists  = "nothing; lists pass it over"
	oldKey     = "leave it, or delete the key"
	fromBackup = "put the value of a backup back"
)

// Says returns, in one line, why the key cannot be read and what that stops.
func (d Damage) Says(why error) string {
	return Cut(strings.ReplaceAll(why.Error(), "\n", "; ")) + "; it stops " + d.Stops
}

// Cut cuts a text to maxProblem.
func Cut(text string) string {
	if len(text) > maxProblem {
		return strings.ToValidUTF8(text[:maxProblem], "") + "..."
	}
	return text
}

// damaged is a damaged key, with what decides its effect.
type damaged struct {
	KeyParts
	object    string // the key without the cluster's prefix
	inForce   int64  // the version of the layout in force
	migration string // the one that is under way
}

// always has the damage of kinds whose keys all stop the same.
func always(stops, remedy, command string) func(damaged) Damage {
	return func(damaged) Damage { return Damage{stops, remedy, command} }
}

func damagedByRecover(of damaged) Damage {
	return Damage{allLeasing, "recover, which writes a new " + of.Kind, "march recover"}
}

func damagedTag(of damaged) Damage {
	return Damage{fmt.Sprintf("leasing of tag %s, in every room", of.Tag),
		"put the value back that the audit has for it", "march audit list -o json --to " + of.object}
}

func damagedMark(of damaged) Damage {
	return Damage{
		fmt.Sprintf("leasing of tag %s in room %s, in every room at its first lease under a new layout, and recover",
			of.Tag, of.Room),
		fmt.Sprintf("put {%q:%d,%q:%q} there, with N above every ID of the tag that any room may have leased", "format",
			baseFormat, "next", "N"), "",
	}
}

func damagedRegistration(of damaged) Damage {
	return Damage{
		fmt.Sprintf("leasing by instance %s/%s, its heartbeats, and migrations that wait for it", of.Room, of.Instance),
		"forget the instance, which then registers again", of.forget(),
	}
}

func damagedWorker(of damaged) Damage {
	return Damage{
		fmt.Sprintf("taking and renewing worker %v; rooms take other workers, while there are any", of.Worker),
		fmt.Sprintf("put the value of another worker there, with %q in Unix ms above every ID's time that the worker "+
			"may have issued: now and %v", "until", LongestWindow), "",
	}
}

func damagedMachine(of damaged) Damage {
	return Damage{
		fmt.Sprintf("machine ID %v of CosId's clients: no client gets it, and its client's guard fails; "+
			"the other numbers go on", of.Worker),
		fromBackup, "",
	}
}

func damagedHeartbeat(of damaged) Damage {
	return Damage{
		fmt.Sprintf("nothing; instance %s/%s writes it again, if it runs", of.Room, of.Instance),
		"if it stays, forget the instance", of.forget(),
	}
}

func (of damaged) forget() string {
	return fmt.Sprintf("march instance forget %s %s", of.Room, of.Instance)
}

func damagedMigration(of damaged) Damage {
	if of.ulid == of.migration {
		return Damage{"migrations: this one is under way and does not go on, and no other starts",
			fromBackup + "; or delete it and the key migration: the layout stays as it is", ""}
	}
	return Damage{onlyLists, oldKey, ""}
}

// damagedHistory returns what a damaged layout of the history stops. Processes read the layout
// of the current version and the one before it.
func damagedHistory(of damaged) Damage {
	switch of.version {
	case of.inForce:
		return Damage{allLeasing, "put the value of key layout there", ""}
	case of.inForce - 1:
		return Damage{allLeasing, fromBackup, ""}
	}
	return Damage{"`march id decode` for IDs that were leased under it", fromBackup, ""}
}

// maxProblem bounds the text of a problem, in bytes: it may quote a value.
const maxProblem = 300
