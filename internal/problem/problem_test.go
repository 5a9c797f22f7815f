package problem_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// when is the time of tests, and after(n) is n minutes later.
var when = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(minutes int) time.Time { return when.Add(time.Duration(minutes) * time.Minute) }

// Kinds of problems that a list tells apart.
const (
	x    = marchv1.ProblemKind_PROBLEM_KIND_SILENT
	y    = marchv1.ProblemKind_PROBLEM_KIND_NO_LEASE
	z    = marchv1.ProblemKind_PROBLEM_KIND_JOURNAL
	said = marchv1.ProblemKind_PROBLEM_KIND_BARRED
)

// A problem without a beginning of its own gets the time at which it was first noted, until it
// is gone.
func TestLog(t *testing.T) {
	var l problem.Log
	list := func(kinds ...marchv1.ProblemKind) (all []*marchv1.Problem) {
		for _, kind := range kinds {
			all = append(all, &marchv1.Problem{Kind: kind})
		}
		return all
	}
	since := func(all []*marchv1.Problem) (text string) {
		for _, p := range all {
			text += fmt.Sprint(api.Word(p.GetKind()), int(p.GetSince().AsTime().Sub(when).Minutes()), " ")
		}
		return text
	}
	own := []*marchv1.Problem{{Kind: said, Since: timestamppb.New(after(50))}}
	for minute, test := range []struct {
		got  func(now time.Time) []*marchv1.Problem
		want string
	}{
		{func(now time.Time) []*marchv1.Problem { return l.Note(list(x), now) }, "silent0 "},
		{func(now time.Time) []*marchv1.Problem { return l.Note(list(x, y), now) }, "silent0 no_lease1 "},
		{func(now time.Time) []*marchv1.Problem { return l.Fill(list(y, z), now) }, "no_lease1 journal2 "},
		{func(now time.Time) []*marchv1.Problem { return l.Note(list(y, z), now) }, "no_lease1 journal2 "},
		{func(now time.Time) []*marchv1.Problem { return l.Note(list(x), now) }, "silent4 "},
		{func(now time.Time) []*marchv1.Problem { return l.Note(own, now) }, "barred50 "},
		{func(now time.Time) []*marchv1.Problem {
			return l.Note(list(marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE), now)
		}, "unreadable6 "},
		{func(now time.Time) []*marchv1.Problem {
			told := list(marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE)
			told[0].Since = timestamppb.New(now)
			return l.Note(told, now)
		}, "unreadable6 "},
	} {
		if got := since(test.got(after(minute))); got != test.want {
			t.Errorf("minute %d: got %q, want %q", minute, got, test.want)
		}
	}
	if more := l.Note(list(marchv1.ProblemKind_PROBLEM_KIND_MORE), when); more[0].GetSince() != nil {
		t.Errorf("%v", more)
	}
}

// Of two equal problems in a list the first stays. If it has no time, it gets the other's.
func TestUnique(t *testing.T) {
	list := problem.Unique([]*marchv1.Problem{
		{Kind: x, What: "first"}, {Kind: x, Of: "o"}, {Kind: y},
		{Kind: x, What: "second", Since: timestamppb.New(after(1))},
	})
	if len(list) != 3 || list[0].GetWhat() != "first" || !list[0].GetSince().AsTime().Equal(after(1)) ||
		list[1].GetOf() != "o" || list[2].GetKind() != y {
		t.Errorf("%v", list)
	}
}

// A line has all parts of a problem.
func TestLine(t *testing.T) {
	p := problem.New(problem.Silent, "a/one", after(0))
	p.Until, p.Hits = timestamppb.New(after(60)), []string{"b/two (not ready)"}
	const want = "instance a/one is silent. Since 2026-01-01T00:00:00Z. A console forgets it at 2026-01-01T01:00:00Z" +
		". It hits b/two (not ready). Callers use the room's other instances. Start it again. If it is gone for " +
		"good, forget it. Next: `march instance forget a one`"
	if got := problem.Line(p); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got := problem.Line(&marchv1.Problem{What: "x"}); got != "x." {
		t.Errorf("got %q", got)
	}
}

