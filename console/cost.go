package console

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/plan"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
)

// worstTags is how many tags a plan's cost names.
const worstTags = 10

// peaks are recent peak rates in IDs per second, by tag and room.
type peaks map[allocator.Tag]map[allocator.Room]float64

// costs are the effects of a plan on all tags.
type costs struct {
	cost    *marchv1.PlanCost
	bad     []record.KeyError // a tag does not count if it, or one of its marks, cannot be read
	refusal error             // why the plan is refused without force, nil if it is not
}

// countCost computes from the marks the effect of a plan on each tag, and how long
// tags last at the present rates.
func (s *planner) countCost(ctx context.Context, from record.Layout, p plan.Plan, n *count) (c costs, err error) {
	if tags, err := s.admin.CountTags(ctx); err == nil { // otherwise callers do not see the total
		n.tags.Store(tags)
	}
	rates := s.rates(ctx)
	layouts := layoutsOf(p)
	var needs plan.Workers
	if err := s.admin.AddPins(ctx, &needs); err != nil {
		return c, err
	}
	forecaster, rooms, now := s.admin.Forecaster(from, layouts...), p.Target.Rooms(), time.Now()
	sum := costSum{PlanCost: &marchv1.PlanCost{}}
	c.bad, err = s.admin.EachTag(ctx, func(t record.Tag, marks map[allocator.Room]record.Mark) error {
		admin.AddTag(&needs, t)
		if n.read.Add(1); t.Time != nil { // its IDs follow the clock, so none are skipped
			sum.Tags++
			return nil
		}
		f := tagForecast{tag: t, plan: p, rooms: rooms, rates: rates[t.Name]}
		f.TagForecast = forecaster.Tag(t, marks, f.steps(now))
		for _, r := range f.Rooms {
			f.skipped = atMost(f.skipped, r.Skipped)
		}
		single := f // each room leases one ID at a time
		if _, had := f.empties(); had > 0 {
			single.TagForecast = forecaster.Tag(t, marks, nil)
		}
		sum.add(f, single)
		return nil
	})
	if err == nil {
		s.counted.Store(&needs)
	}
	sum.Ends = least(sum.GetEnds(), (*marchv1.TagEnd).GetLeft)
	for _, f := range least(sum.worst, tagForecast.notSkipped) {
		sum.Worst = append(sum.Worst, f.cost())
	}
	c.cost, c.refusal = sum.PlanCost, cmp.Or(needs.Check(p.From, layouts...), sum.refusals.err())
	return c, err
}

// costSum adds up the cost of a plan over tags.
type costSum struct {
	*marchv1.PlanCost
	worst    []tagForecast // those that skip the most, and some more
	refusals refusals
}

// add adds a tag. f is its forecast at the present rates; single says where each room
// leases a single ID under each layout.
func (s *costSum) add(f, single tagForecast) {
	s.Tags++
	s.refusals.add(single)
	if end := f.end(); end != nil {
		s.Ending++
		if s.Ends = append(s.Ends, end); len(s.GetEnds()) > 10*worstTags {
			s.Ends = least(s.GetEnds(), (*marchv1.TagEnd).GetLeft)
		}
	}
	s.Skipped = atMost(s.GetSkipped(), f.skipped)
	if s.worst = append(s.worst, f); len(s.worst) > 10*worstTags {
		s.worst = least(s.worst, tagForecast.notSkipped)
	}
}

// costOf returns the count of a plan's cost, as counts.get does.
func (s *planner) costOf(ctx context.Context, id string, from record.Layout, p plan.Plan,
	within time.Duration) (*count, error) {
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(operator.PlanToProto(p))
	if err != nil {
		return nil, err
	}
	// After a restore of etcd another layout may have the same version.
	planned := from.Time.UTC().String() + string(key)
	return s.counts.get(ctx, id, planned, within, func(ctx context.Context, n *count) (costs, error) {
		return s.countCost(ctx, from, p, n)
	})
}

// longestWait is how long an answer may wait for the cost: HTTP answers must come within
// 10 s.
const longestWait = 5 * time.Second

