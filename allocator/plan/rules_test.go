package plan_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
)

// holders lists the rooms that hold each residue of a sample: the slow, obvious form of a
// layout. The entry of a gap is "".
type holders map[int64][]allocator.Room

// sample returns every residue of a small boundary. Of a huge one it returns the
// residues at and next to each end of each range: nothing changes between two of them.
func sample(layouts ...allocator.Layout) []int64 {
	seen := make(map[int64]bool)
	for _, l := range layouts {
		if l.Boundary <= 64 {
			for residue := range l.Boundary {
				seen[residue] = true
			}
			continue
		}
		ends := []int64{0, l.Boundary}
		for _, r := range l.Ranges {
			ends = append(ends, r.Lower, r.Upper)
		}
		for _, end := range ends {
			for _, residue := range []int64{end - 1, end, end + 1} {
				if 0 <= residue && residue < l.Boundary {
					seen[residue] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func list(l allocator.Layout, residues []int64) holders {
	h := make(holders)
	for _, residue := range residues {
		for room, r := range l.Ranges {
			if r.Lower <= residue && residue < r.Upper {
				h[residue] = append(h[residue], room)
			}
		}
	}
	return h
}

// change is the effect of a move, found residue by residue.
type change struct {
	gains, loses map[allocator.Room]bool
	taken        bool // a residue went straight from one room to another
}

func compare(before, after allocator.Layout, residues []int64) change {
	c := change{gains: make(map[allocator.Room]bool), loses: make(map[allocator.Room]bool)}
	was, is := list(before, residues), list(after, residues)
	for _, residue := range residues {
		for _, room := range is[residue] {
			if !slices.Contains(was[residue], room) {
				c.gains[room] = true
				c.taken = c.taken || len(was[residue]) > 0
			}
		}
		for _, room := range was[residue] {
			if !slices.Contains(is[residue], room) {
				c.loses[room] = true
			}
		}
	}
	return c
}

// checkPlan checks a plan against every rule.
func checkPlan(p plan.Plan, from, target allocator.Layout) error {
	if !p.From.Equal(from) || p.From.Version != from.Version || !p.Target.Equal(target) {
		return fmt.Errorf("is from %v to %v", p.From, p.Target)
	}
	layouts := []allocator.Layout{from}
	for _, m := range p.Moves {
		layouts = append(layouts, m.Layout)
	}
	last := layouts[len(layouts)-1]
	if !last.Equal(target) || last.Version != p.Target.Version || len(p.Moves) == 0 {
		return fmt.Errorf("ends at %v, want %v", last, target)
	}
	if most := 3*len(from.Ranges) + 4; len(p.Moves) > most {
		return fmt.Errorf("has %d moves for %d rooms", len(p.Moves), len(from.Ranges))
	}
	if (p.Atomic || from.Boundary != target.Boundary) && len(p.Moves) != 1 {
		return fmt.Errorf("has %d moves, want 1", len(p.Moves))
	}
	residues := sample(layouts...)
	for i, m := range p.Moves {
		if err := checkMove(p, m, layouts[i], residues); err != nil {
			return fmt.Errorf("move %d, %s to %v: %w", i+1, m.Kind, m.Layout, err)
		}
	}
	return nil
}

func checkMove(p plan.Plan, m plan.Move, before allocator.Layout, residues []int64) error {
	if err := m.Layout.Validate(); err != nil {
		return err
	}
	for residue, rooms := range list(m.Layout, residues) {
		if len(rooms) > 1 {
			return fmt.Errorf("residue %d is held by %v", residue, rooms)
		}
	}
	switch {
	case m.Layout.Version != before.Version+1:
		return fmt.Errorf("version %d after %d", m.Layout.Version, before.Version)
	case m.Layout.Equal(before):
		return errors.New("changes nothing")
	case m.Why == "":
		return errors.New("says nothing")
	}
	stay := 0
	for room := range p.From.Ranges {
		if _, stays := p.Target.Ranges[room]; stays {
			stay++
		}
	}
	for room := range p.From.Ranges {
		_, stays := p.Target.Ranges[room]
		_, has := m.Layout.Ranges[room]
		if stays && !has || has && !stays && stay > 0 {
			return fmt.Errorf("room %s: has a range %v, has one in the target %v", room, has, stays)
		}
	}
	for room := range m.Layout.Ranges {
		_, had := p.From.Ranges[room]
		_, will := p.Target.Ranges[room]
		if !had && !will || !had && stay > 0 && !m.Layout.Equal(p.Target) {
			return fmt.Errorf("room %s is there too early", room)
		}
	}
	if before.Boundary != m.Layout.Boundary {
		if m.Kind != plan.Switch || !slices.Equal(m.Loses, before.Rooms()) {
			return fmt.Errorf("kind %s, loses %v", m.Kind, m.Loses)
		}
		return nil
	}
	c := compare(before, m.Layout, residues)
	var want plan.MoveKind
	switch {
	case c.taken && !p.Atomic:
		return errors.New("a room gains what another held")
	case c.taken:
		want = plan.Switch
	case len(c.loses) == 0:
		want = plan.Expand
	case len(c.gains) == 0:
		want = plan.Retract
	default:
		want = plan.Shift
	}
	if m.Kind != want {
		return fmt.Errorf("kind %s, want %s", m.Kind, want)
	}
	if got, want := slices.Sorted(slices.Values(m.Loses)), slices.Sorted(maps.Keys(c.loses)); !slices.Equal(got, want) {
		return fmt.Errorf("loses %v, want %v", got, want)
	}
	return nil
}

// wedged reports whether no move is possible: each residue is the only one of its room,
// and no room leaves. A single room cannot leave either before another has come.
func wedged(from, target allocator.Layout) bool {
	if from.Boundary != target.Boundary || int64(len(from.Ranges)) != from.Boundary {
		return false
	}
	for room := range from.Ranges {
		if _, stays := target.Ranges[room]; !stays {
			return from.Boundary == 1
		}
	}
	return true
}

var pool = []allocator.Room{"a", "b", "c", "d", "e", "f", "g", "h", "eu-1", "eu-2"}

// drawLayout draws up to 8 rooms, with and without gaps.
func drawLayout(t *rapid.T, boundary int64, label string) allocator.Layout {
	most := int(min(8, boundary))
	rooms := rapid.Permutation(pool).Draw(t, label+" rooms")[:rapid.IntRange(1, most).Draw(t, label+" count")]
	l := allocator.Layout{Version: 1, Boundary: boundary, Ranges: make(map[allocator.Room]allocator.Range)}
	point := rapid.Int64Range(0, boundary)
	if rapid.Bool().Draw(t, label+" packed") {
		cuts := []int64{0, boundary}
		for len(cuts) <= len(rooms) {
			if cut := point.Draw(t, "cut"); !slices.Contains(cuts, cut) {
				cuts = append(cuts, cut)
			}
		}
		slices.Sort(cuts)
		for i, room := range rooms {
			l.Ranges[room] = allocator.Range{Lower: cuts[i], Upper: cuts[i+1]}
		}
		return l
	}
	for len(l.Ranges) == 0 {
		for _, room := range rooms {
			x, y := point.Draw(t, "lower"), point.Draw(t, "upper")
			l.Ranges[room] = allocator.Range{Lower: min(x, y), Upper: max(x, y)}
			if l.Validate() != nil {
				delete(l.Ranges, room)
			}
		}
	}
	return l
}

// drawPair draws two layouts that differ: two at random, or one and the same ranges dealt to
// other rooms, so that rooms block each other.
func drawPair(t *rapid.T) (from, target allocator.Layout) {
	boundary := rapid.OneOf(
		rapid.Int64Range(1, 60), rapid.Int64Range(1, 8), rapid.Int64Range(1e6, 1e9),
		rapid.Int64Range(1<<62, allocator.MaxID),
		rapid.Just[int64](allocator.MaxID),
	)
	b := boundary.Draw(t, "boundary")
	from = drawLayout(t, b, "from")
	switch rapid.IntRange(0, 3).Draw(t, "how") {
	case 0:
		target = drawLayout(t, boundary.Draw(t, "other boundary"), "target")
	case 1:
		target = drawLayout(t, b, "target")
	default:
		target = allocator.Layout{Boundary: b, Ranges: make(map[allocator.Room]allocator.Range)}
		rooms := from.Rooms()
		for i, room := range rapid.Permutation(rooms).Draw(t, "dealt") {
			target.Ranges[room] = from.Ranges[rooms[i]]
		}
		if rapid.Bool().Draw(t, "replace") && len(rooms) > 1 {
			target.Ranges["new"] = target.Ranges[rooms[0]]
			delete(target.Ranges, rooms[0])
		}
	}
	from.Version = rapid.Int64Range(1, 1000).Draw(t, "version")
	return from, target
}

// pairs is how many pairs each of rapid's hundred checks draws.
const pairs = 50

func TestEveryPlanKeepsTheRules(t *testing.T) {
	var plans, moves, refusals, longest int
	rapid.Check(t, func(t *rapid.T) {
		for range pairs {
			from, target := drawPair(t)
			was, goal := fmt.Sprint(from), fmt.Sprint(target)
			atomic := rapid.IntRange(0, 9).Draw(t, "atomic") == 0
			p, err := plan.New(from, target, atomic)
			switch {
			case from.Equal(target):
				if !errors.Is(err, allocator.Invalid) {
					t.Fatalf("%v to itself: %v", from, err)
				}
			case !atomic && wedged(from, target):
				if !errors.Is(err, allocator.Refused) {
					t.Fatalf("%v to %v: %v, want refused", from, target, err)
				}
				refusals++
			case err != nil:
				t.Fatalf("%v to %v: %v", from, target, err)
			default:
				if err := checkPlan(p, from, target); err != nil {
					t.Fatalf("%v to %v: %v\n%+v", from, target, err, p)
				}
				plans, moves, longest = plans+1, moves+len(p.Moves), max(longest, len(p.Moves))
				checkBack(t, p)
			}
			if fmt.Sprint(from) != was || fmt.Sprint(target) != goal {
				t.Fatalf("%s to %s: became %v to %v", was, goal, from, target)
			}
		}
	})
	t.Logf("%d plans, %.2f moves each, %d at most; %d refused", plans, float64(moves)/float64(plans), longest, refusals)
}

// checkBack plans back from after every move of p, and back again from the middle of that plan.
func checkBack(t *rapid.T, p plan.Plan) {
	original := p.From
	if back, err := (plan.Workers{}).Back(original, original); err != nil || len(back.Moves) != 0 {
		t.Fatalf("back from %v before its first move: %+v, %v", original, back, err)
	}
	for _, m := range p.Moves {
		back, err := plan.Workers{}.Back(m.Layout, original)
		if m.Layout.Equal(original) {
			t.Fatalf("%+v passes its own start", p)
		}
		if err == nil {
			err = checkPlan(back, m.Layout, original)
		}
		if err != nil || back.Atomic && !wedged(m.Layout, original) {
			t.Fatalf("back from %v to %v: %v\n%+v", m.Layout, original, err, back)
		}
	}
}