// One cause is one problem: an outage that all notice, a room without a living instance, a halt.
func TestGroup(t *testing.T) {
	away := func(of string, minutes int) *marchv1.Problem {
		return problem.New(problem.EtcdAway, of, after(minutes), "names", of, "members",
			"1 of 3 members answers, no leader",
			"effect", "", "etcdctl", "etcdctl")
	}
	is := func(c *problem.Row, of string) *marchv1.Problem {
		return problem.New(c, of, after(3), "why", "x", "by", "ann", "address", "h:1")
	}
	used := func(in allocator.Room) *marchv1.Problem { return is(problem.WorkersUsed, problem.Slice(in, 2)) }
	noWorker := func(of string) *marchv1.Problem {
		p := is(problem.NoWorker, problem.Slice("a", 2))
		p.Hits = []string{of}
		return p
	}
	for _, test := range []struct {
		list []*marchv1.Problem
		want string
	}{
		{[]*marchv1.Problem{away("console", 2), away("a/one", 1), is(problem.NotReady, "a/one"), away("b/two", 1),
			is(problem.NoHeartbeats, "b/two"), is(problem.Silent, "c/three")},
			"etcd_away console 1 [a/one (not ready) b/two (no heartbeats)]; silent c/three 3 []"},
		{[]*marchv1.Problem{is(problem.NotReady, "a/one"), away("b/two", 1), away("a/one", 2)},
			"etcd_away b/two 1 [a/one (not ready)]"},
		{[]*marchv1.Problem{away("b/two", 1), is(problem.NotReady, "a/one")},
			"etcd_away b/two 1 []; not_ready a/one 3 []"},
		{[]*marchv1.Problem{is(problem.Silent, "a/one"), is(problem.NoAnswer, "a/two"), is(problem.NoInstance, "a"),
			is(problem.Silent, "ab/one")},
			"no_instance a 3 [a/one (silent) a/two (no answer)]; silent ab/one 3 []"},
		{[]*marchv1.Problem{is(problem.Halted, ""), is(problem.NotReady, "a/one"), is(problem.Barred, "b/two"),
			is(problem.JournalFull, "c/three"), is(problem.NotReady, "c/three")},
			"halted  3 [a/one (not ready) b/two (barred) c/three (not ready)]; journal c/three 3 []"},
		{[]*marchv1.Problem{is(problem.JournalFull, "a/one"), is(problem.NotReady, "a/one"),
			is(problem.NotReady, "a/two")},
			"journal a/one 3 [a/one (not ready)]; not_ready a/two 3 []"},
		{[]*marchv1.Problem{is(problem.EtcdNearlyFull, ""), is(problem.EtcdFull, ""), is(problem.NoHeartbeats,
			"a/one")},
			"etcd_full  3 [a/one (no heartbeats)]"},
		{[]*marchv1.Problem{noWorker("a/one"), noWorker("a/two"), used("a"), used("b")},
			"no_worker a, 2 bits 3 [a/one a/two]; workers_used b, 2 bits 3 []"},
	} {
		var got []string
		for _, p := range problem.Group(test.list) {
			got = append(got, fmt.Sprint(api.Word(p.GetKind()), " ", p.GetOf(), " ",
				int(p.GetSince().AsTime().Sub(when).Minutes()), " ", p.GetHits()))
		}
		if text := strings.Join(got, "; "); text != test.want {
			t.Errorf("got  %s\nwant %s", text, test.want)
		}
	}
}

// The log has one line where a problem begins, with the remedy, and one where it is over. One that comes and goes
// has no further line, so that the last line is true. One that a single look showed has none.
func TestChanges(t *testing.T) {
	var b bytes.Buffer
	log := hclog.New(&hclog.LoggerOptions{Output: &b, DisableTime: true})
	var changes problem.Changes
	halted := problem.New(problem.Halted, "", after(0), "by", "ann", "why", "w")
	for _, second := range []int{0, -1, 2, 3, -4, 5, -7, -16, -17, -18, 30, 31} {
		list := []*marchv1.Problem{halted}
		if second < 0 {
			list, second = nil, -second
		}
		changes.Write(log, list, when.Add(time.Duration(second)*time.Second))
	}
	const began = `[WARN]  a problem began: kind=halted what="leasing is halted in all rooms by ann: w" ` +
		"since=2026-01-01T00:00:00Z remedy=\"Rooms issue the IDs that they hold, and lease none. Tags with a " +
		"strict order stop within their tenure_hold. When etcd has the right data, let rooms lease again. Next: " +
		"`march recover`\"\n"
	const over = `[INFO]  a problem is over: kind=halted what="leasing is halted in all rooms by ann: w"` + "\n"
	if b.String() != began+over+began {
		t.Errorf("got\n%s", b.String())
	}
}

// Each row says what and what to do, in sentences, and names only alerts that there are. The alerts of what a row hides
// do not fire beside the row's own.
func TestTable(t *testing.T) {
	text := must(os.ReadFile("../../deploy/prometheus/march.rules.yml"))(t)
	rules := make(map[string]string) // by their alerts
	for _, rule := range strings.Split(string(text), "- alert: ")[1:] {
		name, rule, _ := strings.Cut(rule, "\n")
		rules[name] += rule
	}
	for c, row := range problem.Table {
		for _, text := range []string{row.Remedy, row.Effect} {
			if text != "" && !strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "}") {
				t.Errorf("row %d: %q is no sentence", c, text)
			}
		}
		if row.What == "" || row.Remedy == "" || strings.HasSuffix(row.What, ".") {
			t.Errorf("row %d: %+v", c, row)
		}
		if row.Kind != 0 && row.Page == "" && row != problem.More && row != problem.Insecure {
			t.Errorf("row %d has no page: %s", c, row.What)
		}
		if onPage.MatchString(row.Command) && row.Kind != 0 && row.Button == "" {
			t.Errorf("row %d has no button, and a page has one for %s", c, row.Command)
		}
		for _, alert := range row.Alerts {
			if rules[alert] == "" {
				t.Errorf("row %d: there is no alert %s", c, alert)
			}
		}
		for _, hidden := range problem.Table {
			if len(row.Alerts) == 0 || len(hidden.Hides) > 0 || !slices.Contains(row.Hides, hidden.Kind) {
				continue
			}
			for _, alert := range hidden.Alerts {
				if !slices.Contains(row.Alerts, alert) && !strings.Contains(rules[alert], " unless ") {
					t.Errorf("row %d: %s fires beside %v", c, alert, row.Alerts)
				}
			}
		}
	}
}

