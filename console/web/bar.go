package web

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/words"
)

// hues is how many colours style.css has for rooms, and patterns how many patterns the frame
// has, with none as the first. A colour never stands without the room's name.
const hues, patterns = 12, 5

// palette has the colour of each room, with its pattern.
type palette map[string]int

// colours gives rooms their colours in the order given: first those of the cluster as they are stored, then those of a
// plan. So rooms have different colours while there are colours, and only then patterns; and a room has the same one
// on every page.
func colours(rooms ...string) palette {
	colour := make(palette, len(rooms))
	for _, room := range rooms {
		if _, has := colour[room]; !has {
			colour[room] = len(colour) % (hues * patterns)
		}
	}
	return colour
}

// place is a room, or an instance, and the room's colour.
type place struct {
	Room   string
	Colour int
}

// In returns a room, or an instance, with the room's colour.
func (p palette) In(name string) place { return place{name, p[roomOf(name)]} }

// roomOf returns the room of an instance.
func roomOf(instance string) string {
	room, _, _ := strings.Cut(instance, "/")
	return room
}

// hue and pattern return the parts of a colour.
func hue(colour int) int     { return colour % hues }
func pattern(colour int) int { return colour / hues }

// bar is a layout as a line of stretches.
type bar struct {
	Label     string // in words
	Stretches []stretch
	Clashes   []clash // residues of two rooms, in a layout that is not valid
	Ticks     []tick
	Boundary  int64
	Edges     []edge // that can be moved, in the planner
}

// stretch is a room's range, or a gap (Room is empty), which may be reserved.
type stretch struct {
	X, W         string // percentages
	Room         string
	Reserved     string // its name, in a reserved range
	Colour       int
	Text         string // the text that fits in on a wide screen, perhaps none
	Slim         bool   // it does not fit in on a narrow one
	Range        string
	Share        float64
	Load, Rest   string // how high its load is drawn, and what is above that; percentages, empty for none
	lower, upper int64
}

// label sets the text of a stretch that is so many percent wide: the name, or its beginning.
func (s *stretch) label(name string, percent float64) {
	const before, letter, wide, narrow = 12, 8, 1100, 300 // pixels
	fits := func(screen float64) int { return int((screen*percent/100 - before) / letter) }
	switch n := fits(wide); {
	case len(name) <= n:
		s.Text = name
	case n >= 4: // three letters, and dots
		s.Text = name[:n-1] + "…"
	}
	s.Slim = fits(narrow) < min(len(name), 8)
}

// withoutCut returns a bar without the texts that would be cut where it is drawn small.
func (b *bar) withoutCut() *bar {
	const before, letter, width = 12, 8, 192 // pixels
	for i := range b.Stretches {
		if s := &b.Stretches[i]; width*s.Share < float64(before+letter*len(s.Text)) {
			s.Text = ""
		}
	}
	return b
}

// clash is where ranges overlap.
type clash struct{ X, W, Range string }

type tick struct{ X, Anchor, Text string }

// edge is where a range begins or ends.
type edge struct {
	X           string
	At          int64
	Least, Most int64
	Below       string // the room that ends there
	Above       string // the room that begins there
	Label       string
}

func partOf(v, whole int64) float64 { return 100 * float64(v) / float64(whole) }

func pct(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) + "%" }

