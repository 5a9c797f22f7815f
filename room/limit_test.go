package room_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestLowerLimit lowers a tag's limit below IDs that an instance holds since an earlier
// layout. The instance issues no ID from the limit on. It tells clients the limit, both
// in an answer and in an error.
func TestLowerLimit(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) { s.MinStep = 10_000 }, "order")
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		version := c.Change(layout(100,
			map[allocator.Room]allocator.Range{"a": {Upper: 50}, "b": {Lower: 60, Upper: 100}}),
			"test")
		a.await("the layout is served", func() bool { return c.registered("a", "a1").Version == version })
		if end := a.chain("order").GetEnd(); end < 10_000 || a.chain("order").GetFirst() != 2 {
			t.Fatalf("%v, want 10,000 held IDs from the layout before", a.chain("order"))
		}
		c.update("order", func(s *record.TagSettings) { s.Limit = 120 })
		a.await("what is held is cut", func() bool { return a.chain("order").GetEnd() <= 120 })
		r, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: "order", Count: 5})
		if err != nil || r.GetLimit() != 120 || r.GetServes().GetVersion() != version {
			t.Errorf("%v, %v; want limit 120 and version %d", r, err, version)
		}
		for {
			id, err := a.next("order")
			if err != nil {
				if problem := (want{codes.ResourceExhausted, "exhausted", nil}).check(err); problem != "" {
					t.Error(problem)
				}
				break
			}
			if id >= 120 {
				t.Fatalf("%d with a limit of 120", id)
			}
		}
		if _, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: "order", Count: 5}); api.LimitOf(err) != 120 {
			t.Errorf("%v does not name the limit", err)
		}
		c.update("order", func(s *record.TagSettings) { s.Limit = allocator.MaxID })
		a.await("it goes on", func() bool { id, err := a.next("order"); return err == nil && id > 10_000 })
	})
}
