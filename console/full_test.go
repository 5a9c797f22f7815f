package console_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// While etcd is full no instance can send heartbeats. The console asks the instances all the
// same, and says that etcd is full: not that the instances are silent, nor that their rooms have
// none. It says so as well if it was started while etcd was full.
func TestFullEtcd(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(testcluster.Halves(), "test")
		c.Tag(nil, "test", "order")
		for _, in := range []allocator.Room{"a", "b"} {
			r := c.Room(in, "one", nil)
			must(r.Next(bg, &marchv1.NextRequest{Tag: "order"}))(t)
		}
		consoles := []*consoleOf{startOver(c)}
		c.Mem.NoSpace(true)
		consoles = append(consoles, startOver(c))
		const full, silent, none = marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL, marchv1.ProblemKind_PROBLEM_KIND_SILENT,
			marchv1.ProblemKind_PROBLEM_KIND_NO_INSTANCE
		for k, s := range consoles {
			testcluster.Await(t, "all are silent", func() bool {
				list, err := s.ListInstances(bg, &marchv1.ListInstancesRequest{})
				return err == nil && len(list.GetInstances()) == 2 && !list.GetInstances()[0].GetAlive() &&
					!list.GetInstances()[1].GetAlive()
			})
			var kinds map[marchv1.ProblemKind]int
			var o *marchv1.GetOverviewResponse
			look := func() {
				var err error
				if o, err = s.GetOverview(bg, &marchv1.GetOverviewRequest{}); err != nil {
					t.Fatal(err)
				}
				kinds = make(map[marchv1.ProblemKind]int)
				for _, p := range o.GetProblems() {
					kinds[p.GetKind()]++
				}
			}
			testcluster.Await(t, "etcd is full", func() bool { look(); return o.GetAsOf() != nil && kinds[full] == 1 })
			for began := time.Now(); time.Since(began) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
				if look(); kinds[full] != 1 || kinds[silent]+kinds[none] > 0 {
					t.Fatalf("console %d: %v", k, o.GetProblems())
				}
				for _, r := range o.GetRooms() {
					if r.GetAlive() != 1 || r.GetReady() != 1 {
						t.Fatalf("console %d: %v", k, r)
					}
				}
			}
			if code, body := s.get("/"); code != http.StatusOK ||
				!strings.Contains(body, "tcd is full, and takes no writes") || strings.Contains(body, "is silent") {
				t.Errorf("console %d: page %d\n%s", k, code, body)
			}
			if _, body := s.get("/readyz?verbose"); !strings.Contains(body, "[!]etcd is full") {
				t.Errorf("console %d: %s", k, body)
			}
		}
		for _, s := range consoles { // also where no instance says it
			list, err := s.ListInstances(bg, &marchv1.ListInstancesRequest{Status: true})
			if err != nil || list.GetInstances()[0].GetStatus() == nil || list.GetInstances()[0].GetSilentFor() == nil {
				t.Errorf("%v, %v", list, err)
			}
		}
	})
}

// A console learns of a full etcd from etcd itself, without any instance.
func TestFullEtcdWithoutInstances(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "test")
	c.Etcd.NoSpace(t, true)
	s := startOver(c)
	testcluster.Await(t, "etcd is full", func() bool {
		o, err := s.GetOverview(bg, &marchv1.GetOverviewRequest{})
		for _, p := range o.GetProblems() {
			if err == nil && p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL {
				return true
			}
		}
		return false
	})
	c.Etcd.NoSpace(t, false)
	testcluster.Await(t, "it is no longer full", func() bool {
		o, err := s.GetOverview(bg, &marchv1.GetOverviewRequest{})
		for _, p := range o.GetProblems() {
			if p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL {
				return false
			}
		}
		return err == nil
	})
}
