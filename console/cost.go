package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
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

// tagForecast is the effect of a plan on a tag, with the rates at which rooms issue
// its IDs.
type tagForecast struct {
	admin.TagForecast
	tag     record.Tag
	plan    plan.Plan
	rooms   []allocator.Room // of the plan's target
	rates   map[allocator.Room]float64
	skipped int64 // by all rooms
}

// GetTag returns the tag's name, as the messages of costs do.
func (f tagForecast) GetTag() string { return string(f.tag.Name) }

// notSkipped is the least for the tag that skips the most.
func (f tagForecast) notSkipped() int64 { return -f.skipped }

// steps returns how many IDs each room of the plan leases at once.
func (f tagForecast) steps(now time.Time) map[allocator.Room]int64 {
	steps, chain := make(map[allocator.Room]int64, len(f.rooms)), f.tag.Chain()
	for _, m := range f.plan.Moves {
		for room := range m.Layout.Ranges {
			steps[room] = chain.Target(f.rates[room], now)
		}
	}
	return steps
}

// end returns the room that has the fewest IDs left after the plan, with their
// number. It returns nil unless the plan takes more than half of that room's IDs
// and leaves fewer than one refill may ask for.
func (f tagForecast) end() *marchv1.TagEnd {
	limit, least := f.Limit, f.tag.MaxStep
	var end *marchv1.TagEnd
	for _, room := range f.rooms {
		r := f.Rooms[room]
		if before, served := f.Before[room]; served && r.Left >= before/2 {
			continue
		}
		if r.Left < least {
			least, end = r.Left, &marchv1.TagEnd{Tag: string(f.tag.Name), Room: string(room),
				Left: r.Left, Limit: limit}
		}
	}
	return end
}

func (f tagForecast) cost() *marchv1.TagCost {
	c := &marchv1.TagCost{Tag: string(f.tag.Name), Rooms: make(map[string]int64), Skipped: f.skipped}
	lasts := lasts
	if f.tag.Period != (period.Period{}) {
		c.Renews = timestamppb.New(f.tag.Period.At(time.Now()).Ends)
		anew, all := time.Until(c.GetRenews().AsTime()).Seconds(), lasts
		lasts = func(seconds float64) *durationpb.Duration { // none if it lasts until then
			if seconds > anew {
				return nil
			}
			return all(seconds)
		}
	}
	before, after := math.Inf(1), math.Inf(1)
	for _, room := range f.rooms {
		r := f.Rooms[room]
		if r.Skipped > 0 {
			c.Rooms[string(room)] = r.Skipped
		}
		p := &marchv1.RoomForecast{Room: string(room), Next: r.Next, Skipped: r.Skipped,
			LeftBefore: f.Before[room], Left: r.Left}
		if r.Left > 0 {
			p.First = &r.First
		}
		if r.Refused != nil {
			p.Refused = r.Refused.Error()
		}
		if rate := f.rates[room]; rate > 0 {
			p.LastsBefore, p.LastsAfter = lasts(float64(f.Before[room])/rate), lasts(float64(r.Left)/rate)
			after = min(after, float64(r.Left)/rate)
		}
		c.Forecasts = append(c.Forecasts, p)
	}
	for room, left := range f.Before {
		if rate := f.rates[room]; rate > 0 {
			before = min(before, float64(left)/rate)
		}
	}
	c.LastsBefore, c.LastsAfter = lasts(before), lasts(after)
	return c
}

