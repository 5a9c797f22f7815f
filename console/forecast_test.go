package console_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestPlanSaysWhatABoundaryCosts: a new boundary of 10^14 lets the lower room jump by all
// of it. A plan needs force if the jump is above a thousandth of the IDs that a tag has
// left, or if a room may have nothing to lease afterwards. Before, the forecast said 0 and
// some IDs.
func TestPlanSaysWhatABoundaryCosts(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		must(w.Admin.CreateTag(bg, "wide", record.DefaultTag(), "test"))(t)
		const large = 100_000_000_000_000
		plan := func(r *marchv1.PlanMigrationRequest) (*marchv1.Plan, *marchv1.CountPlanCostResponse) {
			t.Helper()
			answer := must(n.PlanMigration(bg, r))(t)
			return answer.GetPlan(), w.cost(n, answer.GetPlan())
		}
		// refused checks that a plan is refused without force, and the reason.
		refused := func(what string, r *marchv1.PlanMigrationRequest, says ...string) {
			t.Helper()
			p, cost := plan(r)
			for _, part := range says {
				if !strings.Contains(cost.GetRefused(), part) {
					t.Errorf("%s: %q, without %q", what, cost.GetRefused(), part)
				}
			}
			_, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: p})
			want{codes.FailedPrecondition, "refused", says}.check(t, what, err)
		}
		_, cost := plan(&marchv1.PlanMigrationRequest{Boundary: large})
		tag := cost.GetCost().GetWorst()[0]
		a, b := tag.GetForecasts()[0], tag.GetForecasts()[1]
		if a.GetRoom() != "a" || a.GetFirst() != large || a.GetSkipped() != large/2-1 || b.GetFirst() != large/2 ||
			a.GetLeft() >= math.MaxInt64/2 {
			t.Errorf("forecast: %v", tag)
		}
		if cost.GetRefused() != "" || cost.GetRead() != 1 || cost.GetTags() != 1 || cost.GetAsOf() == nil {
			t.Errorf("cost: %v", cost)
		}
		refused("nothing left",
			&marchv1.PlanMigrationRequest{Target: layout(math.MaxInt64,
				map[string][2]int64{"a": {0, 1 << 62}, "b": {1 << 62, math.MaxInt64}})},
			"tag wide: room a", "limit 9223372036854775807", "--force")
		refused("above a thousandth", &marchv1.PlanMigrationRequest{Boundary: large * 100},
			"boundary: 10000000000000000; allowed: up to 9223372036854775", "tag wide", "up to a block", "--force")

		// If a tag has fewer IDs left than rooms lease at once, the plan has a warning.
		small := record.DefaultTag()
		small.Limit = 2000
		must(w.Admin.CreateTag(bg, "small", small, "test"))(t)
		if ends := w.cost(n, w.plan(n, quarter())).GetCost().GetEnds(); len(ends) != 1 || ends[0].GetTag() != "small" ||
			ends[0].GetLeft() != 0 {
			t.Errorf("ends: %v", ends)
		}
		if err := w.Admin.DeleteTag(bg, "small", "test"); err != nil {
			t.Fatal(err)
		}

		// A forced plan is applied. Another is refused again, with the marks as they are.
		p, cost := plan(&marchv1.PlanMigrationRequest{Boundary: large * 100, Force: true})
		if !p.GetForce() || cost.GetRefused() == "" {
			t.Fatal(p, cost)
		}
		unforced := proto.CloneOf(p)
		unforced.Force = false
		_, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: unforced})
		want{codes.FailedPrecondition, "refused", []string{"boundary: 10000000000000000"}}.check(t, "apply", err)
		m := must(n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: unforced, Force: true}))(t)
		w.ends(n, m.GetMigration().GetId(), "done")
		// A plan that keeps or lowers the boundary needs no force.
		for _, r := range []*marchv1.PlanMigrationRequest{{Boundary: large}, {Drain: []string{"b"}}} {
			if _, cost := plan(r); cost.GetRefused() != "" {
				t.Error(cost.GetRefused())
			}
		}
	})
}

// A plan that leaves a period fewer than ten boundaries is refused without force.
func TestPlanLeavesTenBoundariesOfAPeriod(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		daily := record.DefaultTag()
		daily.Period = period.Period{Unit: period.Day, Digits: 5, Zone: "UTC"}
		must(w.Admin.CreateTag(bg, "daily", daily, "test"))(t)
		for boundary, says := range map[int64]string{10_000: "",
			10_100: "boundary: 10100; allowed: up to 10000, a tenth of the 100000 IDs that a period of tag daily has"} {
			answer := must(n.PlanMigration(bg, &marchv1.PlanMigrationRequest{Boundary: boundary}))(t)
			cost := w.cost(n, answer.GetPlan())
			if got := cost.GetRefused(); (got == "") != (says == "") || !strings.Contains(got, says) {
				t.Errorf("%d: %q, want %q", boundary, got, says)
			}
			if says != "" {
				_, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: answer.GetPlan()})
				want{codes.FailedPrecondition, "refused", []string{says}}.check(t, "apply", err)
			}
		}
	})
}

// A plan that brings a 65th room into the cluster's life is refused as it is made.
func TestPlanRefusesA65thRoom(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		rooms := func(n int64) *marchv1.Layout {
			all := make(map[string][2]int64)
			for k := range n {
				all[fmt.Sprintf("r%02d", k)] = [2]int64{k, k + 1}
			}
			return layout(1000, all)
		}
		w := newWorld(t, rooms(allocator.MaxRooms))
		n := w.node()
		_, err := n.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: rooms(allocator.MaxRooms + 1)})
		want{codes.InvalidArgument, "invalid", []string{"65 rooms; allowed: 1 to 64"}}.check(t, "plan", err)
		target := rooms(allocator.MaxRooms)
		delete(target.GetRooms(), "r00")
		target.GetRooms()["new"] = &marchv1.Range{Lower: 0, Upper: 1} // with as many ranges, but one more room
		_, err = n.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: target})
		want{codes.InvalidArgument, "invalid", []string{"65 in the cluster's life with this plan; allowed: 64"}}.check(
			t,
			"plan", err)
	})
}
