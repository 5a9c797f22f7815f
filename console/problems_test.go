package console

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// when is the time of tests, and after(n) is n minutes later.
var when = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(minutes int) time.Time { return when.Add(time.Duration(minutes) * time.Minute) }

func stamp(minutes int) *timestamppb.Timestamp { return timestamppb.New(after(minutes)) }

func alive(room allocator.Room, name allocator.Instance) instance {
	return instance{Instance: record.Instance{Room: room, Name: name,
		Registration: record.Registration{Address: string(name) + ":1"}}, Alive: true}
}

func silent(room allocator.Room, name allocator.Instance, since int) instance {
	i := alive(room, name)
	i.Alive, i.SilentSince, i.Died = false, after(since), after(since)
	return i
}

// tells returns a sample in which instances report their statuses.
func tells(statuses map[record.InstanceID]*marchv1.InstanceStatus) sample {
	s := sample{at: when, instances: make(map[record.InstanceID]told)}
	for id, status := range statuses {
		s.instances[id] = told{status: status}
		if status == nil {
			s.instances[id] = told{mute: after(6)}
		}
	}
	return s
}

// damage returns the parts of a key, as if it were an instance's.
func damage(key string) record.KeyParts {
	return record.KeyParts{Kind: record.Registrations, Room: "k", Instance: allocator.Instance(path.Base(key))}
}