// CountPlanCost implements ConsoleService.
func (s *planner) CountPlanCost(ctx context.Context,
	r *marchv1.CountPlanCostRequest) (*marchv1.CountPlanCostResponse, error) {
	wait, err := upTo("wait", r.GetWait(), longestWait)
	if err != nil {
		return nil, err
	}
	stored, planned, err := s.checkPlan(ctx, r.GetPlan())
	if err != nil {
		return nil, err
	}
	n, err := s.costOf(ctx, r.GetCount(), stored, planned, wait)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.CountPlanCostResponse{Read: n.read.Load(), Tags: n.tags.Load(),
		AsOf: timestamppb.New(n.began), Count: n.id}
	if n.over() {
		answer.Cost, answer.Unreadable = n.costs.cost, passedOver(n.costs.bad)
		if n.costs.refusal != nil {
			answer.Refused = n.costs.refusal.Error()
		}
	}
	return answer, nil
}

// upTo returns the duration of a field; 0 if there is none. Its error is Invalid.
func upTo(field string, given *durationpb.Duration, most time.Duration) (d time.Duration, err error) {
	if given == nil {
		return 0, nil
	}
	if d, err = setting.Duration(field, given); err == nil && (d < 0 || d > most) {
		err = allocator.Errorf(allocator.Invalid, "%s: %v; allowed: 0s to %v", field, d, most)
	}
	return d, err
}

// refused returns why a plan is refused because of its cost, or nil. If the count with
// this id is not at hand, refused counts anew and waits for it until ctx ends; then its
// error is Unavailable.
func (s *planner) refused(ctx context.Context, id string, from record.Layout, p plan.Plan) error {
	n, err := s.costOf(ctx, id, from, p, math.MaxInt64)
	switch {
	case err == nil:
		return n.costs.refusal
	case n != nil && ctx.Err() != nil:
		return allocator.Errorf(allocator.Unavailable,
			"the plan is not applied: only %d of %d tags were read in time to count its cost (%w): apply it again, "+
				"or agree with --force",
			n.read.Load(), n.tags.Load(), ctx.Err())
	}
	return err
}

// least returns the tags of which a number is the least.
func least[T interface{ GetTag() string }](list []T, number func(T) int64) []T {
	slices.SortFunc(list, func(a, b T) int {
		return cmp.Or(cmp.Compare(number(a), number(b)), cmp.Compare(a.GetTag(), b.GetTag()))
	})
	return list[:min(len(list), worstTags)]
}

// maxLasts bounds the durations that are shown: a protobuf duration holds 10,000
// years.
const maxLasts = 10_000 * 365 * 24 * 3600

func lasts(seconds float64) *durationpb.Duration {
	if math.IsInf(seconds, 1) {
		return nil
	}
	return &durationpb.Duration{Seconds: int64(min(seconds, maxLasts))}
}

// rates asks every instance that has a heartbeat for the peak rates of its
// chains. Those that do not answer are left out: rates are for estimates.
func (s *view) rates(ctx context.Context) peaks {
	instances, err := s.instances(ctx)
	if err != nil {
		return nil
	}
	rates := make(peaks)
	for _, r := range askEach(ctx, s.rooms, instances, living(instances), 3*time.Second, busyChains) {
		for _, c := range r.is {
			tag, room := allocator.Tag(c.GetTag()), allocator.Room(c.GetRoom())
			if rates[tag] == nil {
				rates[tag] = make(map[allocator.Room]float64)
			}
			rates[tag][room] += c.GetPeak()
		}
	}
	return rates
}

// busyChains returns the chains of an instance that issue IDs. If the
// instance does not answer in time, some are missing.
func busyChains(ctx context.Context, of marchv1.RoomServiceClient) (busy []*marchv1.Chain, err error) {
	err = eachChain(ctx, of, func(page []*marchv1.Chain) bool {
		busy = append(busy, slices.DeleteFunc(page, func(c *marchv1.Chain) bool { return c.GetPeak() <= 0 })...)
		return true
	})
	return busy, err
}
