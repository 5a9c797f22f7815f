package console_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestDryRun: a dry run says what a change of settings does, to whom, and changes nothing. It
// refuses what the change itself refuses, except a limit that stops rooms.
func TestDryRun(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		ids := w.server("a", "one")
		must(ids.Next(bg, &marchv1.NextRequest{Tag: "order"}))(t)
		get := func() *marchv1.Tag {
			t.Helper()
			answer := must(n.GetTag(bg, &marchv1.GetTagRequest{Name: "order"}))(t)
			return answer.GetTag()
		}
		before := get()
		for name, c := range map[string]struct {
			change *marchv1.Tag
			says   string
			stops  []string
		}{
			"a limit that stops a room": {&marchv1.Tag{Limit: proto.Int64(10)},
				"These rooms stop issuing at once, because they have leased IDs from the limit on: a (", []string{"a"}},
			"a limit": {&marchv1.Tag{Limit: proto.Int64(1 << 40)}, "the tag has ", nil},
			"a jump":  {&marchv1.Tag{MaxJump: proto.Int64(77)}, "more than 77 ahead", nil},
			"a skew":  {&marchv1.Tag{MaxSkew: proto.Int64(5000)}, "Leases begin at most 5000 IDs below", nil},
			"strict":  {&marchv1.Tag{StrictRetract: proto.Bool(true)}, "stops issuing IDs of the tag when etcd", nil},
			"steps": {&marchv1.Tag{MinStep: proto.Int64(5000)},
				"the instances that hold the tag (1) aim for 5000 IDs", nil},
			"a reserve": {&marchv1.Tag{Reserve: durationpb.New(time.Hour)},
				"the instances that hold the tag (1) aim for", nil},
			"nothing": {&marchv1.Tag{Limit: before.Limit}, "", nil},
		} {
			c.change.Name = "order"
			answer, err := n.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: c.change, DryRun: true,
				IfRevision: before.GetRevision()})
			said := strings.Join(answer.GetEffects(), "\n")
			if err != nil || !strings.Contains(said, c.says) || c.says == "" && said != "" ||
				!slices.Equal(answer.GetStops(), c.stops) {
				t.Errorf("%s: %q, stops %q, %v; want that it says %q, stops %q", name, said,
					answer.GetStops(), err, c.says, c.stops)
			}
		}
		if after := get(); !proto.Equal(before, after) {
			t.Errorf("dry runs have changed the tag: %v", after)
		}
		_, err := n.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", Limit: proto.Int64(0)},
			DryRun: true})
		want{codes.InvalidArgument, "invalid", []string{"limit: 0; allowed"}}.check(t, "a wrong limit", err)
		_, err = n.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order",
			Limit: proto.Int64(1 << 40)},
			DryRun: true, IfRevision: 1})
		want{codes.Aborted, "conflict", []string{"was changed since"}}.check(t, "an old revision", err)
	})
}

// TestAuditOfATime: the audit has bounds of time, and an object may be named exactly.
func TestAuditOfATime(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		for _, name := range []string{"order", "order-2"} {
			must(c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: name}}))(t)
			time.Sleep(2 * time.Millisecond) // entries of another millisecond
		}
		all, err := c.ListAudit(bg, &marchv1.ListAuditRequest{Object: "tags/"})
		if err != nil || len(all.GetEntries()) != 2 {
			t.Fatalf("%v, %v", all, err)
		}
		second, first := all.GetEntries()[0].GetTime().AsTime(), all.GetEntries()[1].GetTime().AsTime()
		between := timestamppb.New(second.Truncate(time.Millisecond))
		for name, r := range map[string]struct {
			ask  *marchv1.ListAuditRequest
			want string
		}{
			"since":  {&marchv1.ListAuditRequest{Object: "tags/", Since: between}, "tags/order-2"},
			"until":  {&marchv1.ListAuditRequest{Object: "tags/", Until: between}, "tags/order"},
			"exact":  {&marchv1.ListAuditRequest{Object: "tags/order", Exact: true}, "tags/order"},
			"prefix": {&marchv1.ListAuditRequest{Object: "tags/order"}, "tags/order-2 tags/order"},
			"before": {&marchv1.ListAuditRequest{Object: "tags/", Until: timestamppb.New(first.Add(-time.Hour))}, ""},
		} {
			answer, err := c.ListAudit(bg, r.ask)
			var got []string
			for _, e := range answer.GetEntries() {
				got = append(got, e.GetObject())
			}
			if err != nil || strings.Join(got, " ") != r.want {
				t.Errorf("%s: %q, %v; want %q", name, got, err, r.want)
			}
		}
		_, err = c.ListAudit(bg, &marchv1.ListAuditRequest{Until: &timestamppb.Timestamp{Seconds: -1}})
		want{codes.InvalidArgument, "invalid", []string{"until: "}}.check(t, "before 1970", err)
	})
}