// lines writes problems, each as "what | since | until | command", in minutes after when, and then what it hits.
func lines(list []*marchv1.Problem) string {
	var b strings.Builder
	minutes := func(t *timestamppb.Timestamp) string {
		if t == nil {
			return "-"
		}
		return fmt.Sprint(int(t.AsTime().Sub(when).Minutes()))
	}
	for _, p := range list {
		fmt.Fprintf(&b, "%s | %s | %s | %s", p.GetWhat(), minutes(p.GetSince()), minutes(p.GetUntil()), p.GetCommand())
		for _, hit := range p.GetHits() {
			b.WriteString(" | " + hit)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Each problem has its beginning, its end and its command, and each has a remedy.
func TestProblems(t *testing.T) {
	unreadable := alive("a", "newer")
	unreadable.Unreadable = errors.New("format 99")
	unconfirmed := alive("a", "bare")
	unconfirmed.Unconfirmed, unconfirmed.Started = true, when
	waiting := &marchv1.Migration{
		Id: "M", Error: "the layout is version 3", ErrorSince: stamp(7),
		Waiting: []*marchv1.Waiting{{Instance: "a/one"}, {Instance: "a/two", SilentSince: stamp(1), Until: stamp(11)}},
	}
	waiting.Problems = migrationProblems(waiting)
	for _, test := range []struct {
		name string
		f    findings
		want string
	}{
		{"nothing", findings{rooms: []allocator.Room{"a"}, instances: []instance{alive("a", "one")}}, ""},
		{"a halt", findings{halt: &marchv1.Halt{By: "ann", Why: "a restore", Time: stamp(1),
			Barred: []*marchv1.BarredInstance{
				{Room: "a", Name: "one", Barred: &marchv1.Barred{By: "bob", Since: stamp(2)}},
			}}}, "leasing is halted in all rooms by ann: a restore | 1 | - | march recover | a/one (barred)\n"},
		{"an unusable layout", findings{unusable: errors.New("the layout in etcd cannot be used")},
			"the layout in etcd cannot be used | - | - | march verify\n"},
		{"etcd", findings{etcd: etcdSize{StoreSize: admin.StoreSize{Bytes: 1900 << 20, Quota: 2048 << 20},
			nearly: after(3)}},
			"etcd is nearly full: it has 1900 MiB, and takes no writes above 2048 MiB | 3 | - | etcdctl defrag " +
				"--cluster\n"},
		{"a room without instances", findings{rooms: []allocator.Room{"a"}},
			"room a has a range, and no instance of it is alive | - | - | march room a\n"},
		{"a silent room", findings{rooms: []allocator.Room{"a"}, forgetAfter: time.Hour,
			instances: []instance{silent("a", "one", 2), silent("a", "two", 5), alive("b", "one")}},
			"room a has a range, and no instance of it is alive | 5 | - | march room a | a/one (silent) | a/two " +
				"(silent)\n"},
		{"a silent room that answers", findings{rooms: []allocator.Room{"a"}, forgetAfter: time.Hour,
			instances: []instance{silent("a", "away", 2), silent("a", "well", 3), silent("a", "gone", 4)},
			sample: tells(map[record.InstanceID]*marchv1.InstanceStatus{
				"a/away": {EtcdAwaySince: stamp(1)}, "a/well": {}, "a/gone": nil,
			})}, "etcd does not answer instance a/away: it is not known how many members do | 1 | - | etcdctl " +
			"endpoint " +
			"status --write-out=table | a/away (no heartbeats)\n" +
			"instance a/well sends no heartbeats, but answers | 3 | - | \n" +
			"instance a/gone is silent | 4 | 64 | march instance forget a gone\n"},
		{"a full etcd", findings{rooms: []allocator.Room{"a"}, etcd: etcdSize{StoreSize: admin.StoreSize{NoSpace: true,
			Revision: 7}, nearly: after(2), full: after(3)}, instances: []instance{silent("a", "one", 4)},
			sample: tells(map[record.InstanceID]*marchv1.InstanceStatus{"a/one": {}})},
			"etcd is full, and takes no writes: no IDs are leased | 3 | - | etcdctl compact 7; etcdctl defrag " +
				"--cluster && etcdctl alarm disarm | a/one (no heartbeats)\n"},
		{"a corrupt etcd", findings{etcd: etcdSize{corrupt: after(3)}},
			"etcd's members differ (alarm CORRUPT), and etcd takes neither reads nor writes: " +
				"no IDs are leased | 3 | - | etcdctl endpoint hashkv --cluster\n"},
		{"silence under a halt", findings{halt: &marchv1.Halt{By: "ann", Why: "w"}, forgetAfter: time.Hour,
			instances: []instance{silent("a", "one", 2)}},
			"leasing is halted in all rooms by ann: w | - | - | march recover\ninstance a/one is silent | 2 | - | " +
				"march instance forget a one\n"},
		{"instances", findings{instances: []instance{alive("a", "mute"), alive("a", "off"), alive("a", "away"),
			alive("a", "full"), unconfirmed, unreadable, alive("a", "well"), alive("a", "new")},
			sample: tells(map[record.InstanceID]*marchv1.InstanceStatus{
				"a/mute": nil, "a/off": {NotReady: "no IDs"}, "a/away": {EtcdAwaySince: stamp(4)}, "a/well": {},
				"a/full": {NotReady: "none are held", Problems: []*marchv1.Problem{problem.New(problem.EtcdFull, "",
					after(4), "revision", 8, "etcdctl", "etcdctl"), problem.New(problem.NoIDs, "a/full", after(5))}},
				"a/bare": {NotReady: "no journal",
					Problems: []*marchv1.Problem{{Kind: marchv1.ProblemKind_PROBLEM_KIND_UNCONFIRMED, Of: "a/bare",
						What: "instance a/bare says so itself", Remedy: "X."}}},
			}), etcd: etcdSize{StoreSize: admin.StoreSize{Bytes: 1900 << 20, Quota: 2048 << 20}, nearly: after(3)}},
			"etcd is full, and takes no writes: no IDs are leased | 4 | - | etcdctl compact 8; etcdctl defrag " +
				"--cluster && etcdctl alarm disarm | a/full (not ready) | a/off (not ready)\n" +
				"instance a/mute does not answer at mute:1 | 6 | - | \n" +
				"etcd does not answer instance a/away: it is not known how many members do | 4 | - | etcdctl " +
				"endpoint " +
				"status --write-out=table\n" +
				"instance a/bare says so itself | 0 | - | \n"},
		{"an unconfirmed instance that does not answer", findings{instances: []instance{unconfirmed},
			sample: tells(map[record.InstanceID]*marchv1.InstanceStatus{"a/bare": nil})},
			"instance a/bare does not answer at bare:1 | 6 | - | \n" +
				"instance a/bare started without its journal, which is required, and leases nothing | 0 | - | march " +
				"instance confirm a bare\n"},
		{"a halt that instances tell too", findings{halt: &marchv1.Halt{By: "ann", Why: "w", Time: stamp(1)},
			instances: []instance{alive("a", "one")}, sample: tells(map[record.InstanceID]*marchv1.InstanceStatus{
				"a/one": {NotReady: "x", Problems: []*marchv1.Problem{problem.New(problem.Halted, "", after(1), "by",
					"ann",
					"why", "w"), problem.New(problem.Barred, "a/full", after(2), "by", "bob")}},
			})}, "leasing is halted in all rooms by ann: w | 1 | - | march recover | a/full (barred)\n"},
		{"a halt that is over, and a range that a room has by now, as instances told before", findings{
			rooms: []allocator.Room{"a"}, instances: []instance{alive("a", "one")},
			sample: tells(map[record.InstanceID]*marchv1.InstanceStatus{"a/one": {NotReady: "x",
				Problems: []*marchv1.Problem{problem.New(problem.Halted, "", after(1), "by", "ann", "why", "w"),
					problem.New(problem.Barred, "a/one", after(2), "by", "bob"),
					problem.New(problem.NoRange, "a", after(2), "layout", 3)}}})}, ""},
		{"a halt that instances tell while etcd is away from the console", findings{
			outage: []*marchv1.Problem{problem.Away("console", "this console", "", store.Members{}, nil, after(1),
				"etcdctl")},
			instances: []instance{alive("a", "one")},
			sample: tells(map[record.InstanceID]*marchv1.InstanceStatus{"a/one": {Problems: []*marchv1.Problem{
				problem.New(problem.Halted, "", after(1), "by", "ann", "why", "w")}}})},
			"etcd does not answer this console: it is not known how many members do | 1 | - | etcdctl endpoint " +
				"status --write-out=table\n" +
				"leasing is halted in all rooms by ann: w | 1 | - | march recover\n"},
		{"instances before a sample", findings{instances: []instance{alive("a", "one")}}, ""},
		{"a migration", findings{migration: waiting}, "migration M cannot go on: the layout is version 3 | 7 | - | " +
			"march migrate abort M\n" +
			"migration M waits for instance a/two, which is silent | 1 | 11 | march migrate continue M " +
			"--without a/two\n"},
		{"keys", findings{unreadable: []record.KeyError{{Key: "/k/b", Err: errors.New("bad")},
			{Key: "/k/a", Err: errors.New("bad")}, {Key: "/k/b", Err: errors.New("bad")}}},
			"key /k/a: bad | - | - | march instance forget k a\nkey /k/b: bad | - | - | march instance forget k b\n"},
		{"a key that stops all", findings{unusable: &record.KeyError{Key: "/k/b", Err: errors.New("bad")},
			rooms: []allocator.Room{"a"}, unreadable: []record.KeyError{{Key: "/k/a", Err: errors.New("bad")},
				{Key: "/k/b", Err: errors.New("bad")}}},
			"key /k/b: bad | - | - | march instance forget k b\nroom a has a range, and no instance of it is alive" +
				" | - | - | march room a\nkey /k/a: bad | - | - | march instance forget k a\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.f.damage, test.f.sample.at, test.f.etcdctl = damage, after(6), "etcdctl"
			list := test.f.problems()
			if got := lines(list); got != test.want {
				t.Errorf("got\n%swant\n%s", got, test.want)
			}
			for _, p := range list {
				if !strings.HasSuffix(p.GetRemedy(), ".") || strings.HasSuffix(p.GetWhat(), ".") {
					t.Errorf("%v", p)
				}
			}
		})
	}
}

// A list of problems stays readable, however many there are.
func TestProblemsAreBounded(t *testing.T) {
	f := findings{damage: damage}
	for i := range 1000 {
		f.instances = append(f.instances, silent("a", allocator.Instance(fmt.Sprintf("i%03d", i)), 1))
		f.unreadable = append(f.unreadable, record.KeyError{Key: fmt.Sprint("/k/", i), Err: errors.New("bad")})
	}
	list := f.problems()
	if n := len(list); n != 2*(problemsOfKind+1) ||
		list[problemsOfKind].GetWhat() != "980 more problems with instances" ||
		list[n-1].GetWhat() != "980 more problems with keys" {
		t.Errorf("%d problems\n%s", n, lines(list))
	}
}

// etcd counts as nearly full from the first sample that shows it until one that does not.
func TestFullness(t *testing.T) {
	var e etcdSize
	for minute, test := range []struct {
		bytes, quota int64
		since        int // -1 for not nearly full
	}{{79, 100, -1}, {81, 100, 1}, {90, 100, 1}, {50, 100, -1}, {90, 0, -1}, {99, 100, 5}} {
		e = e.note(admin.StoreSize{Bytes: test.bytes, Quota: test.quota}, store.Members{}, after(minute))
		if nearly := len(e.problems("etcdctl")) > 0; nearly != (test.since >= 0) ||
			nearly && !e.nearly.Equal(after(test.since)) || !nearly && !e.nearly.IsZero() {
			t.Errorf("minute %d: %+v", minute, e)
		}
	}
	for _, answer := range []int{0, 1, 2} { // where none answers, etcd's answers came another way
		e = etcdSize{}.note(admin.StoreSize{}, store.Members{All: 2, Answer: answer}, when)
		if (len(e.problems("etcdctl")) > 0) != (answer == 1) {
			t.Errorf("%d of 2 members answer: %v", answer, e.problems("etcdctl"))
		}
	}
}

// An instance whose registration cannot be read serves no known layout. The room shows the
// layout of its other instances.
func TestRoomOfUnreadable(t *testing.T) {
	one, unreadable := alive("a", "one"), alive("a", "newer")
	one.Version, unreadable.Unreadable = 7, errors.New("format 99")
	for _, list := range [][]instance{{one, unreadable}, {unreadable, one}} {
		if s := (findings{instances: list}).roomStatus("a", nil); s.GetVersion() != 7 || s.GetInstances() != 2 {
			t.Errorf("%v", s)
		}
	}
}