// atMost returns a + b, or the largest int64 if the sum is larger.
func atMost(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// boundaryPart bounds a new boundary without force: at most this part of the IDs
// that a tag has left. So a thousand moves, each of which may cost a block, do not
// use up the tag.
const boundaryPart = 1000

// refusals are the tags because of which a plan is refused without force. Only the
// cost of the ranges themselves counts: the cost if each room leases a single ID
// under each layout. If rooms lease more and use up a small tag, that is only a
// warning (see tagForecast.end).
type refusals struct {
	emptied, narrowed int64 // how many tags
	empty, narrow     string
	least             int64 // IDs that the tag in narrow has left, the fewest of all
}

// add compares a forecast with the limits of plans without force.
func (r *refusals) add(f tagForecast) {
	limit := f.Limit
	if room, had := f.empties(); had > 0 {
		if r.emptied++; r.emptied == 1 {
			r.empty = fmt.Sprintf("tag %s: room %s may have nothing to lease after this plan: "+
				"it has %d IDs up to the limit %d now, and one ID leased in each other room can take it "+
				"past all of them",
				f.tag.Name, room, had, limit)
		}
	}
	if size, target := f.tag.Period.Size(), f.plan.Target.Boundary; f.tag.Period != (period.Period{}) {
		if most := size / record.LeastBlocks; target > most && target > f.plan.From.Boundary {
			r.narrowed, r.least = r.narrowed+1, 0
			r.narrow = fmt.Sprintf("boundary: %d; allowed: up to %d, a tenth of the %d IDs that a period of tag %s has",
				target, most, size, f.tag.Name)
		}
		return
	}
	boundary, left := f.plan.Target.Boundary, limit-f.Floor
	if boundary <= f.plan.From.Boundary || left <= 0 || boundary <= left/boundaryPart {
		return
	}
	if r.narrowed++; r.narrowed == 1 || left < r.least {
		r.least = left
		r.narrow = fmt.Sprintf("boundary: %d; allowed: up to %d, a thousandth of the %d IDs that tag %s has up to its "+
			"limit %d: each move can then make a room skip up to a block of %d IDs",
			boundary, left/boundaryPart, left, f.tag.Name, limit, boundary)
	}
}

// empties returns the first room to which the plan may leave nothing of the tag, and
// how many IDs it has without the plan; a new room counts as having as many as any
// other.
func (f tagForecast) empties() (room allocator.Room, had int64) {
	for _, room := range f.rooms {
		had, served := f.Before[room]
		if !served {
			for _, n := range f.Before {
				had = max(had, n)
			}
		}
		if f.Rooms[room].Left == 0 && had > 0 {
			return room, had
		}
	}
	return "", 0
}

// err returns the refusal, or nil. Its Kind is Refused.
func (r *refusals) err() error {
	switch {
	case r.emptied > 0:
		return allocator.Errorf(allocator.Refused,
			"%s (%s in total): choose a smaller boundary, or raise the limit with `march tag update`, "+
				"or agree with --force",
			r.empty, numberOf(r.emptied))
	case r.narrowed > 0:
		return allocator.Errorf(allocator.Refused,
			"%s (too large for %s in total): choose a smaller boundary, or agree with --force",
			r.narrow, numberOf(r.narrowed))
	}
	return nil
}

func numberOf(n int64) string {
	if n == 1 {
		return "1 tag"
	}
	return fmt.Sprintf("%d tags", n)
}

const (
	// maxCounts bounds the plans whose cost a console counts or keeps at once: each
	// count reads all tags.
	maxCounts = 8
	// countIdle is how long a count goes on when no caller waits for it any more.
	countIdle = 3 * time.Second
	// countKept is how long the cost of a plan is kept after it was counted. Tags
	// change all the time, so it is only as long as an operator needs to read the
	// cost and to apply the plan.
	countKept = time.Minute
)

// counts has the costs of plans that are being counted, or were counted recently. A
// count goes on while callers wait for it, or come back for it. The zero value is
// ready.
type counts struct {
	work sync.WaitGroup // the counts under way
	mu   struct {
		sync.Mutex
		all     []*count // up to maxCounts
		stopped bool
	}
}

// count is the cost of a plan, or the progress of counting it.
type count struct {
	id, plan   string
	began      time.Time
	read, tags atomic.Int64  // how many tags were read, and how many there are; 0 for unknown
	done       chan struct{} // closed when costs, err and ended are set
	costs      costs
	err        error
	ended      time.Time

	cancel  context.CancelFunc
	waiting int         // callers, under the lock of counts
	idle    *time.Timer // cancels the count; it runs while no caller waits
}

func (n *count) over() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// readTags counts the cost of a plan, and stores its progress in the count.
type readTags func(context.Context, *count) (costs, error)

// get returns the count of a plan that has an id. If there is none, it returns a count of the same
// plan that is under way or has just ended: between two calls a caller may have been at another
// console. If the id is empty, it returns one that has just begun. Otherwise read begins one. get
// waits until the count is over, or for within at most. Its errors are those of read, ctx's, and
// Unavailable if maxCounts plans are being counted or the console stops.
func (c *counts) get(ctx context.Context, id, plan string, within time.Duration, read readTags) (*count, error) {
	waited := time.NewTimer(within)
	defer waited.Stop()
	for {
		n, err := c.enter(ctx, id, plan, read)
		if err != nil {
			return nil, err
		}
		select {
		case <-n.done:
		case <-waited.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.leave(n)
		if err != nil || !n.over() || n.err == nil {
			return n, err
		}
		c.drop(n) // the next caller starts a new count
		if !errors.Is(n.err, context.Canceled) {
			return n, n.err
		}
		// The count was cancelled just when this caller came.
	}
}

// enter returns a count and adds one waiting caller to it.
func (c *counts) enter(ctx context.Context, id, plan string, read readTags) (*count, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.stopped {
		return nil, allocator.Errorf(allocator.Unavailable, "this console is stopping")
	}
	// Failed counts are kept, so that a caller that comes back gets the error.
	c.mu.all = slices.DeleteFunc(c.mu.all, func(n *count) bool {
		return n.over() && (time.Since(n.ended) > countKept || errors.Is(n.err, context.Canceled))
	})
	n := c.find(id, plan)
	if n == nil {
		if len(c.mu.all) >= maxCounts {
			first := slices.IndexFunc(c.mu.all, (*count).over)
			if first < 0 {
				return nil, allocator.Errorf(allocator.Unavailable,
					"the costs of %d plans are being counted: try again when one of them has ended", maxCounts)
			}
			c.mu.all = slices.Delete(c.mu.all, first, first+1)
		}
		n = c.begin(ctx, plan, read)
	}
	n.waiting++
	n.idle.Stop()
	return n, nil
}

// find returns the count to wait for, or nil if a new one must begin. A caller without an id
// gets a count that is under way only if it has just begun: then it is as good as a new one,
// and a page that is loaded several times does not read all tags several times at once.
func (c *counts) find(id, plan string) (found *count) {
	for _, n := range c.mu.all {
		switch {
		case n.plan != plan:
		case id == "":
			if !n.over() && time.Since(n.began) < countIdle {
				found = n
			}
		case n.id == id:
			return n
		case !n.over() || time.Since(n.ended) < countIdle:
			found = n
		}
	}
	return found
}

// begin begins a count, which goes on after the call of ctx has ended.
func (c *counts) begin(ctx context.Context, plan string, read readTags) *count {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n := &count{id: ulid.Make().String(), plan: plan, began: time.Now(), done: make(chan struct{}), cancel: cancel}
	n.idle = time.AfterFunc(countIdle, cancel)
	c.mu.all = append(c.mu.all, n)
	c.work.Go(func() {
		defer cancel()
		if n.costs, n.err = read(ctx, n); n.err != nil && ctx.Err() != nil {
			n.err = ctx.Err()
		}
		n.ended = time.Now()
		close(n.done)
	})
	return n
}

func (c *counts) leave(n *count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.waiting--; n.waiting == 0 && !n.over() {
		n.idle.Reset(countIdle)
	}
}

func (c *counts) drop(n *count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.all = slices.DeleteFunc(c.mu.all, func(of *count) bool { return of == n })
}

// stop ends all counts. No new count begins after it.
func (c *counts) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stopped = true
	for _, n := range c.mu.all {
		n.idle.Stop()
		n.cancel()
	}
}
