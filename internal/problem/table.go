package problem

import marchv1 "github.com/march-id/march/api/march/v1"

// Row is one thing that can be wrong, and what is said of it wherever it is shown. The texts have parameters in
// braces: {of}, and where that is an instance {room} and {instance}; New takes the others.
type Row struct {
	Kind marchv1.ProblemKind // of what is in a list of problems
	What string              // the problem; begins with a small letter, and has no full stop
	// Effect is what callers notice. Sentences, as are those of Remedy.
	Effect, Remedy string
	Command        string // the first step of the remedy
	// Page is the path of the page that shows the thing; Button of the one with the button that does what Command does,
	// by Call, a method of ConsoleService.
	Page, Button, Call string
	Cluster            bool     // it is of more than one instance, so it is listed before those of instances
	Warning            bool     // it stops nothing now
	Alerts             []string // that of deploy/prometheus which fires, or those of which one does
	// Hides are the kinds that this is the cause of: of the same thing, of an instance of the same room, or of all
	// if this is of no thing or of the console.
	Hides []marchv1.ProblemKind
}

// Pages of the console.
const (
	instancePage = "/instances?room={room}#i-{room}-{instance}"
	roomPage     = "/instances?room={of}"
)

const (
	silent       = marchv1.ProblemKind_PROBLEM_KIND_SILENT
	noHeartbeats = marchv1.ProblemKind_PROBLEM_KIND_NO_HEARTBEATS
	noAnswer     = marchv1.ProblemKind_PROBLEM_KIND_NO_ANSWER
	notReady     = marchv1.ProblemKind_PROBLEM_KIND_NOT_READY
	noLease      = marchv1.ProblemKind_PROBLEM_KIND_NO_LEASE
	etcdAway     = marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY
	nearlyFull   = marchv1.ProblemKind_PROBLEM_KIND_ETCD_NEARLY_FULL
	barred       = marchv1.ProblemKind_PROBLEM_KIND_BARRED
	etcdMember   = marchv1.ProblemKind_PROBLEM_KIND_ETCD_MEMBER
	clock        = marchv1.ProblemKind_PROBLEM_KIND_CLOCK
	timeOrdered  = marchv1.ProblemKind_PROBLEM_KIND_TIME_ORDERED
	workersUsed  = marchv1.ProblemKind_PROBLEM_KIND_WORKERS_USED
)

// dry are the alerts of an instance that leases nothing, by what it runs out of first.
var dry = []string{"MarchFamilyNotIssuing", "MarchReserveLow", "MarchNotIssuing"}

var notIssuing = []string{"MarchNotIssuing"}

// unready are the kinds that an instance has which leases nothing.
var unready = []marchv1.ProblemKind{notReady, timeOrdered}

const (
	heldOnly    = "Rooms issue the IDs that they hold, and lease none."
	orderedStop = heldOnly + " Tags with a strict order stop within their tenure_hold."
)

// Table has all rows, in the order of their declarations.
var Table []*Row

func row(r Row) *Row {
	Table = append(Table, &r)
	return &r
}

