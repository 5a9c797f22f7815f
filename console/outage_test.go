package console_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/testcluster"
)

// TestOutage: while etcd does not answer, a console goes on asking the instances that it
// knows, or those that it was given. Before, it showed nothing.
func TestOutage(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(testcluster.Halves(), "ann")
		c.Tag(nil, "ann", "order")
		rooms := []*testcluster.Room{c.Room("a", "a1", nil), c.Room("b", "b1", nil)}
		knows := c.Console(nil)
		for _, r := range rooms {
			must(r.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: "order", Count: 10}))(t)
		}
		given := []string{"127.0.0.1:1"}
		list, err := knows.ListInstances(t.Context(), &marchv1.ListInstancesRequest{})
		if err != nil || len(list.GetInstances()) != 2 {
			t.Fatalf("%v, %v", list, err)
		}
		for _, i := range list.GetInstances() {
			given = append(given, i.GetAddress())
		}
		overview := func(n *testcluster.Console) *marchv1.GetOverviewResponse {
			o, err := n.GetOverview(t.Context(), &marchv1.GetOverviewRequest{})
			if err != nil {
				return nil
			}
			return o
		}
		away := func(o *marchv1.GetOverviewResponse) bool {
			p := o.GetProblems()
			return len(p) > 0 && p[0].GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY &&
				p[0].GetOf() == "console" && p[0].GetSince() != nil
		}
		ready := func(o *marchv1.GetOverviewResponse) bool {
			return len(o.GetRooms()) == 2 && o.GetRooms()[0].GetHeld() > 0 && o.GetRooms()[1].GetHeld() > 0 &&
				time.Since(o.GetAsOf().AsTime()) < 5*time.Second
		}
		testcluster.Await(t, "both rooms answer", func() bool { o := overview(knows); return ready(o) && !away(o) })
		ledger := c.Ledger()
		c.Mem.Stop()
		testcluster.Await(t, "the console says so, and asks the rooms", func() bool {
			o := overview(knows)
			return away(o) && ready(o) && o.GetLayout().GetLayout().GetVersion() == 1 &&
				strings.Contains(o.GetProblems()[0].GetEffect(), "as of 2")
		})
		held := overview(knows).GetRooms()[0].GetHeld()
		must(rooms[0].NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: "order", Count: 10}))(t)
		testcluster.Await(t, "the reserve shrinks", func() bool {
			o := overview(knows)
			return away(o) && ready(o) && o.GetRooms()[0].GetHeld() < held
		})
		// A client that looks for its room finds it.
		list, err = knows.ListInstances(t.Context(), &marchv1.ListInstancesRequest{Room: "a"})
		if err != nil || len(list.GetInstances()) != 1 || list.GetInstances()[0].GetAddress() == "" ||
			len(list.GetProblems()) == 0 ||
			list.GetProblems()[0].GetKind() != marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY {
			t.Errorf("instances without etcd: %v, %v", list, err)
		}
		if h, err := knows.GetHistory(t.Context(), &marchv1.GetHistoryRequest{Minutes: 10, Step: 5}); err != nil ||
			len(h.GetRooms()) != 2 {
			t.Errorf("the history: %v, %v", h, err)
		}

		told := c.Console(func(cfg *console.Config) { cfg.Ledger, cfg.Rooms = ledger, given })
		testcluster.Await(t, "a console that starts then asks the rooms that it was given", func() bool {
			o := overview(told)
			return away(o) && ready(o) && o.GetLayout() == nil && len(o.GetProblems()) > 1 &&
				o.GetProblems()[1].GetOf() == "127.0.0.1:1"
		})
		for _, n := range []*testcluster.Console{knows, told} {
			for path, want := range map[string]string{
				"/":        "Etcd does not answer this console</b>: its member does not answer; ",
				"/history": "IDs per second",
			} {
				if code, body := testcluster.Get(n.HTTP, path); code != http.StatusOK || !strings.Contains(body, want) {
					t.Errorf("%s: %d, want %q in\n%s", path, code, want, body)
				}
			}
		}
		c.Mem.Start()
		for _, n := range []*testcluster.Console{knows, told} {
			testcluster.Await(t, "all is as before", func() bool {
				o := overview(n)
				return ready(o) && !away(o) && o.GetLayout().GetLayout().GetVersion() == 1
			})
		}
	})
}

// TestRooms: an address that a console is given is checked.
func TestRooms(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"127.0.0.1:7010": "",
		"host":  `rooms: "host"; allowed: addresses HOST:PORT`,
		":7010": `rooms: ":7010"; allowed: addresses HOST:PORT`} {
		cfg := console.DefaultConfig()
		cfg.Rooms = []string{address}
		if err := cfg.Needs(allocator.Errorf(allocator.Unavailable, "etcd is away")); err != nil {
			t.Errorf("with an address it does not start without etcd: %v", err)
		}
		if err := cfg.Validate(); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}
