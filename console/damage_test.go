package console_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/testcluster"
)

const damagedULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

// damagedKeys has keys of each kind that a console reads, and the words of the list of
// problems about each, unless it appears only in a list of its own.
var damagedKeys = []struct {
	key  string
	puts []string // other keys that make the damage matter: each followed by its value
	says []string // of the problem; none where no list of problems has it
}{
	{"identity", nil, []string{"It stops all leasing, in every room, and every change by a console; " +
		"no process starts", "Put the value of a backup back"}},
	{"epoch", nil, []string{"It stops all leasing, in every room.", "Next: `march recover`"}},
	{"layout", nil, []string{"It stops all leasing, in every room.", "Next: `march recover`"}},
	{"layouts/0000000000000000002", nil, []string{"It stops all leasing, in every room.",
		"Put the value of key layout there."}},
	{"layouts/0000000000000000001", nil, []string{"It stops all leasing, in every room.",
		"Put the value of a backup back."}},
	{"beat", nil, []string{"It stops all leasing, in every room, and every change by a console.",
		"If etcd was certainly not restored, delete the key"}},
	{"settings", nil, []string{"It stops all leasing, in every room.",
		`Put {"format":2,"journal":"required","nonce":""} there`}},
	{"migration", nil, []string{"It stops migrations: the one that is under way does not go on, " +
		"and no other starts."}},
	{"migrations/" + damagedULID, []string{"migration", `{"format":2,"name":"` + damagedULID + `"}`},
		[]string{"It stops migrations: this one is under way and does not go on, and no other starts."}},
	{"rooms/a/a1", nil, []string{"It stops leasing by instance a/a1, its heartbeats, " +
		"and migrations that wait for it.", "Next: `march instance forget a a1`"}},
	{"alive/b/gone", nil, []string{"It stops nothing; instance b/gone writes it again, if it runs.",
		"Next: `march instance forget b gone`"}},
	{"rooms/Bad Room/x", nil, []string{"It stops nothing; lists name it."}},
	{"migrations/" + damagedULID, nil, nil},
	{"tags/order", nil, []string{"It stops leasing of tag order"}},
	{"marks/a/order", nil, []string{"It stops leasing of tag order"}},
	{"audit/" + damagedULID, nil, nil},
	{"answered", nil, nil},
}

// A value that cannot be read is one problem, wherever problems are shown. The problem
// names the key, its effect and the remedy. Everything else is shown as before, both by a
// console that saw the damage happen and by one that has just started.
func TestDamageStopsNoPage(t *testing.T) {
	for _, test := range damagedKeys {
		inBubble(t, fmt.Sprint(test.key, len(test.puts)), func(t *testing.T) {
			c := startHalves(t)
			c.create(&marchv1.Tag{Name: "order"})
			l := c.Ledger()
			record := must(l.Refresh(bg))(t)
			next := record.Layout
			next.Boundary = 200
			must(admin.New(l, admin.DefaultConfig()).ChangeLayout(bg, record, next, "test"))(t)
			must(c.room("a", "a1").Next(bg, &marchv1.NextRequest{Tag: "order"}))(t)
			showsAll(t, c, "", nil)
			key := "/march/default/" + test.key
			for i := 0; i < len(test.puts); i += 2 {
				c.Corrupt(store.OpPut("/march/default/"+test.puts[i], []byte(test.puts[i+1])))
			}
			c.Corrupt(store.OpPut(key, []byte("garbage")))
			for _, c := range []*consoleOf{c, startOver(c.Cluster)} {
				if test.key == "tags/order" || test.key == "marks/a/order" { // tags are read while callers ask
					testcluster.Await(t, "the index has it", func() bool {
						o, err := c.GetOverview(bg, &marchv1.GetOverviewRequest{})
						return err == nil && slices.ContainsFunc(o.GetProblems(), func(p *marchv1.Problem) bool {
							return p.GetOf() == key
						})
					})
				}
				showsAll(t, c, key, test.says)
			}
		})
	}
}

// showsAll checks that a console shows a cluster, and that it shows the problem of a key
// everywhere, if it has one.
func showsAll(t *testing.T, c *consoleOf, key string, says []string) {
	t.Helper()
	line := ""
	check := func(what string, list []*marchv1.Problem) {
		t.Helper()
		count := 0
		for _, p := range list {
			if p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE && p.GetOf() == key {
				count++
				line = problem.Line(p)
			}
		}
		want := min(len(says), 1)
		if count != want {
			t.Errorf("%s has %d problems of %s, want %d: %v", what, count, key, want, list)
		}
		for _, part := range slices.Concat(says, []string{". Since 2"}[:want]) {
			if !strings.Contains(line, part) {
				t.Errorf("%s says %s, without %q", what, line, part)
			}
		}
	}
	o, err := c.GetOverview(bg, &marchv1.GetOverviewRequest{})
	if err != nil || o.GetLayout().GetLayout().GetBoundary() == 0 || len(o.GetRooms()) < 2 ||
		!strings.HasPrefix(o.GetRooms()[0].GetName(), "a") {
		t.Errorf("overview: %v, %v", o, err)
	}
	check("overview", o.GetProblems())
	i, err := c.ListInstances(bg, &marchv1.ListInstancesRequest{Status: true})
	if err != nil || len(i.GetInstances()) != 1 || i.GetInstances()[0].GetName() != "a1" {
		t.Errorf("instances: %v, %v", i, err)
	}
	if !strings.Contains(key, "migration") { // a list of instances has no use for these
		check("instances", i.GetProblems())
	}
	g, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{})
	if err != nil || g.GetLayout().GetLayout().GetBoundary() == 0 {
		t.Errorf("layout: %v, %v", g, err)
	}
	if strings.Contains(line, "stops all leasing") {
		check("layout", g.GetProblems())
	}
	timed := regexp.MustCompile(` Since \S+Z\.`)
	code, body := c.get("/readyz?verbose")
	if body, line := timed.ReplaceAllString(body, ""), timed.ReplaceAllString(line, ""); code != http.StatusOK ||
		line != "" && !strings.Contains(body, "[!]"+line+"\n") {
		t.Errorf("readyz: %d, without %s\n%s", code, line, body)
	}
	for _, path := range []string{"/", "/instances", "/tags", "/migrations", "/audit", "/decode",
		"/decode?tag=order&id=1"} {
		code, body := 0, ""
		testcluster.Await(t, path+" answers", func() bool { code, body = c.get(path); return code != 0 })
		if shows := strings.Contains(body, key); code != http.StatusOK ||
			line != "" && (path == "/" || path == "/instances" && !strings.Contains(key, "migration")) && !shows {
			t.Errorf("%s: %d, shows the key: %t\n%s", path, code, shows, body)
		}
	}
	if code, body := c.get("/tags/order"); code != http.StatusOK && !strings.HasSuffix(key, "tags/order") {
		t.Errorf("/tags/order: %d\n%s", code, body)
	}
}