// The problems of a cluster and of its parts, which every list of problems has.
var (
	More = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_MORE, Cluster: true, What: "{count} more problems with {of}",
		Remedy: "First solve the problems that are listed."})
	EtcdAway = row(Row{Kind: etcdAway, What: "etcd does not answer {names}: {members}", Effect: "{effect}",
		Remedy: "Start the members that do not answer, and see the network to them. Do not restart rooms: what they " +
			"hold is in their memory.",
		Command: "{etcdctl} endpoint status --write-out=table", Page: "/capacity", Alerts: []string{"MarchEtcdAway"},
		Hides: []marchv1.ProblemKind{etcdAway, etcdMember, noHeartbeats, notReady, noLease, timeOrdered}})
	NoRoom = row(Row{Kind: noAnswer, What: "no instance answers at {of} (--rooms)",
		Remedy: "Check the address, and the network from this console to it.", Page: "/instances"})
	Halted = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_HALTED, Cluster: true,
		What:   "leasing is halted in all rooms by {by}: {why}",
		Effect: orderedStop, Remedy: "When etcd has the right data, let rooms lease again.", Command: "march recover",
		Page: "/audit", Alerts: []string{"MarchRegression"},
		Hides: []marchv1.ProblemKind{notReady, barred, timeOrdered}})
	Unusable = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_UNUSABLE, Cluster: true, What: "{why}",
		Effect:  "Rooms issue the IDs that they hold, under the last good layout.",
		Remedy:  "See which key is damaged, and how to repair it.",
		Command: "march verify", Page: "/audit?object=layout", Alerts: []string{"MarchRegression"}, Hides: unready})
	EtcdCorrupt = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_UNUSABLE, Cluster: true,
		What:    "etcd's members differ (alarm CORRUPT), and etcd takes neither reads nor writes: no IDs are leased",
		Effect:  orderedStop,
		Remedy:  "Find the member that differs and replace it, or restore etcd and recover; then disarm the alarm.",
		Command: "{etcdctl} endpoint hashkv --cluster", Page: "/capacity",
		Hides: []marchv1.ProblemKind{notReady, noHeartbeats, timeOrdered}})
	EtcdFull = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL, Cluster: true,
		What:   "etcd is full, and takes no writes: no IDs are leased",
		Effect: heldOnly,
		Remedy: "Forget its history, defragment one member after the other, and disarm the alarm. If that frees too " +
			"little, raise --quota-backend-bytes.",
		Command: "{etcdctl} compact {revision}; {etcdctl} defrag --cluster && {etcdctl} alarm disarm",
		Page:    "/capacity", Alerts: []string{"MarchEtcdFull"},
		Hides: []marchv1.ProblemKind{nearlyFull, notReady, noHeartbeats, timeOrdered}})
	EtcdNearlyFull = row(Row{Kind: nearlyFull, Cluster: true,
		What:   "etcd is nearly full: it has {size} MiB, and takes no writes above {quota} MiB",
		Effect: "No IDs are leased when it is full.",
		Remedy: "Defragment one member after the other, or raise --quota-backend-bytes.", Warning: true,
		Command: "{etcdctl} defrag --cluster", Page: "/capacity", Alerts: []string{"MarchEtcdNearQuota"}})
	EtcdMember = row(Row{Kind: etcdMember, Cluster: true, What: "a member of etcd does not answer: {members}",
		Effect: "IDs are leased as before, until so many are away that no majority is left.", Warning: true,
		Remedy: "Start the member that does not answer, or replace it. If it runs, the console must reach the " +
			"address that it advertises.",
		Command: "{etcdctl} endpoint status --write-out=table", Page: "/capacity",
		Alerts: []string{"MarchEtcdMemberAway"}})
	ForeignEtcd = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_FOREIGN_ETCD, What: leasesNone, Effect: heldByIt,
		Remedy: "Check its --etcd. If etcd was restored, recover.", Command: "march recover", Page: instancePage,
		Alerts: []string{"MarchRegression"}, Hides: unready})
	NoRange = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_NO_RANGE, Cluster: true,
		What:   "room {of} has no range in layout {layout}, and leases nothing",
		Remedy: "If it should have a range, plan a migration that gives it one. Otherwise stop its instances.",
		Effect: "Its callers get no IDs there.", Page: roomPage, Button: "/migrations", Call: "PlanMigration",
		Command: "march migrate plan --add-room {of}=LOWER-UPPER", Alerts: []string{"MarchNotIssuing"},
		Hides: unready})
	NoInstance = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_NO_INSTANCE, Cluster: true,
		What:   "room {of} has a range, and no instance of it is alive",
		Effect: "No instance issues IDs of its range.", Remedy: "Start one.", Command: "march room {of}",
		Page: roomPage, Alerts: []string{"MarchRoomDown"}, Hides: []marchv1.ProblemKind{silent, noAnswer}})
	Migration = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_MIGRATION, Cluster: true,
		What:    "migration {of} cannot go on: {why}",
		Remedy:  "It goes on by itself when the cause is gone. If the cause cannot be removed, end the migration.",
		Command: "march migrate abort {of}", Page: "/migrations/{of}", Button: "/migrations/{of}?do=abort",
		Call: "AbortMigration"})
	MigrationWaits = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_MIGRATION_WAITS, Cluster: true,
		What:    "migration {migration} waits for instance {of}, which is silent",
		Remedy:  "Start the instance again. If you are sure that it does not run, go on without it.",
		Command: "march migrate continue {migration} --without {of}", Warning: true, Page: "/migrations/{migration}",
		Button: "/migrations/{migration}?do=continue&without={of}", Call: "ContinueMigration",
		Alerts: []string{"MarchRoomBehind"}})
	TagUsedUp = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_TAG_USED_UP, Cluster: true,
		What:    "tag {of} has no ID left: {why}",
		Effect:  "Its callers there get the error exhausted, and no IDs.",
		Remedy:  "Raise its limit if its callers take larger IDs, or move them to another tag.",
		Command: "march tag update {of} --limit LIMIT", Page: "/tags/{of}", Button: "/tags/{of}#settings",
		Call: "UpdateTag", Alerts: []string{"MarchTagNearLimit"}})
	PeriodAhead = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_PERIOD_AHEAD,
		What:   "tag {of} is in its period {period}, which begins at {begins}: a clock was ahead when it was opened",
		Effect: "Its IDs have the date of that period until then. No ID comes twice.", Warning: true,
		Remedy: "Nothing takes it back: it is right again when that period begins. Look for the clock that is ahead, " +
			"so that it opens no further one.", Command: "march doctor", Page: "/tags/{of}"})
	PeriodUsedUp = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_TAG_USED_UP, Cluster: true,
		What:   "tag {of} has no ID left: {why}",
		Effect: "Its callers there get the error exhausted, and no IDs. A higher limit does not help.",
		Remedy: "It goes on with its next period. If that is too late, create a tag with more digits, and move the " +
			"callers there.",
		Command: "march tag show {of}", Page: "/tags/{of}", Alerts: []string{"MarchTagNearLimit"}})
	TimeEnds = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_TIME_ENDS, Cluster: true,
		What: "the time bits of tag {of} are used up at {end}: it issues no ID from then on", Remedy: newTimeTag,
		Command: "march tag show {of}", Page: "/tags/{of}", Warning: true, Alerts: []string{"MarchTimeEnding"}})
	TimeEnded = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_TIME_ENDS, Cluster: true,
		What: "the time bits of tag {of} were used up at {end}: it issues no ID any more", Remedy: newTimeTag,
		Command: "march tag show {of}", Page: "/tags/{of}", Warning: true, Alerts: []string{"MarchTimeEnding"}})
	WorkersUsed = row(Row{Kind: workersUsed, Cluster: true,
		What:   "{live} of the {workers} workers of {bits} bits that room {in} may take are in use",
		Effect: "When all are in use, another instance waits until a window ends.", Warning: true,
		Remedy:  "Give the room a wider range, or run fewer instances or callers that lease.",
		Command: "march worker list --bits {bits} --room {in}", Page: "/workers?room={in}&bits={bits}",
		Alerts: []string{"MarchWorkersUsed"}})
	NoWorker = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_NO_WORKER, Cluster: true,
		What:    "no worker of {bits} bits is free in room {in}: {why}",
		Effect:  "These instances issue no IDs of tags with this width. Their other tags go on.",
		Remedy:  "Give the room a wider range, or run fewer instances or callers that lease.",
		Command: "march worker list --bits {bits} --room {in}", Page: "/workers?room={in}&bits={bits}",
		Alerts: []string{"MarchWorkerWindow", "MarchFamilyNotIssuing"}, Hides: []marchv1.ProblemKind{workersUsed}})
	EtcdRights = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_ETCD_RIGHTS,
		What:   "instance {of} lacks rights in etcd: its user may not {rights}",
		Remedy: "Give its role these rights.", Command: "march etcd roles {room}", Page: instancePage})
	EtcdRightsMore = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_ETCD_RIGHTS,
		What:   "instance {of} has too many rights in etcd: its user may {rights}, which are other rooms' keys",
		Effect: "Whoever has this user can make other rooms issue IDs twice.", Warning: true,
		Remedy: "Take these rights from its role.", Command: "march etcd roles --upgraded {room}", Page: instancePage})
	Barred = row(Row{Kind: barred, What: "instance {of} is barred by the recover of {by}",
		Effect: "It issues the IDs that it holds, and leases none until that recover has ended.",
		Remedy: "If the recover was interrupted, run it again.", Command: "march recover", Page: instancePage,
		Hides: unready})
	Unconfirmed = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_UNCONFIRMED,
		What:    "instance {of} started without its journal, which is required, and leases nothing",
		Effect:  "Its callers are served by other instances.",
		Remedy:  "If etcd has all leases of its predecessor, confirm the instance. Otherwise recover.",
		Command: "march instance confirm {room} {instance}", Page: instancePage, Hides: unready})
	Silent = row(Row{Kind: silent, What: "instance {of} is silent", Effect: "Callers use the room's other instances.",
		Remedy: "Start it again. If it is gone for good, forget it.", Warning: true,
		Command: "march instance forget {room} {instance}", Page: instancePage,
		Button: "/instances?do=forget&of={room}&name={instance}", Call: "ForgetInstance",
		Alerts: []string{"MarchInstanceSilent", "MarchRoomBehind"}})
	NoHeartbeats = row(Row{Kind: noHeartbeats, What: "instance {of} sends no heartbeats, but answers", Warning: true,
		Remedy: "It runs: do not forget it. See its log for why it writes nothing to etcd.", Page: instancePage})
	NoAnswer = row(Row{Kind: noAnswer, What: "instance {of} does not answer at {address}", Warning: true,
		Effect: "This console got: {why}. Until a moment ago the instance sent heartbeats, so it runs or has just " +
			"ended.",
		Remedy: "Check its process, the network from this console to it, and its certificate.", Page: instancePage})
	Unheard = row(Row{Kind: noAnswer, Warning: true,
		What:   "instance {of} does not answer at {address}, and it is not known yet whether it runs",
		Effect: "This console got: {why}. The last heartbeat is old, and its silence was not counted for long.",
		Remedy: "Check its process, the network from this console to it, and its certificate.", Page: instancePage})
	NotReady = row(Row{Kind: notReady, What: "instance {of} is not ready: {why}", Remedy: elsewhere, Page: instancePage,
		Alerts: notIssuing})
	NoIDs = row(Row{Kind: notReady, What: "instance {of} is not ready: it holds no IDs", Remedy: elsewhere,
		Page: instancePage, Alerts: notIssuing})
	HeldBack = row(Row{Kind: notReady, What: "instance {of} is not ready: it may not issue what it holds, as " +
		"strict_retract is set and hold ({hold}) has passed", Remedy: elsewhere, Page: instancePage,
		Alerts: notIssuing})
	ReserveLow = row(Row{Kind: notReady, What: "instance {of} is not ready: no tag in use has IDs for longer than " +
		"ready-reserve ({reserve})", Remedy: elsewhere, Page: instancePage, Alerts: notIssuing})
	TimeOrdered = row(Row{Kind: timeOrdered, What: "instance {of} issues no time-ordered IDs: {why}",
		Effect: "Its counters go on.", Remedy: "See which workers its room has, and in use where.",
		Command: "march worker list --room {room}", Page: "/workers?room={room}",
		Alerts: []string{"MarchFamilyNotIssuing"}})
	ClockBack = row(Row{Kind: timeOrdered,
		What:   "instance {of} issues no time-ordered IDs: its clock went back by {back}",
		Effect: "Its counters go on.",
		Remedy: "On its host, synchronize the clock (chrony, ntpd). It issues again when the clock has caught up, or " +
			"another worker is free.",
		Command: "chronyc tracking", Page: instancePage, Alerts: []string{"MarchClock"},
		Hides: []marchv1.ProblemKind{clock}})
	ClockAhead = row(Row{Kind: timeOrdered,
		What: "instance {of} issues no time-ordered IDs: its clock is {ahead} ahead of the other instances', and its " +
			"IDs would sort too late for ever",
		Effect: "Its counters go on.",
		Remedy: "On its host, synchronize the clock (chrony, ntpd). If all others are wrong, start the instance " +
			"with --agree-clock.",
		Command: "chronyc tracking", Page: instancePage, Alerts: []string{"MarchClock"},
		Hides: []marchv1.ProblemKind{clock}})
	SomeTimeOrdered = row(Row{Kind: timeOrdered, What: "instance {of} issues no IDs of some time-ordered tags: {why}",
		Effect: "Its other tags go on.", Remedy: "See which workers its room has, and in use where.",
		Command: "march worker list --room {room}", Page: "/workers?room={room}",
		Alerts: []string{"MarchWorkerWindow"}})
	NoLease = row(Row{Kind: noLease, What: leasesNone, Effect: heldByIt,
		Remedy: "See the instance's log.", Page: instancePage, Alerts: dry,
		Hides: []marchv1.ProblemKind{notReady, noHeartbeats, timeOrdered}})
	EtcdRefuses = row(Row{Kind: noLease, What: leasesNone, Effect: heldByIt,
		Remedy:  "Check its --etcd-user and --etcd-password-file, and what that user may do in etcd.",
		Command: "march etcd roles {room}", Page: instancePage, Alerts: dry,
		Hides: []marchv1.ProblemKind{etcdAway, notReady, noHeartbeats, timeOrdered}})
	EtcdPassword = row(Row{Kind: noLease, What: leasesNone, Effect: heldByIt,
		Remedy: "Put the password that etcd has for user {user} into the instance's --etcd-password-file, or give " +
			"etcd that of the file. The instance reads the file again by itself.",
		Command: "{etcdctl} --user=root user passwd {user}", Page: instancePage, Alerts: dry,
		Hides: []marchv1.ProblemKind{etcdAway, notReady, noHeartbeats, timeOrdered}})
	WentBack = row(Row{Kind: noLease, What: leasesNone, Effect: heldByIt,
		Remedy: "If etcd was restored, recover.", Command: "march recover", Page: instancePage,
		Alerts: []string{"MarchRegression"}, Hides: unready})
	JournalFull = row(Row{Kind: journal, What: journalWhat, Effect: heldByIt,
		Remedy: "On its host, free space on the disk; it goes on by itself then.", Command: "df {folder}",
		Page: instancePage, Alerts: dry, Hides: unready})
	JournalDenied = row(Row{Kind: journal, What: journalWhat, Effect: heldByIt,
		Remedy:  "On its host, let it write in this folder; it goes on by itself then.",
		Command: "ls -la {folder}", Page: instancePage, Alerts: dry, Hides: unready})
	JournalHangs = row(Row{Kind: journal, What: journalWhat, Effect: heldByIt,
		Remedy:  "On its host, check disk and mount; it goes on by itself when the disk answers.",
		Command: "findmnt --target {folder}", Page: instancePage, Alerts: dry, Hides: unready})
	JournalShared = row(Row{Kind: journal, What: journalWhat, Effect: heldByIt,
		Remedy:  "On its host, stop one of the two processes.",
		Command: "fuser -v {folder}/*", Page: instancePage, Alerts: dry, Hides: unready})
	JournalBroken = row(Row{Kind: journal, What: journalWhat, Effect: heldByIt,
		Remedy:  "On its host, check disk and folder; it goes on by itself when both are well.",
		Command: "ls -la {folder}", Page: instancePage, Alerts: dry, Hides: unready})
	Rights = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_RIGHTS, Cluster: true,
		What:    "the file {path} (--{flag}) is broken, so the last good one stays in force: {why}",
		Effect:  "A right that was taken away there still holds.",
		Remedy:  "Mend the file; it is read again within seconds. A restart before that fails.",
		Command: "{command}", Page: "/instances", Alerts: []string{"MarchAccessBroken"}})
	Unbound = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_INSECURE,
		What: "the file {path} (--identities) binds issuers to names and no CA of clients' certificates, so each CA " +
			"of --tls-client-ca may give any name",
		Effect: "Whoever runs such a CA may call as any subject of the policy that is a certificate's name.",
		Remedy: "List each CA under client_cas, with its names (spiffe://* and dns:* are all); the file is " +
			"read again within seconds.", Page: "/instances"})
	Insecure = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_INSECURE, What: "{process} is insecure: {why}",
		Remedy: "Give it a certificate and a policy, then take --insecure away."})
	Certificate = row(Row{Kind: marchv1.ProblemKind_PROBLEM_KIND_CERTIFICATE,
		What:   "{process} goes on with its old certificates: {why}",
		Remedy: "Mend the files; they are read again within seconds. A restart before that fails.",
		Page:   "/capacity", Alerts: []string{"MarchCertificateBroken"}})

	// What only `march doctor` finds, as it asks each process for its host and for etcd.

	NoConsole = row(Row{What: "no console answers",
		Effect: "Callers notice nothing. A migration under way makes no move, and nothing notices what else breaks.",
		Remedy: "Start one: it goes on where the last one stopped.", Command: "march console",
		Alerts: []string{"MarchNoConsole"}})
	Unlisted = row(Row{What: "no instance was asked, as the console does not list them: {why}",
		Remedy: "First solve the problems that are listed."})
	Unasked = row(Row{What: "{of} was not asked for its clock, disk and etcd: {why}",
		Remedy: "Run this command where the process can be reached, and see that it is of this version."})
	Unknown    = row(Row{What: "{why}", Remedy: "First solve this: other checks need the answer."})
	TagsUnread = row(Row{What: "the console reads all tags for the first time",
		Remedy: "Ask again when it has read them."})
	EtcdSlow = row(Row{What: "etcd took {took} to answer {of}; it should take less than {slow}",
		Remedy: "See how long each member takes, then its disk (wal_fsync_duration_seconds) and the network between " +
			"them.", Command: "{etcdctl} endpoint health --cluster"})
	EtcdVersions = row(Row{What: "etcd's members run different versions: {versions}",
		Remedy: "Finish the upgrade of etcd, or go back.", Command: "{etcdctl} endpoint status --cluster"})
	EtcdOld     = row(Row{What: "{why}", Remedy: "Upgrade etcd, one member after the other."})
	EtcdNoQuota = row(Row{What: "etcd has {size} MiB, and does not say at how many it takes no more writes",
		Remedy: "See its flag --quota-backend-bytes; 2 GiB is the default."})
	EtcdHistory = row(Row{What: "etcd keeps the history of {kept} revisions, more than the {most} of two busy hours",
		Remedy: "A console that runs for two hours compacts it. See the console's log, or have etcd do it " +
			"(--auto-compaction-retention).", Command: "{etcdctl} compact {revision}"})
	EtcdClock = row(Row{What: "etcd's clock is {off} that of {of}",
		Remedy: "Synchronize the hosts of etcd (chrony, ntpd). IDs do not depend on this clock, but etcd's " +
			"certificates, tokens and log do.", Command: "chronyc tracking"})
	EtcdClockUnknown = row(Row{What: "etcd's clock is not known to {of}: {why}",
		Remedy: "See that etcd answers HTTP at its client URLs (its flag --listen-client-http-urls moves that " +
			"elsewhere), or look at its hosts' clocks yourself.", Command: "date --utc"})
	Clock = row(Row{Kind: clock, What: "the clock of {of} is {off} the others", Warning: true,
		Effect: "IDs of counters stay unique; time-ordered IDs sort wrong or wait, and strict tags may pause.",
		Remedy: "On its host, synchronize it (chrony, ntpd).", Command: "chronyc tracking", Page: instancePage,
		Alerts: []string{"MarchClock"}})
	CertificateUnread = row(Row{What: "{of} cannot be read: {why}",
		Effect: "A process that starts again would not come up.", Remedy: "Put the certificates there, as PEM."})
	CertificateEnds = row(Row{What: "{of} {ends}: {subject}", Effect: "After its end nothing connects with it.",
		Remedy:  "Issue another one, and put it into the file.",
		Command: "openssl x509 -noout -subject -dates -in {path}", Alerts: []string{"MarchCertificateEnding"}})
	JournalUnwritable = row(Row{What: "the disk of the journal of {of} takes no write: {why}",
		Effect: "An instance leases nothing while its journal cannot be written.",
		Remedy: "Make room on {path}, or see its permissions.", Command: "df {path}"})
	JournalSlow = row(Row{What: "a sync of the journal's disk of {of} took {took}; it should take less than {slow}",
		Effect: "Each lease waits for a sync.", Remedy: "Put {path} on a faster disk, or on one of its own."})
	JournalNearlyFull = row(Row{What: "the disk of the journal of {of} has {free} MiB left",
		Effect: "An instance leases nothing while its journal cannot be written.",
		Remedy: "Make room on {path}: {least} MiB are enough."})
	Versions = row(Row{What: "{count} versions run: {versions}",
		Remedy: "A version and the next one run beside each other: finish the upgrade, or go back."})
	FormatsBehind = row(Row{What: "formats {on} are turned on, and {of} does not know them: it leases nothing",
		Remedy: "Upgrade it. There is no way back to its version.", Command: "march instance list"})
	FormatsNew = row(Row{What: "formats {on} are turned on; all instances know {known}, which can be turned on",
		Remedy: "After that there is no way back to the version before.", Command: "march cluster upgrade"})
	TagNearLimit = row(Row{What: "tag {of} {used}",
		Remedy:  "Raise its limit if its callers take larger IDs, or move them to another tag.",
		Command: "march tag update {of} --limit LIMIT", Alerts: []string{"MarchTagNearLimit"}})
	Shards = row(Row{What: "{why}",
		Effect:  "The other shards get no IDs of this room, or fewer.",
		Remedy:  "Take another number of shards, or the shard by a hash of the ID: see docs/sharding.md.",
		Command: "march migrate plan --boundary BOUNDARY --shards SHARDS"})
	PeriodNearLimit = row(Row{What: "tag {of} has used {used} of the IDs of the period {period}",
		Remedy: "The next period begins at {next}. If that is too late, create a tag with more digits, and move " +
			"the callers there.", Command: "march tag create TAG --period {unit} --period-digits DIGITS",
		Alerts: []string{"MarchTagNearLimit"}})
)

const (
	journal     = marchv1.ProblemKind_PROBLEM_KIND_JOURNAL
	leasesNone  = "instance {of} leases nothing: {why}"
	journalWhat = "instance {of} leases nothing: its journal {path} cannot be written: {why}"
	elsewhere   = "Send its callers to other instances of the room until it can lease."
	heldByIt    = "It issues the IDs that it holds."
	newTimeTag  = "A tag keeps its bits and its epoch: create another tag with more time bits, or a later epoch, " +
		"and move the callers there."
)
