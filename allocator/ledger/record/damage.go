package record

import (
	"fmt"
	"strings"
)

// Damage is what a key that cannot be read stops, and what an operator does about it.
// Verify and every list of problems say it in these words.
type Damage struct {
	Stops   string // "all leasing, in every room", say
	Remedy  string // begins with a small letter, and has no full stop at its end
	Command string // does it; empty where no command does
}

const (
	allLeasing = "all leasing, in every room"
	onlyLists  = "nothing; lists pass it over"
	oldKey     = "leave it, or delete the key"
	fromBackup = "put the value of a backup back"
)

// Says returns why the key cannot be read, and what that stops, in one line.
func (d Damage) Says(why error) string {
	return Cut(strings.ReplaceAll(why.Error(), "\n", "; ")) + "; it stops " + d.Stops
}

// Cut bounds a text to maxProblem.
func Cut(text string) string {
	if len(text) > maxProblem {
		return strings.ToValidUTF8(text[:maxProblem], "") + "..."
	}
	return text
}

// Damage is Damage, where the layout in force is of a version, 0 where that is not known.
// TestVerifySaysWhatDamageStops holds it against what a cluster does.
func (k Keys) Damage(key string, version int64, migration string) Damage {
	p, err := k.Parse(key)
	if err != nil {
		return Damage{"nothing; lists name it", "delete the key, if no newer version of March wrote it", ""}
	}
	switch p.Kind {
	case "identity":
		return Damage{allLeasing + ", and every change by a console; no process starts, and recover does not run", fromBackup + ": the cluster's uuid must be the same", ""}
	case "epoch", "layout":
		return Damage{allLeasing, "recover, which writes a new " + p.Kind, "march recover"}
	case "beat":
		return Damage{allLeasing + ", and every change by a console", "if etcd was certainly not restored, delete the key: it is written again at once; or else recover", "march recover"}
	case "settings":
		return Damage{allLeasing, fmt.Sprintf("put {%q:%d,%q:%q,%q:%q} there, or %q if no journal is required", "format", baseFormat, "journal", journalRequired, "nonce", "", journalOptional), ""}
	case "answered":
		return Damage{"nothing; instances that have not entered the epoch count as left out of the last recover: they drop what they hold and compare their marks", "leave it: the next recover writes it again", ""}
	case "layouts":
		return historyDamage(p.version, version)
	case "migration":
		return Damage{"migrations: the one that is under way does not go on, and no other starts", fmt.Sprintf(
			"put {%q:%d,%q:%q} there, of the running one in the list of migrations; delete the key if there is none", "format", baseFormat, "name", "ID"), "march migrate list"}
	case "migrations":
		if p.ulid == migration {
			return Damage{"migrations: this one is under way and does not go on, and no other starts", fromBackup + "; or delete it and the key migration: the layout stays as it is", ""}
		}
		return Damage{onlyLists, oldKey, ""}
	case "audit":
		return Damage{onlyLists, oldKey, ""}
	}
	return p.damage(key[len(k):])
}

// damage returns what a damaged key of a tag or an instance stops. object is the key
// without the cluster's prefix.
func (p KeyParts) damage(object string) Damage {
	forget := fmt.Sprintf("march instance forget %s %s", p.Room, p.Instance)
	switch p.Kind {
	case "tags":
		return Damage{fmt.Sprintf("leasing of tag %s, in every room", p.Tag), "put the value back that the audit has for it", "march audit list -o json --to " + object}
	case "marks":
		return Damage{
			fmt.Sprintf("leasing of tag %s in room %s, in every room at its first lease under a new layout, and recover", p.Tag, p.Room),
			fmt.Sprintf("put {%q:%d,%q:%q} there, with N above every ID of the tag that any room may have leased", "format", baseFormat, "next", "N"), "",
		}
	case "rooms":
		return Damage{
			fmt.Sprintf("leasing by instance %s/%s, its heartbeats, and migrations that wait for it", p.Room, p.Instance),
			"forget the instance, which then registers again", forget,
		}
	case "workers":
		return Damage{
			fmt.Sprintf("taking and renewing worker %v; rooms take other workers, while there are any", p.Worker),
			fmt.Sprintf("put the value of another worker there, with %q in Unix ms above every ID's time that the worker may have issued: now and %v", "until", LongestWindow), "",
		}
	default: // alive
		return Damage{
			fmt.Sprintf("nothing; instance %s/%s writes it again, if it runs", p.Room, p.Instance),
			"if it stays, forget the instance", forget,
		}
	}
}

// historyDamage returns what a damaged layout of the history stops: processes read the
// one of the current version, and the one before it.
func historyDamage(version, current int64) Damage {
	switch {
	case version == current:
		return Damage{allLeasing, "put the value of key layout there", ""}
	case version == current-1:
		return Damage{allLeasing, fromBackup, ""}
	}
	return Damage{"`march id decode` for IDs that were leased under it", fromBackup, ""}
}

// maxProblem bounds what a problem says of a value, in bytes: it may quote it.
const maxProblem = 300
