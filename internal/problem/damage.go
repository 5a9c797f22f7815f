package problem

import (
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	stopsAll   = "It stops all leasing, in every room."
	onlyLists  = "It stops nothing; lists pass it over."
	oldKey     = "Leave it, or delete the key."
	fromBackup = "Put the value of a backup back."
	forgetIt   = "march instance forget {room} {instance}"
)

// damages has the row of each kind of key that cannot be read, named as record.Keys.Damage names it. {tag}, {room},
// {instance} and {worker} are those of the key. The script damage.txt of package ledger compares the rows with the
// behaviour of a cluster.
var damages = map[record.Kind]Row{
	"": {Effect: "It stops nothing; lists name it.",
		Remedy: "Delete the key, if no newer version of March wrote it."},
	record.IdentityKey: {Effect: "It stops all leasing, in every room, and every change by a console; no process " +
		"starts, and recover does not run.",
		Remedy: "Put the value of a backup back: the cluster's uuid must be the same."},
	record.EpochKey:  {Effect: stopsAll, Remedy: "Recover, which writes a new epoch.", Command: "march recover"},
	record.LayoutKey: {Effect: stopsAll, Remedy: "Recover, which writes a new layout.", Command: "march recover"},
	record.AnsweredKey: {Effect: "It stops nothing; instances that have not entered the epoch count as left out of " +
		"the last recover: they drop what they hold and compare their marks.",
		Remedy: "Leave it: the next recover writes it again."},
	record.BeatKey: {Effect: "It stops all leasing, in every room, and every change by a console.",
		Remedy:  "If etcd was certainly not restored, delete the key: it is written again at once. Otherwise recover.",
		Command: "march recover"},
	record.SettingsKey: {Effect: stopsAll, Remedy: `Put {"format":2,"journal":"required","nonce":""} there, or ` +
		`"optional" if no journal is required.`},
	record.MigrationKey: {Effect: "It stops migrations: the one that is under way does not go on, and no other starts.",
		Remedy: `Put {"format":2,"name":"ID"} there, of the running one in the list of migrations; delete the key if ` +
			"there is none.", Command: "march migrate list"},
	record.Layouts: {Effect: "It stops `march id decode` for IDs that were leased under it.",
		Remedy: fromBackup},
	record.Layouts + "/in force":  {Effect: stopsAll, Remedy: "Put the value of key layout there."},
	record.Layouts + "/before it": {Effect: stopsAll, Remedy: fromBackup},
	record.Tags: {Effect: "It stops leasing of tag {tag}, in every room.",
		Remedy: "Put the value back that the audit has for it.", Command: "march audit list -o json --to tags/{tag}"},
	record.Marks: {Effect: "It stops leasing of tag {tag} in room {room}, in every room at its first lease under a " +
		"new layout, and recover.", Remedy: `Put {"format":2,"next":"N"} there, with N above every ID of the ` +
		"tag that any room may have leased."},
	record.Registrations: {Effect: "It stops leasing by instance {room}/{instance}, its heartbeats, and migrations " +
		"that wait for it.", Remedy: "Forget the instance, which then registers again.", Command: forgetIt},
	record.Heartbeats: {Effect: "It stops nothing; instance {room}/{instance} writes it again, if it runs.",
		Remedy: "If it stays, forget the instance.", Command: forgetIt},
	record.Tokens: {Effect: "It stops nothing; what the process before of instance {room}/{instance} kept is a gap.",
		Remedy: "Leave it: the next process that stops in good order writes it again."},
	record.Consoles: {Effect: "It stops nothing; `march recover` asks this console only if it is named (--console).",
		Remedy: "Delete the key: a console that runs writes it again."},
	record.Holders: {Effect: "It stops issuing tag {tag} in room {room}.", Remedy: ofHolder},
	record.Orders:  {Effect: "It stops issuing tag {tag}, in every room.", Remedy: ofHolder},
	record.Windows: ofWorker, record.Workers: ofWorker, record.Clients: ofMachine, record.Machines: ofMachine,
	record.Migrations: {Effect: onlyLists, Remedy: oldKey},
	record.Migrations + "/under way": {
		Effect: "It stops migrations: this one is under way and does not go on, and no other starts.",
		Remedy: "Put the value of a backup back; or delete it and the key migration: the layout stays as it is."},
	record.Audits: {Effect: onlyLists, Remedy: oldKey}, record.Refusals: {Effect: onlyLists, Remedy: oldKey},
	record.OldestKeys: {
		Effect:  "It stops nothing but `march audit verify`, and the removal of old entries of the audit.",
		Remedy:  "Delete the key: the next process that removes old entries writes it again.",
		Command: "march audit verify"},
}

const ofHolder = "Delete the key, and never put an older value there, whose rest may have been issued: then no " +
	"instance issues the tag there before its tenure_hold, and a tenth, has passed."

var (
	ofWorker = Row{Effect: "It stops taking and renewing worker {worker}; rooms take other workers, while there are " +
		"any.", Remedy: `Put the value of another worker there, with "until" in Unix ms above every ID's time that ` +
		"the worker may have issued: now and {longest}."}
	ofMachine = Row{Effect: "It stops machine ID {worker} of CosId's clients: no client gets it, and its client's " +
		"guard fails; the other numbers go on.", Remedy: fromBackup}
)

// OfKey returns the problem that a key cannot be read.
func OfKey(key *record.KeyError, p record.KeyParts, since time.Time) *marchv1.Problem {
	row := damages[p.Kind]
	row.Kind, row.What, row.Page = marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE, "{why}", "/audit"
	return New(&row, key.Key, since, "why", record.Cut(key.Error()), "tag", p.Tag, "room", p.Room, "instance",
		p.Instance, "worker", p.Worker, "longest", record.LongestWindow)
}

// LineOfKey writes in one line that a key cannot be read.
func LineOfKey(key *record.KeyError, p record.KeyParts) string {
	return Line(OfKey(key, p, time.Time{}))
}
