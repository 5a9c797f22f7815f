package console_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestBrokenLayout: while the layout in etcd cannot be used, a console shows the last good
// one and what is wrong. A console that has just started does so too.
func TestBrokenLayout(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		must(c.GetLayout(bg, &marchv1.GetLayoutRequest{}))(t)
		const key = "/march/default/layout"
		value, _ := c.Mem.Value(key)
		good := string(value)
		put := func(value string) { c.Corrupt(store.OpPut(key, []byte(value))) }
		// shown checks the answers and pages of a console, and returns the problem that it reports.
		shown := func(c *consoleOf) string {
			t.Helper()
			l, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{})
			if err != nil || l.GetLayout().GetLayout().GetVersion() != 1 || len(l.GetEver()) != 2 {
				t.Errorf("layout: %v, %v", l, err)
			}
			o, err := c.GetOverview(bg, &marchv1.GetOverviewRequest{})
			if err != nil || o.GetLayout().GetLayout().GetBoundary() != 100 || len(o.GetRooms()) != 2 ||
				o.GetProblem() != l.GetProblem() {
				t.Errorf("overview: %v, %v", o, err)
			}
			r, err := c.ListRooms(bg, &marchv1.ListRoomsRequest{})
			if err != nil || len(r.GetRooms()) != 2 || r.GetProblem() != l.GetProblem() {
				t.Errorf("rooms: %v, %v", r, err)
			}
			i, err := c.ListInstances(bg, &marchv1.ListInstancesRequest{})
			if err != nil || i.GetProblem() != l.GetProblem() {
				t.Errorf("instances: %v, %v", i, err)
			}
			for _, path := range []string{"/", "/instances", "/migrations"} {
				code, page := c.get(path)
				if said := strings.Contains(page, "The layout in etcd cannot be used") ||
					strings.Contains(page, "Key "+key+"</b>: "); code != 200 || said != (l.GetProblem() != "") {
					t.Errorf("%s: %d, it is said: %t\n%s", path, code, said, page)
				}
			}
			return l.GetProblem()
		}
		if problem := shown(c); problem != "" {
			t.Errorf("of a good layout: %q", problem)
		}
		put(strings.ReplaceAll(good, `boundary":"100"`, `boundary":"200"`))
		fresh := startOver(c.Cluster)
		for name, c := range map[string]*consoleOf{"that saw it": c, "that is new": fresh} {
			if problem := shown(c); !strings.Contains(problem, "it differs from its own history") {
				t.Errorf("a console %s: %q", name, problem)
			}
			// A console makes no plan on a broken layout.
			_, err := c.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: quarter()})
			want{codes.FailedPrecondition, "refused", []string{"differs from its own history"}}.check(t, "plan", err)
		}
		put("{}")
		for _, c := range []*consoleOf{c, fresh} {
			if problem := shown(c); !strings.Contains(problem, "the layout in etcd cannot be used") {
				t.Errorf("of an empty layout: %q", problem)
			}
		}
		put(good)
		for _, c := range []*consoleOf{c, fresh} {
			if problem := shown(c); problem != "" {
				t.Errorf("after the repair: %q", problem)
			}
		}
	})
}
