package web

import (
	"context"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// loads draws a layout before a migration and the one after it over each other, with the load
// on each range.
type loads struct {
	Before, After *bar
	Rooms         *list
	Known         bool // some rate is known
}

// newLoads draws the loads of rates, by room. In a drawing, the width of a range is its share of
// the residues, and its area is its room's rate: the height is the rate for each residue. A room's
// callers stay with it, so its rate is the same under both layouts.
func newLoads(before, after *marchv1.Layout, rates map[string]float64, colour palette) *loads {
	l := &loads{Before: newBar(before, colour), After: newBar(after, colour), Known: len(rates) > 0}
	most, columns, changes := 0.0, changeColumns, roomChanges(before, after)
	if l.Known {
		columns = loadColumns
	}
	for i := range changes {
		c := &changes[i]
		c.rate, c.before, c.then = -1, -1, -1
		if rate, known := rates[c.room]; known {
			c.rate, c.before, c.then = rate, density(rate, before, c.room), density(rate, after, c.room)
			most = max(most, c.before, c.then)
		}
	}
	l.Rooms = listChanges("Load of each room", columns, changes, colour)
	if most > 0 {
		l.Before.load(most, func(room string) float64 { return density(rates[room], before, room) })
		l.After.load(most, func(room string) float64 { return density(rates[room], after, room) })
	}
	return l
}

// density returns the part of a room's rate that falls on a hundredth of the boundary's residues; -1
// if the room has no range.
func density(rate float64, l *marchv1.Layout, room string) float64 {
	r := l.GetRooms()[room]
	if r == nil || r.GetUpper() <= r.GetLower() || l.GetBoundary() < 1 {
		return -1
	}
	return rate / partOf(r.GetUpper()-r.GetLower(), l.GetBoundary())
}

// load sets how high the load of each stretch is drawn; of is the load, at most most.
func (b *bar) load(most float64, of func(room string) float64) {
	for i := range b.Stretches {
		s := &b.Stretches[i]
		if s.Room != "" {
			s.Load = pct(100 * max(of(s.Room), 0) / most)
			s.Rest = pct(100 - 100*max(of(s.Room), 0)/most)
		}
	}
}

// rates returns the IDs per second of rooms, as far as they are known and the caller may see them.
func (h *Handler) rates(ctx context.Context) map[string]float64 {
	if !may(ctx, marchv1.ConsoleService_GetOverview_FullMethodName, "") {
		return nil
	}
	o, err := h.console.GetOverview(ctx, &marchv1.GetOverviewRequest{})
	if err != nil { // the page is without the load then
		return nil
	}
	rates := make(map[string]float64)
	for _, r := range o.GetRooms() {
		if r.Rate != nil {
			rates[r.GetName()] = r.GetRate()
		}
	}
	return rates
}
