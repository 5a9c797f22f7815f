package plan_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/allocator/timeid"
)

// rooms returns a layout of two rooms that meet at a residue, with the residues from end on
// free.
func rooms(boundary, meet, end int64) allocator.Layout {
	return allocator.Layout{Version: 1, Boundary: boundary, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: 0, Upper: meet}, "b": {Lower: meet, Upper: end},
	}}
}

func TestPlansThatWorkersRefuse(t *testing.T) {
	two, last := timeid.Layout{WorkerBits: 2}, timeid.Layout{WorkerBits: 10, Order: timeid.WorkerLast}
	pinned := plan.Pin{Room: "b", Instance: "b-1", Number: 1}
	for name, c := range map[string]struct {
		tags  map[allocator.Tag]timeid.Layout
		pins  []plan.Pin
		homes []allocator.Tag // of room b
		to    allocator.Layout
		want  []string // in the error; none if the plan is allowed
	}{
		"no tags":     {pins: []plan.Pin{pinned}, to: rooms(7, 1, 2)},
		"wide enough": {tags: map[allocator.Tag]timeid.Layout{"t": two, "u": two}, to: rooms(100, 75, 76)},
		"no worker": {tags: map[allocator.Tag]timeid.Layout{"u": two, "t": two}, to: rooms(100, 76, 99),
			want: []string{"room b", "[76, 99)", "2 bits", "tag t ", "25 residues", "--force"}},
		"no worker, boundary": {tags: map[allocator.Tag]timeid.Layout{"t": two}, to: rooms(1000, 10, 20),
			want: []string{"room b", "250 residues"}},
		"boundary": {tags: map[allocator.Tag]timeid.Layout{"t": two}, to: rooms(200, 100, 200)},
		"worker last": {tags: map[allocator.Tag]timeid.Layout{"t": two, "z": last, "y": last},
			to: rooms(200, 100, 200), want: []string{"boundary: 200", "allowed: 100", "tag y ", "--force"}},
		"last, same boundary": {tags: map[allocator.Tag]timeid.Layout{"z": last}, to: rooms(100, 40, 100)},
		"pinned, narrower": {tags: map[allocator.Tag]timeid.Layout{"t": two}, pins: []plan.Pin{pinned},
			to: rooms(100, 50, 75), want: []string{"b/b-1", "pinned worker 1", "number 3", "2 bits", "tag t ",
				"[2, 3) instead of [2, 4)", "begins at 2 and has 2"}},
		"pinned, another end": {tags: map[allocator.Tag]timeid.Layout{"z": last}, pins: []plan.Pin{pinned},
			to: rooms(100, 40, 100), want: []string{"b/b-1", "number 513", "10 bits", "[410, 1024)"}},
		"pinned, enough": {tags: map[allocator.Tag]timeid.Layout{"z": last}, pins: []plan.Pin{pinned},
			to: rooms(100, 50, 60)},
		"pinned, never had": {tags: map[allocator.Tag]timeid.Layout{"t": two},
			pins: []plan.Pin{{Room: "b", Instance: "b-9", Number: 9}}, to: rooms(100, 50, 76)},
		"pinned, drained": {tags: map[allocator.Tag]timeid.Layout{"t": two}, pins: []plan.Pin{pinned},
			to: allocator.Layout{Version: 2, Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0,
				Upper: 50}}}, want: []string{"b/b-1", "none instead of [2, 4)"}},
		"home, narrower": {homes: []allocator.Tag{"o"}, to: rooms(100, 10, 11)},
		"home, drained": {homes: []allocator.Tag{"p", "o", "p"}, to: allocator.Layout{Version: 2, Boundary: 100,
			Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}}},
			want: []string{"room b ", "version 2", "([o p], the first by name)", "`march tag update o --home ROOM`", "--force"}},
	} {
		t.Run(name, func(t *testing.T) {
			var w plan.Workers
			for tag, l := range c.tags {
				w.AddTag(tag, l)
			}
			for _, p := range c.pins {
				w.AddPin(p)
			}
			for _, tag := range c.homes {
				w.AddHome(tag, "b")
			}
			err := w.Check(rooms(100, 50, 100), c.to)
			if len(c.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if allocator.KindOf(err) != allocator.Refused {
				t.Fatalf("got %v, want that it is refused", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

// The sum of two needs refuses whatever either of them refuses, and leaves both unchanged.
func TestNeedsAreAdded(t *testing.T) {
	var two, last, none plan.Workers
	two.AddTag("t", timeid.Layout{WorkerBits: 2})
	last.AddTag("u", timeid.Layout{WorkerBits: 10, Order: timeid.WorkerLast})
	last.AddPin(plan.Pin{Room: "b", Instance: "b-1", Number: 1})
	from, narrow, wide, moved := rooms(100, 50, 100), rooms(100, 76, 99), rooms(200, 100, 200), rooms(100, 40, 100)
	for name, c := range map[string]struct {
		needs plan.Workers
		to    allocator.Layout
		want  bool // refused
	}{
		"narrow, both": {two.With(last), narrow, true}, "wide, both": {two.With(last), wide, true},
		"pinned, both":          {two.With(last), moved, true},
		"narrow, the other way": {last.With(two), narrow, true}, "wide, the other way": {last.With(two), wide, true},
		"pinned, the other way": {last.With(two), moved, true},
		"narrow, of nothing":    {none.With(two), narrow, true}, "nothing": {none.With(none), narrow, false},
		"wide, as it was": {two, wide, false}, "moved, as it was": {two, moved, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.needs.Check(from, c.to); (allocator.KindOf(err) == allocator.Refused) != c.want {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Check checks each layout that a plan passes, not only the last one.
func TestWorkersOfEachMove(t *testing.T) {
	var w plan.Workers
	w.AddTag("t", timeid.Layout{WorkerBits: 2})
	if err := w.Check(rooms(100, 50, 100), rooms(100, 76, 99),
		rooms(100, 50, 100)); allocator.KindOf(err) != allocator.Refused {
		t.Errorf("got %v", err)
	}
}

// The allowed width in an error is always enough: a range of that many residues has a worker
// wherever it lies.
func TestResiduesThatHaveAWorker(t *testing.T) {
	for range 100_000 {
		bits, boundary := rand.IntN(12), 1+rand.Int64N(5000)
		least := (boundary-1)>>bits + 1
		lower := rand.Int64N(boundary - least + 1)
		l := allocator.Layout{Version: 1, Boundary: boundary,
			Ranges: map[allocator.Room]allocator.Range{"a": {Lower: lower, Upper: lower + least}}}
		var w plan.Workers
		w.AddTag("t", timeid.Layout{WorkerBits: bits})
		if err := w.Check(l, l); err != nil {
			t.Fatal(err)
		}
	}
}

// With tags of time-ordered IDs, a plan leaves each room a worker in each move if that is
// possible at all, and pinned workers stay.
func TestPlansKeepWorkers(t *testing.T) {
	var plans, mended, pinned, unkept, wedges int
	rapid.Check(t, func(t *rapid.T) {
		for range pairs {
			from, target := drawPair(t)
			bits := rapid.IntRange(1, 5).Draw(t, "bits")
			var w plan.Workers
			w.AddTag("t", timeid.Layout{WorkerBits: bits})
			w.AddTag("u", timeid.Layout{WorkerBits: bits + 2})
			if from.Boundary != target.Boundary || from.Equal(target) || w.Check(from, from, target) != nil {
				continue
			}
			before, err := plan.New(from, target, false)
			if err != nil {
				continue
			}
			p, err := w.New(from, target, false)
			if err == nil {
				err = checkPlan(p, from, target)
			}
			if err != nil {
				t.Fatalf("%v to %v: %v\n%+v", from, target, err, p)
			}
			plans++
			was, is := w.Check(from, layoutsOf(before)...), w.Check(from, layoutsOf(p)...)
			switch {
			case is != nil && wedgedBy(from, target, bits):
				wedges++
			case is != nil:
				t.Fatalf("%v to %v: %v\n%+v", from, target, is, p)
			case was != nil:
				mended++
			}
			for _, room := range from.Rooms() {
				pins := w
				pins.AddPin(plan.Pin{Room: room, Instance: "i", Number: 0})
				if pins.Check(from, target) != nil {
					continue
				}
				p, err := pins.New(from, target, false)
				if err == nil {
					err = checkPlan(p, from, target)
				}
				if err != nil {
					t.Fatalf("%v to %v: %v\n%+v", from, target, err, p)
				}
				if pins.Check(from, layoutsOf(p)...) == nil {
					pinned++
				} else {
					unkept++
				}
			}
		}
	})
	t.Logf("%d plans, %d of them mended, %d with a pin kept, %d without, %d wedged", plans,
		mended, pinned, unkept, wedges)
}

func layoutsOf(p plan.Plan) (all []allocator.Layout) {
	for _, m := range p.Moves {
		all = append(all, m.Layout)
	}
	return all
}

// wedgedBy reports whether no room can give up a worker and none is free: then no move leaves
// each room one.
func wedgedBy(from, target allocator.Layout, bits int) bool {
	held := int64(0)
	for room := range from.Ranges {
		slice, _ := timeid.SliceOf(from, room, bits)
		if _, stays := target.Ranges[room]; !stays && len(from.Ranges) > 1 || slice.Width() > 1 {
			return false
		}
		held += slice.Width()
	}
	return held == min(1<<bits, from.Boundary)
}