// newBar draws a layout. It also draws layouts that are not valid, as far as
// possible.
func newBar(l *marchv1.Layout, colour palette) *bar {
	b := &bar{Boundary: l.GetBoundary(),
		Label: "boundary " + num(l.GetBoundary()) + ": " + strings.Join(operator.Ranges(l, words.Grouped), ", ")}
	if b.Boundary < 1 {
		return b
	}
	var end int64
	put := func(room, reserved string, lower, upper int64) {
		lower, upper = min(max(lower, 0), b.Boundary), min(max(upper, 0), b.Boundary)
		if lower >= upper {
			return
		}
		x, w := partOf(lower, b.Boundary), partOf(upper, b.Boundary)-partOf(lower, b.Boundary)
		s := stretch{
			X: pct(x), W: pct(w), Room: room, Reserved: reserved, Colour: colour[room], lower: lower, upper: upper,
			Range: interval(&marchv1.Range{Lower: lower, Upper: upper}), Share: w / 100,
		}
		s.label(cmp.Or(room, reserved, "free"), w)
		b.Stretches = append(b.Stretches, s)
	}
	gap := func(upper int64) {
		for _, name := range operator.ByLower(l.GetReserved()) {
			if r := l.GetReserved()[name]; r.GetLower() >= end && r.GetUpper() <= upper {
				put("", "", end, r.GetLower())
				put("", name, r.GetLower(), r.GetUpper())
				end = r.GetUpper()
			}
		}
		put("", "", end, upper)
	}
	for _, room := range operator.ByLower(l.GetRooms()) {
		r := l.GetRooms()[room]
		if r.GetLower() > end {
			gap(r.GetLower())
		}
		put(room, "", r.GetLower(), r.GetUpper())
		if lower, upper := max(r.GetLower(), 0), min(r.GetUpper(), end, b.Boundary); lower < upper {
			b.Clashes = append(b.Clashes, clash{
				X: pct(partOf(lower, b.Boundary)), W: pct(partOf(upper-lower, b.Boundary)),
				Range: interval(&marchv1.Range{Lower: lower, Upper: upper}),
			})
		}
		end = max(end, r.GetUpper())
	}
	if end < b.Boundary {
		gap(b.Boundary)
	}
	b.ticks()
	return b
}

// ticks labels the edges that are far enough from each other; of two that are not, the
// first of those that first names.
func (b *bar) ticks(first ...int64) {
	const apart = 9.0 // percent
	rest := make([]int64, 0, len(b.Stretches))
	for _, s := range b.Stretches {
		rest = append(rest, s.lower)
	}
	at := []float64{0, 100}
	b.Ticks = []tick{{X: "0%", Anchor: "start", Text: "0"}}
	for _, edge := range slices.Concat(first, rest) {
		x := partOf(edge, b.Boundary)
		if slices.ContainsFunc(at, func(other float64) bool { return max(x-other, other-x) < apart }) {
			continue
		}
		b.Ticks = append(b.Ticks, tick{X: pct(x), Anchor: "middle", Text: num(edge)})
		at = append(at, x)
	}
	b.Ticks = append(b.Ticks, tick{X: "100%", Anchor: "end", Text: num(b.Boundary)})
}

// moved labels the edges that another layout does not have before the others.
func (b *bar) moved(from *bar) {
	var first []int64
	for _, s := range b.Stretches {
		if b.Boundary == from.Boundary && !slices.ContainsFunc(from.Stretches, func(was stretch) bool {
			return was.lower == s.lower
		}) {
			first = append(first, s.lower)
		}
	}
	b.ticks(first...)
}

// movable finds the edges that can be moved. Two ranges that meet share one edge.
func (b *bar) movable() {
	for i, s := range b.Stretches {
		if s.Room == "" {
			continue
		}
		var before, after *stretch
		if i > 0 {
			before = &b.Stretches[i-1]
		}
		if i+1 < len(b.Stretches) {
			after = &b.Stretches[i+1]
		}
		if before == nil || before.Room == "" || before.upper != s.lower { // no room has the residues on the left
			e := edge{X: pct(partOf(s.lower, b.Boundary)), At: s.lower, Above: s.Room, Most: s.upper - 1,
				Label: "lower end of room " + s.Room}
			if before != nil {
				e.Least = before.lower
			}
			b.Edges = append(b.Edges, e)
		}
		e := edge{X: pct(partOf(s.upper, b.Boundary)), At: s.upper, Below: s.Room, Least: s.lower + 1, Most: b.Boundary,
			Label: "upper end of room " + s.Room}
		if after != nil {
			e.Most = after.upper
			if after.Room != "" {
				e.Above, e.Most, e.Label = after.Room, after.upper-1, "edge between rooms "+s.Room+" and "+after.Room
			}
		}
		b.Edges = append(b.Edges, e)
	}
}

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
