package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
)

// paint is a layout of a small boundary, residue by residue.
func paint(l allocator.Layout) []allocator.Room {
	residues := make([]allocator.Room, l.Boundary)
	for room, r := range l.Ranges {
		for residue := r.Lower; residue < r.Upper; residue++ {
			residues[residue] = room
		}
	}
	return residues
}

// whole reports whether each of the rooms has one run of residues.
func whole(residues []allocator.Room, rooms []allocator.Room) bool {
	runs := make(map[allocator.Room]int)
	var last allocator.Room
	for _, room := range residues {
		if room != last {
			runs[room]++
		}
		last = room
	}
	return !slices.ContainsFunc(rooms, func(room allocator.Room) bool { return runs[room] != 1 })
}

// TestEditsAgainstPaint draws edits and paints them. It expects Apply to accept
// exactly the edits after which each room has one range.
func TestEditsAgainstPaint(t *testing.T) {
	accepted := make(map[string]int)
	rapid.Check(t, func(t *rapid.T) {
		for range pairs {
			from := drawLayout(t, 16-rapid.Int64Range(0, 15).Draw(t, "boundary"), "from") // rapid prefers small numbers
			rooms := from.Rooms()
			want, good := paint(from), true
			one := rapid.SampledFrom(append([]allocator.Room{"new"}, rooms...))
			a, b := one.Draw(t, "a"), one.Draw(t, "b")
			lower := rapid.Int64Range(0, from.Boundary-1).Draw(t, "lower")
			upper := rapid.Int64Range(lower+1, from.Boundary+1).Draw(t, "upper")
			if held, ok := from.Ranges[a]; ok && rapid.Bool().Draw(t, "of a") {
				cut := min(held.Lower+1+rapid.Int64Range(0, held.Width()).Draw(t, "cut"), held.Upper)
				if lower, upper = held.Lower, cut; cut < held.Upper && rapid.Bool().Draw(t, "upper part") {
					lower, upper = cut, held.Upper
				}
				next := slices.Index(rooms, a) + rapid.SampledFrom([]int{-1, 1}).Draw(t, "neighbour")
				b = rooms[min(max(next, 0), len(rooms)-1)]
			}
			var edit plan.Edit
			var err error
			what := rapid.SampledFrom([]string{"move", "add", "drain", "boundary"}).Draw(t, "what")
			switch what {
			case "move":
				edit, err = plan.ParseMove(fmt.Sprintf("%s:%d-%d=%s", a, lower, upper, b))
				good = a != b && slices.Contains(rooms, b) && upper <= from.Boundary
				for residue := lower; residue < min(upper, from.Boundary); residue++ {
					good = good && want[residue] == a
					want[residue] = b
				}
			case "add":
				edit, err = plan.ParseAddRoom(fmt.Sprintf("%s=%d-%d", a, lower, upper))
				good = a == "new" && upper <= from.Boundary
				rooms = append(rooms, "new")
				for residue := lower; residue < min(upper, from.Boundary); residue++ {
					want[residue] = a
				}
			case "drain":
				edit = plan.Drain(a)
				good = a != "new" && len(rooms) > 1
				rooms = slices.DeleteFunc(rooms, func(room allocator.Room) bool { return room == a })
				for residue := range want {
					if want[residue] == a {
						want[residue] = ""
					}
				}
			case "boundary":
				n := rapid.Int64Range(-1, 60).Draw(t, "new boundary")
				edit = plan.ScaleBoundary(n)
				good = n >= int64(len(rooms))
				for _, r := range from.Ranges {
					good = good && r.Lower*n%from.Boundary == 0 && r.Upper*n%from.Boundary == 0
				}
				if good {
					scaled := make([]allocator.Room, n)
					for residue := range n {
						scaled[residue] = want[residue*from.Boundary/n]
					}
					want = scaled
				}
			}
			was := fmt.Sprint(from)
			var got allocator.Layout
			if err == nil {
				got, err = plan.Apply(from, edit)
			}
			if fmt.Sprint(from) != was {
				t.Fatalf("%s of %s made it %v", what, was, from)
			}
			if good = good && whole(want, rooms); good != (err == nil) {
				t.Fatalf("%s (%s, %s, [%d, %d)) of %v: %v, want accepted %v", what, a, b, lower, upper, from, err, good)
			}
			if err != nil {
				if !errors.Is(err, allocator.Invalid) {
					t.Fatalf("%s: %v is not Invalid", what, err)
				}
				continue
			}
			accepted[what]++
			if err := got.Validate(); err != nil || got.Version != 0 || !slices.Equal(paint(got), want) {
				t.Fatalf("%s (%s, %s, [%d, %d)) of %v: %v, %v; want %v", what, a, b, lower, upper, from, got, err, want)
			}
		}
	})
	t.Logf("accepted: %v", accepted)
}

func TestApplyChecksItsInput(t *testing.T) {
	l := allocator.Layout{Version: 3, Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 5}}}
	if _, err := plan.Apply(allocator.Layout{}); !errors.Is(err, allocator.Invalid) {
		t.Errorf("of no layout: %v", err)
	}
	if _, err := plan.Apply(l, plan.Edit{}); !errors.Is(err, allocator.Invalid) {
		t.Errorf("an empty edit: %v", err)
	}
	for i := range allocator.MaxRooms {
		l.Ranges[allocator.Room(fmt.Sprint("r", i))] = allocator.Range{Lower: int64(10 + i), Upper: int64(11 + i)}
	}
	delete(l.Ranges, "a")
	l.Boundary = 100
	edit, err := plan.ParseAddRoom("c=90-100")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plan.Apply(l, edit); !errors.Is(err, allocator.Invalid) ||
		err.Error() != "target: invalid layout: 65 rooms; allowed: 1 to 64" {
		t.Errorf("one room too many: %v", err)
	}
}

func FuzzEdits(f *testing.F) {
	for _, s := range []string{"a:25-50=b", "c=75-100", "a:0-9223372036854775807=b", "c=18446744073709551615-1",
		"a:-1-5=b", "=-", ":-=", "a:+1-2=b"} {
		f.Add(s)
	}
	l := allocator.Layout{Version: 1, Boundary: 100, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 100}}}
	f.Fuzz(func(t *testing.T, s string) {
		for _, parse := range []func(string) (plan.Edit, error){plan.ParseMove, plan.ParseAddRoom} {
			edit, err := parse(s)
			if err == nil {
				var got allocator.Layout
				if got, err = plan.Apply(l, edit); err == nil {
					err = got.Validate()
					if err != nil || got.Equal(l) {
						t.Errorf("%q makes %v, %v", s, got, err)
					}
					continue
				}
			}
			if !errors.Is(err, allocator.Invalid) {
				t.Errorf("%q: %v", s, err)
			}
		}
	})
}
