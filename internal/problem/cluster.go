package problem

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Halted says that nothing is leased in any room.
func Halted(by, why string, since time.Time) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_HALTED,
		What: fmt.Sprintf("leasing is halted in all rooms by %s: %s", by, why), Since: Stamp(since),
		Remedy: "Rooms issue the IDs that they hold, and lease none. When etcd has the right data, " +
			"let them lease again.", Command: "march recover",
	}
}

// Unusable says that etcd's epoch, layout or settings cannot be used; why has the
// reason.
func Unusable(why string) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_UNUSABLE,
		What: why,
		Remedy: "Rooms issue the IDs that they hold, under the last good layout. See which key is damaged, " +
			"and how to repair it.", Command: "march verify",
	}
}

// Unreadable says that a key cannot be read, in verify's words.
func Unreadable(key record.KeyError, d record.Damage) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE, Of: key.Key,
		What: d.Says(&key), Remedy: sentence(d.Remedy), Command: d.Command,
	}
}

// NoEtcd is that etcd does not answer a console. asOf is when the console last read the
// cluster; zero for never.
func NoEtcd(since, asOf time.Time) *marchv1.Problem {
	shown := "This console has not read the cluster yet: it shows the instances of --rooms."
	if !asOf.IsZero() {
		shown = "Everything but the instances' own values is as of " + asOf.UTC().Format(
			"2006-01-02 15:04:05 UTC") + "."
	}
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY, Of: "console",
		What: "etcd does not answer this console", Since: Stamp(since),
		Remedy: shown + " An instance that cannot reach etcd, too, goes on until its reserve ends. Check etcd, " +
			"and the network to it.",
		Command: "etcdctl endpoint health --cluster",
	}
}

// NoRoom is that no instance answers at an address that a console was given.
func NoRoom(address string) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_NO_ANSWER, Of: address,
		What:   "no instance answers at " + address + " (--rooms)",
		Remedy: "Check the address, and the network from this console to it.",
	}
}

// EtcdFull says that etcd takes no writes.
func EtcdFull(since time.Time) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL,
		What: "etcd is full, and takes no writes: no IDs are leased", Since: Stamp(since),
		Remedy: "Compact it, defragment one member after the other, or raise --quota-backend-bytes; " +
			"then disarm the alarm.",
		Command: "etcdctl alarm disarm",
	}
}

// EtcdCorrupt says that etcd has found that its members differ, and answers nothing.
func EtcdCorrupt(since time.Time) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_UNUSABLE, Of: "etcd",
		What:    "etcd's members differ (alarm CORRUPT), and etcd takes neither reads nor writes: no IDs are leased",
		Since:   Stamp(since),
		Remedy:  "Find the member that differs and replace it, or restore etcd and recover; then disarm the alarm.",
		Command: "etcdctl endpoint hashkv --cluster",
	}
}

// EtcdNearlyFull says that etcd will take no writes soon. Sizes are in bytes.
func EtcdNearlyFull(size, quota int64, since time.Time) *marchv1.Problem {
	what := "etcd is nearly full: it has %d MiB, and takes no writes above %d MiB"
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_ETCD_NEARLY_FULL,
		What: fmt.Sprintf(what, size>>20, quota>>20), Since: Stamp(since),
		Remedy: "No IDs are leased when it is full. Defragment one member after the other, " +
			"or raise --quota-backend-bytes.", Command: "etcdctl defrag",
	}
}

// TimeEnds says that a tag's time bits are used up, or will be soon.
func TimeEnds(tag allocator.Tag, end, now time.Time) *marchv1.Problem {
	what := "the time bits of tag %s are used up at %s: it issues no ID from then on"
	if !end.After(now) {
		what = "the time bits of tag %s were used up at %s: it issues no ID any more"
	}
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_TIME_ENDS, Of: string(tag),
		What: fmt.Sprintf(what, tag, end.UTC().Format(time.RFC3339)),
		Remedy: "A tag keeps its bits and its epoch: create another tag with more time bits, or a later epoch, " +
			"and move the callers there.",
		Command: fmt.Sprintf("march tag show %s", tag),
	}
}

// WorkersUsed says that a room has few workers of a width left.
func WorkersUsed(room allocator.Room, bits int, live, workers int64) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_WORKERS_USED, Of: fmt.Sprintf("%s, %d bits", room, bits),
		What: fmt.Sprintf("%d of the %d workers of %d bits that room %s may take are in use",
			live, workers, bits, room),
		Remedy: "When all are in use, another instance waits until a window ends. Give the room a wider range, " +
			"or run fewer instances or callers that lease.",
		Command: fmt.Sprintf("march worker list --bits %d --room %s", bits, room),
	}
}

// NoRange says that a room has no range, and so its instances lease nothing.
func NoRange(room allocator.Room, layout int64) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_NO_RANGE, Of: string(room),
		What:    fmt.Sprintf("room %s has no range in layout %d, and leases nothing", room, layout),
		Remedy:  "If it should have a range, plan a migration that gives it one. Otherwise stop its instances.",
		Command: fmt.Sprintf("march migrate plan --add-room %s=LOWER-UPPER", room),
	}
}

// NoInstance says that a room has a range that no instance serves.
func NoInstance(room allocator.Room, since time.Time) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_NO_INSTANCE, Of: string(room),
		What: fmt.Sprintf("room %s has a range, and no instance of it is alive", room), Since: Stamp(since),
		Remedy: "No instance issues IDs of its range. Start one.", Command: "march room " + string(room),
	}
}

// MigrationFails says why a migration cannot go on.
func MigrationFails(id, why string, since *timestamppb.Timestamp) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_MIGRATION, Of: id,
		What: fmt.Sprintf("migration %s cannot go on: %s", id, why), Since: since,
		Remedy:  "It goes on by itself when the cause is gone. If the cause cannot be removed, end the migration.",
		Command: "march migrate abort " + id,
	}
}

// MigrationWaits says that a migration waits for a silent instance.
func MigrationWaits(id string, w *marchv1.Waiting) *marchv1.Problem {
	return &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_MIGRATION_WAITS, Of: w.GetInstance(),
		What:  fmt.Sprintf("migration %s waits for instance %s, which is silent", id, w.GetInstance()),
		Since: w.GetSilentSince(), Until: w.GetUntil(),
		Remedy:  "Start the instance again. If you are sure that it does not run, go on without it.",
		Command: fmt.Sprintf("march migrate continue %s --without %s", id, w.GetInstance()),
	}
}

// sentence returns a text with a capital and a full stop.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}
