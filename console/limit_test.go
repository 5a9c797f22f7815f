package console_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestLimitAndSkipAreFollowed: a limit below the marks must be confirmed. A call that
// changes a limit or skips returns once the instances that answer have dropped their old
// IDs, and names the instances that do not answer. Before, both calls returned at once,
// and the limit stopped rooms without a question.
func TestLimitAndSkipAreFollowed(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		ids := w.server("a", "one")
		w.puppet("b", "gone", true) // registered, and nothing listens at its address
		next := func() (int64, error) {
			r, err := ids.Next(bg, &marchv1.NextRequest{Tag: "order"})
			return r.GetId(), err
		}
		for range 5 {
			must(next())(t)
		}
		skipped, err := n.SkipTag(bg, &marchv1.SkipTagRequest{Name: "order", To: 100_000})
		if err != nil || !slices.Equal(skipped.GetBehind(), []string{"b/gone"}) {
			t.Errorf("skip: %v, %v", skipped.GetBehind(), err)
		}
		if id, err := next(); err != nil || id < 100_000 {
			t.Errorf("%d, %v after the skip", id, err)
		}
		lower := &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", Limit: proto.Int64(100_100)}}
		_, err = n.UpdateTag(bg, lower)
		want{codes.FailedPrecondition, "refused", []string{"100100", "a (its next ID is ", "confirm"}}.check(t,
			"a limit below the marks", err)
		if id, err := next(); err != nil || id < 100_000 {
			t.Errorf("%d, %v after a limit that was refused", id, err)
		}
		lower.Confirm = true
		lowered, err := n.UpdateTag(bg, lower)
		if err != nil || !slices.Equal(lowered.GetBehind(), []string{"b/gone"}) {
			t.Errorf("limit: %v, %v", lowered.GetBehind(), err)
		}
		for {
			id, err := next()
			if err != nil {
				want{codes.ResourceExhausted, "exhausted", nil}.check(t, "at the limit", err)
				break
			}
			if id >= 100_100 {
				t.Fatalf("%d with a limit of 100100", id)
			}
		}
		// A limit above the marks needs no confirmation.
		if _, err := n.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order",
			Limit: proto.Int64(1 << 40)}}); err != nil {
			t.Error(err)
		}
		if _, err := n.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order",
			Limit: proto.Int64(1 << 39)}}); err != nil {
			t.Error(err)
		}
	})
}
