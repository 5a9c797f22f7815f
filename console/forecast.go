package console

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/plan"
	marchv1 "github.com/march-id/march/api/march/v1"
)

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

// cost returns the forecast as a message.
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
