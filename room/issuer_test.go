package room_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// A counter, a time-ordered tag, and an ordered one that another instance holds answer the same calls and doors. Only
// what keeps IDs, or needs them in a row, refuses time-ordered ones, and what keeps IDs ordered ones, each in its own
// words.
func TestIssuers(t *testing.T) { testcluster.Bubble(t, testIssuers) }

func testIssuers(t *testing.T) {
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "new.order")
	c.tag(timed(cosid), "event", "new.event")
	c.tag(ordered, "ordered", "new.ordered")
	holder := c.start("a", "a0", nil)
	for _, tag := range []string{"ordered", "new.ordered"} {
		holder.await("it issues "+tag, func() bool { _, err := holder.next(tag); return err == nil })
	}
	a, doors := c.withDoors(t, "a", false)
	_, redis := c.withRedis("a", "a2", false)
	ask := func(method, url string) error {
		status, _, body := doors.ask(method, url, "")
		if status != http.StatusOK || strings.Contains(body, `"data":null`) {
			return errors.New(body)
		}
		return nil
	}
	for _, row := range []struct {
		name    string
		call    func(tag string) error
		refuses bool // time-ordered IDs
		keeps   bool // IDs, or shows them: it refuses ordered ones
	}{
		{"Next", func(tag string) error { _, err := a.next(tag); return err }, false, false},
		{"NextBatch", func(tag string) error {
			_, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: tag, Count: 3})
			return err
		}, false, false},
		{"NextBatch in a row", func(tag string) error {
			_, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: tag, Count: 3, Contiguous: true})
			return err
		}, true, false},
		{"NextMany", func(tag string) error {
			_, err := a.NextMany(bg, &marchv1.NextManyRequest{Tags: []*marchv1.TagCount{{Tag: tag, Count: 3}}})
			return err
		}, false, false},
		{"Lease", func(tag string) error {
			_, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: tag, Count: 3})
			return err
		}, true, true},
		{"Lease of a window", func(tag string) error {
			_, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: tag, Count: 3, Window: &marchv1.WindowRequest{}})
			return err
		}, false, true},
		{"Stream", func(tag string) error {
			s, err := a.Stream(bg)
			for range 2 { // the second message finds what the stream kept
				if err == nil {
					err = s.Send(&marchv1.NextRequest{Tag: tag})
				}
				if err == nil {
					_, err = s.Recv()
				}
			}
			return errors.Join(err, s.CloseSend())
		}, false, false},
		{"INCR", func(tag string) error { return redis.err("INCR", tag) }, false, false},
		{"INCRBY", func(tag string) error { return redis.err("INCRBY", tag, 3) }, true, false},
		{"GET", func(tag string) error { return redis.err("GET", tag) }, true, true},
		{"Leaf", func(tag string) error { return ask("GET", doors.leaf+"/api/segment/get/"+tag) }, false, false},
		{"TinyId", func(tag string) error {
			return ask("GET", doors.tinyid+"/tinyid/id/nextId?batchSize=3&token=secret&bizType="+tag)
		}, false, false},
		{"TinyId's segment", func(tag string) error {
			return ask("GET", doors.tinyid+"/tinyid/id/nextSegmentId?token=secret&bizType="+tag)
		}, true, true},
		{"CosId", func(tag string) error { return ask("GET", doors.cosid+"/ids/"+tag) }, false, false},
		{"CosId's segment", func(tag string) error {
			return ask("PATCH", doors.cosid+"/segments/new/"+tag+"?step=3")
		}, true, true},
	} {
		if err := row.call("order"); err != nil {
			t.Errorf("%s of a counter: %v", row.name, err)
		}
		switch err := row.call("ordered"); {
		case row.keeps && (err == nil || !strings.Contains(err.Error(), "strict order") &&
			!strings.Contains(err.Error(), "another instance of the room issues them")):
			t.Errorf("%s of an ordered tag: %v; want a refusal", row.name, err)
		case !row.keeps && err != nil:
			t.Errorf("%s of an ordered tag: %v", row.name, err)
		}
		switch err := row.call("event"); {
		case row.refuses && (err == nil || !strings.Contains(err.Error(), "has time-ordered IDs")):
			t.Errorf("%s of a time-ordered tag: %v; want a refusal", row.name, err)
		case !row.refuses && err != nil:
			t.Errorf("%s of a time-ordered tag: %v", row.name, err)
		}
	}
}
