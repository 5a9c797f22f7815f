package console

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// worstTags is how many tags a plan's cost names.
const worstTags = 10

// cost computes from the marks how far each tag jumps by a plan. At its first
// lease under a new layout a room goes on at the floor, the largest mark of
// all rooms; what it could have issued between its own mark and the floor is
// skipped. Later moves of the plan skip only what is leased in between.
func (s *Server) cost(ctx context.Context, p Plan) (*marchv1.PlanCost, error) {
	rates := s.rates(ctx)
	cost := &marchv1.PlanCost{}
	err := s.ledger.EachTag(ctx, func(t ledger.Tag, marks map[allocator.Room]ledger.Mark) error {
		cost.Tags++
		c := tagCost(t, marks, p, rates[t.Name])
		if end := tagEnd(t, marks, p); end != nil {
			cost.Ending++
			if cost.Ends = append(cost.Ends, end); len(cost.GetEnds()) > 10*worstTags {
				cost.Ends = fewest(cost.GetEnds())
			}
		}
		if c.GetSkipped() > math.MaxInt64-cost.GetSkipped() {
			cost.Skipped = math.MaxInt64 // more than the number can say
		} else {
			cost.Skipped += c.GetSkipped()
		}
		cost.Worst = append(cost.Worst, c)
		if len(cost.GetWorst()) > 10*worstTags {
			cost.Worst = worst(cost.GetWorst())
		}
		return nil
	})
	cost.Worst, cost.Ends = worst(cost.GetWorst()), fewest(cost.GetEnds())
	return cost, err
}

// fewest returns the tags with the fewest IDs left.
func fewest(list []*marchv1.TagEnd) []*marchv1.TagEnd {
	slices.SortFunc(list, func(a, b *marchv1.TagEnd) int {
		return cmp.Or(cmp.Compare(a.GetLeft(), b.GetLeft()), cmp.Compare(a.GetTag(), b.GetTag()))
	})
	return list[:min(len(list), worstTags)]
}

// floorOf returns where a room's first lease under a new layout begins: the
// largest mark of all rooms.
func floorOf(t ledger.Tag, marks map[allocator.Room]ledger.Mark) int64 {
	floor := t.Settings.Start
	for _, m := range marks {
		floor = max(floor, m.Next)
	}
	return floor
}

// tagEnd returns what the room has left that the plan leaves the fewest IDs,
// where it takes more than half of what the room had and leaves less than one
// refill may ask for; else nil.
func tagEnd(t ledger.Tag, marks map[allocator.Room]ledger.Mark, p Plan) *marchv1.TagEnd {
	floor, least := floorOf(t, marks), t.Settings.Chain.MaxStep
	var end *marchv1.TagEnd
	for _, room := range p.Target.Rooms() {
		left := p.Target.CountIDs(p.Target.Ranges[room], floor, t.Settings.Limit)
		if was, served := p.From.Ranges[room]; served &&
			left >= p.From.CountIDs(was, max(marks[room].Next, t.Settings.Start), t.Settings.Limit)/2 {
			continue
		}
		if left < least {
			least, end = left, &marchv1.TagEnd{Tag: string(t.Name), Room: string(room), Left: left, Limit: t.Settings.Limit}
		}
	}
	return end
}

// worst returns the tags that skip the most.
func worst(list []*marchv1.TagCost) []*marchv1.TagCost {
	slices.SortFunc(list, func(a, b *marchv1.TagCost) int {
		return cmp.Or(cmp.Compare(b.GetSkipped(), a.GetSkipped()), cmp.Compare(a.GetTag(), b.GetTag()))
	})
	return list[:min(len(list), worstTags)]
}

func tagCost(t ledger.Tag, marks map[allocator.Room]ledger.Mark, p Plan, rates map[allocator.Room]float64) *marchv1.TagCost {
	floor := floorOf(t, marks)
	c := &marchv1.TagCost{Tag: string(t.Name), Rooms: make(map[string]int64)}
	before, after := math.Inf(1), math.Inf(1)
	for room, r := range p.Target.Ranges {
		if m, leased := marks[room]; leased {
			if n := p.Target.CountIDs(r, m.Next, floor); n > 0 {
				c.Rooms[string(room)] = n
				c.Skipped += n
			}
		}
		if rate := rates[room]; rate > 0 {
			after = min(after, seconds(p.Target, r, floor, t.Settings.Limit, rate))
		}
	}
	for room, r := range p.From.Ranges {
		if rate := rates[room]; rate > 0 {
			before = min(before, seconds(p.From, r, max(marks[room].Next, t.Settings.Start), t.Settings.Limit, rate))
		}
	}
	c.LastsBefore, c.LastsAfter = lasts(before), lasts(after)
	return c
}

// seconds returns how long a room's IDs in [from, limit) last at a rate.
func seconds(l allocator.Layout, r allocator.Range, from, limit int64, rate float64) float64 {
	return float64(l.CountIDs(r, from, limit)) / rate
}

// maxLasts bounds what is shown: a protobuf duration has 10,000 years.
const maxLasts = 10_000 * 365 * 24 * 3600

func lasts(seconds float64) *durationpb.Duration {
	if math.IsInf(seconds, 1) {
		return nil
	}
	return &durationpb.Duration{Seconds: int64(min(seconds, maxLasts))}
}

// rates asks every instance that has a heartbeat for the peak rates of its
// chains. Those that do not answer are left out: rates are for estimates.
func (s *Server) rates(ctx context.Context) map[allocator.Tag]map[allocator.Room]float64 {
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return nil
	}
	answers := make([][]*marchv1.Chain, len(instances))
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for i, instance := range instances {
		if instance.Alive {
			asking.Go(func() error {
				answers[i] = s.chainsIn(ctx, instance.Address)
				return nil
			})
		}
	}
	_ = asking.Wait()
	rates := make(map[allocator.Tag]map[allocator.Room]float64)
	for _, chains := range answers {
		for _, c := range chains {
			tag, room := allocator.Tag(c.GetTag()), allocator.Room(c.GetRoom())
			if rates[tag] == nil {
				rates[tag] = make(map[allocator.Room]float64)
			}
			rates[tag][room] += c.GetPeak()
		}
	}
	return rates
}

// chainsIn returns the chains of the instance at an address that issue
// anything, as far as it answers in time.
func (s *Server) chainsIn(ctx context.Context, address string) (busy []*marchv1.Chain) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := s.rooms.dial(address)
	if err != nil {
		return nil
	}
	client := marchv1.NewRoomServiceClient(conn)
	for token := ""; ; {
		page, err := client.ListChains(ctx, &marchv1.ListChainsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			return busy
		}
		for _, c := range page.GetChains() {
			if c.GetPeak() > 0 {
				busy = append(busy, c)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return busy
		}
	}
}