// Each kind of key that cannot be read has its own row, whose texts are sentences with all parameters.
func TestDamages(t *testing.T) {
	keys := must(record.NewKeys("default"))(t)
	kinds := []record.Kind{"", "layouts/in force", "layouts/before it", "migrations/under way"}
	for _, key := range keys.Known() {
		kinds = append(kinds, keys.KindOf(key))
	}
	for _, kind := range kinds {
		p := problem.OfKey(&record.KeyError{Key: "k", Err: errors.New("bad")}, record.KeyParts{Kind: kind, Tag: "t",
			Room: "a", Instance: "one"}, when)
		said := p.GetWhat() + p.GetEffect() + p.GetRemedy() + p.GetCommand()
		if p.GetWhat() != "key k: bad" || !strings.HasPrefix(p.GetEffect(), "It stops ") ||
			!strings.HasSuffix(p.GetEffect(), ".") || !strings.HasSuffix(p.GetRemedy(), ".") ||
			parameter.MatchString(said) {
			t.Errorf("%q: %v", kind, p)
		}
	}
}

// onPage matches commands that a page has a button for.
var onPage = regexp.MustCompile(`^march (tag update|migrate (plan|abort|continue)|instance forget) `)

// rewrite writes the runbook's list of problems again.
var rewrite = flag.Bool("rewrite", false, "write the list of problems in deploy/RUNBOOK.md again")

// The runbook has each row of the table.
func TestRunbook(t *testing.T) {
	const path, begin, end = "../../deploy/RUNBOOK.md", "<!-- problems, from internal/problem -->\n",
		"<!-- end of problems -->"
	got := must(os.ReadFile(path))(t)
	before, rest, _ := strings.Cut(string(got), begin)
	_, after, found := strings.Cut(rest, end)
	if !found {
		t.Fatalf("%s has no list of problems", path)
	}
	var b strings.Builder
	for _, row := range problem.Table {
		if fixed := parameter.ReplaceAllString(row.What, ""); fixed != "" { // otherwise the words are another's
			b.WriteString(entry(row))
		}
	}
	want := before + begin + b.String() + end + after
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(got) {
		t.Errorf("%s has other rows: run this test with -rewrite", path)
	}
}

// parameter is a parameter in a text.
var parameter = regexp.MustCompile(`\{[a-z]+\}`)

// entry returns a row as the runbook has it, in lines of at most 100 characters.
func entry(row *problem.Row) string {
	text := "- **" + row.What + ".**"
	for _, part := range []string{row.Effect, row.Remedy} {
		if part != "" {
			text += " " + part
		}
	}
	if row.Command != "" {
		text += " `" + row.Command + "`"
	}
	for k, alert := range row.Alerts {
		if k == 0 {
			text += " Alert:"
		}
		text += fmt.Sprintf(" [%s](#%s)", alert, strings.ToLower(alert))
	}
	text = strings.ReplaceAll(text, "{etcdctl}", "etcdctl --endpoints=... ")
	text = strings.ReplaceAll(text, "...  ", "... ")
	text = parameter.ReplaceAllStringFunc(text, func(p string) string { return strings.ToUpper(strings.Trim(p, "{}")) })
	var b strings.Builder
	line := 0
	for k, word := range strings.Fields(text) {
		switch {
		case k == 0:
		case line+1+len(word) > 100:
			b.WriteString("\n  ")
			line = 2
		default:
			b.WriteString(" ")
			line++
		}
		b.WriteString(word)
		line += len(word)
	}
	return b.String() + "\n"
}

// Pages leave out a button of whose call they do not know the right.
func TestEachButtonHasItsCall(t *testing.T) {
	for _, row := range problem.Table {
		known := slices.ContainsFunc(marchv1.ConsoleService_ServiceDesc.Methods, func(m grpc.MethodDesc) bool {
			return m.MethodName == row.Call
		})
		if (row.Button != "") != known || known && problem.CallOf(row.Kind) != row.Call {
			t.Errorf("%s: the button is %q, and its call %q", row.What, row.Button, row.Call)
		}
	}
}
