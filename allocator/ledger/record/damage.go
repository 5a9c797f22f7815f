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

// Says returns, in one line, why the key cannot be read and what that stops.
func (d Damage) Says(why error) string {
	return Cut(strings.ReplaceAll(why.Error(), "\n", "; ")) + "; it stops " + d.Stops
}

// maxProblem bounds the text of a problem, in bytes: it may quote a value.
const maxProblem = 300

// Cut cuts a text to maxProblem.
func Cut(text string) string {
	if len(text) > maxProblem {
		return strings.ToValidUTF8(text[:maxProblem], "") + "..."
	}
	return text
}

const (
	allLeasing = "all leasing, in every room"
	onlyLists  = "nothing; lists pass it over"
	oldKey     = "leave it, or delete the key"
	fromBackup = "put the value of a backup back"
	forgetIt   = "march instance forget {room} {instance}"
)

// damages has the damage of each kind of key. {tag}, {room}, {instance} and {worker} stand for those of the key, {key}
// for the key without the cluster's prefix. A row with a slash has another effect than the other keys of its kind: see
// Keys.Damage.
var damages = map[string]Damage{
	"": {"nothing; lists name it", "delete the key, if no newer version of March wrote it", ""},
	"identity": {allLeasing + ", and every change by a console; no process starts, and recover does not run",
		fromBackup + ": the cluster's uuid must be the same", ""},
	"epoch":  {allLeasing, "recover, which writes a new epoch", "march recover"},
	"layout": {allLeasing, "recover, which writes a new layout", "march recover"},
	"answered": {"nothing; instances that have not entered the epoch count as left out of the last recover: " +
		"they drop what they hold and compare their marks", "leave it: the next recover writes it again", ""},
	"beat": {allLeasing + ", and every change by a console", "if etcd was certainly not restored, delete the key: " +
		"it is written again at once; or else recover", "march recover"},
	"settings": {allLeasing, fmt.Sprintf("put {%q:%d,%q:%q,%q:%q} there, or %q if no journal is required",
		"format", baseFormat, "journal", journalRequired, "nonce", "", journalOptional), ""},
	"migration": {"migrations: the one that is under way does not go on, and no other starts", fmt.Sprintf(
		"put {%q:%d,%q:%q} there, of the running one in the list of migrations; delete the key if there is none",
		"format", baseFormat, "name", "ID"), "march migrate list"},
	"layouts":           {"`march id decode` for IDs that were leased under it", fromBackup, ""},
	"layouts/in force":  {allLeasing, "put the value of key layout there", ""},
	"layouts/before it": {allLeasing, fromBackup, ""},
	"tags": {"leasing of tag {tag}, in every room", "put the value back that the audit has for it",
		"march audit list -o json --to {key}"},
	"marks": {"leasing of tag {tag} in room {room}, in every room at its first lease under a new layout, and recover",
		fmt.Sprintf("put {%q:%d,%q:%q} there, with N above every ID of the tag that any room may have leased", "format",
			baseFormat, "next", "N"), ""},
	"rooms": {"leasing by instance {room}/{instance}, its heartbeats, and migrations that wait for it",
		"forget the instance, which then registers again", forgetIt},
	"alive": {"nothing; instance {room}/{instance} writes it again, if it runs", "if it stays, forget the instance",
		forgetIt},
	"kept": {"nothing; what the process before of instance {room}/{instance} kept is a gap",
		"leave it: the next process that stops in good order writes it again", ""},
	"consoles": {"nothing; `march recover` asks this console only if it is named (--console)",
		"delete the key: a console that runs writes it again", ""},
	"windows": damagedWorker, "workers": damagedWorker,
	"clients": damagedMachine, "machines": damagedMachine,
	"migrations": {onlyLists, oldKey, ""},
	"migrations/under way": {"migrations: this one is under way and does not go on, and no other starts",
		fromBackup + "; or delete it and the key migration: the layout stays as it is", ""},
	"audit": {onlyLists, oldKey, ""}, "refusals": {onlyLists, oldKey, ""},
	"oldest": {"nothing but `march audit verify`, and the removal of old entries of the audit",
		"delete the key: the next process that removes old entries writes it again", "march audit verify"},
}

var (
	damagedWorker = Damage{"taking and renewing worker {worker}; rooms take other workers, while there are any",
		fmt.Sprintf("put the value of another worker there, with %q in Unix ms above every ID's time that the worker "+
			"may have issued: now and %v", "until", LongestWindow), ""}
	damagedMachine = Damage{"machine ID {worker} of CosId's clients: no client gets it, and its client's guard " +
		"fails; the other numbers go on", fromBackup, ""}
)

// Damage returns the Damage of an unreadable key, given the version of the layout in force, 0 if that is not known, and
// the migration that is under way. Processes read the layout of that version and the one before it. The script
// damage.txt of package ledger compares it with the behaviour of a cluster.
func (k Keys) Damage(key string, version int64, migration string) Damage {
	p, _ := k.Parse(key)
	row := p.Kind
	switch {
	case row == "layouts" && p.version == version:
		row += "/in force"
	case row == "layouts" && p.version == version-1:
		row += "/before it"
	case row == "migrations" && p.ulid == migration:
		row += "/under way"
	}
	fill := strings.NewReplacer("{tag}", string(p.Tag), "{room}", string(p.Room), "{instance}", string(p.Instance),
		"{worker}", p.Worker.String(), "{key}", strings.TrimPrefix(key, string(k)))
	d := damages[row]
	return Damage{fill.Replace(d.Stops), fill.Replace(d.Remedy), fill.Replace(d.Command)}
}
