package allocator_test

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
)

// slowlyValid is Layout.Validate for small numbers: each residue belongs to at
// most one room.
func slowlyValid(l allocator.Layout) bool {
	if l.Boundary < 1 || len(l.Ranges) < 1 || len(l.Ranges) > allocator.MaxRooms {
		return false
	}
	owners := make(map[int64]int)
	for _, r := range l.Ranges {
		if r.Lower < 0 || r.Upper > l.Boundary || len(residues(r)) == 0 {
			return false
		}
		for i := range residues(r) {
			if owners[i]++; owners[i] > 1 {
				return false
			}
		}
	}
	return true
}

func drawLayout(t *rapid.T) allocator.Layout {
	l := allocator.Layout{Version: 1, Boundary: rapid.Int64Range(-1, 30).Draw(t, "boundary"),
		Ranges: map[allocator.Room]allocator.Range{}}
	// Mostly cuts in order, so that many layouts are valid; sometimes anything.
	if rapid.IntRange(0, 3).Draw(t, "wild") == 0 {
		for i := range rapid.IntRange(0, 4).Draw(t, "rooms") {
			l.Ranges[allocator.Room(fmt.Sprintf("r%d", i))] = allocator.Range{
				Lower: rapid.Int64Range(-2, 32).Draw(t, "lower"), Upper: rapid.Int64Range(-2, 32).Draw(t, "upper"),
			}
		}
		return l
	}
	cuts := rapid.SliceOfN(rapid.Int64Range(0, max(l.Boundary, 0)), 2, 8).Draw(t, "cuts")
	slices.Sort(cuts)
	for i := 0; i+1 < len(cuts); i += 2 {
		l.Ranges[allocator.Room(fmt.Sprintf("r%d", i))] = allocator.Range{Lower: cuts[i], Upper: cuts[i+1]}
	}
	return l
}

func TestLayoutValidateAgainstListedResidues(t *testing.T) {
	valid := 0
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t)
		err := l.Validate()
		if want := slowlyValid(l); (err == nil) != want {
			t.Fatalf("%+v: %v, want valid %t", l, err, want)
		}
		if err != nil {
			var list *allocator.LayoutError
			if !errors.Is(err, allocator.Invalid) || allocator.KindOf(err) != allocator.Invalid ||
				!errors.As(err, &list) || len(list.Problems) == 0 {
				t.Errorf("error %#v is no LayoutError of kind invalid", err)
			}
			return
		}
		valid++
		for id := range 3 * l.Boundary {
			room, ok := l.RoomOf(id)
			var want []allocator.Room
			for name, r := range l.Ranges {
				if residues(r)[id%l.Boundary] {
					want = append(want, name)
				}
			}
			if ok != (len(want) == 1) || ok && want[0] != room {
				t.Fatalf("%+v: room of %d is %q (%t), want %v", l, id, room, ok, want)
			}
			if l.Block(id)*l.Boundary+l.Residue(id) != id {
				t.Fatalf("block and residue of %d do not give it back", id)
			}
		}
	})
	if valid == 0 {
		t.Error("no valid layout was drawn")
	}
}

func TestLayoutValidateNamesEachProblem(t *testing.T) {
	l := allocator.Layout{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{
		"low": {-1, 3}, "swapped": {5, 4}, "high": {9, 11}, "x": {0, 2}, "y": {1, 3}, "Bad name": {6, 7},
	}}
	text := fmt.Sprint(l.Validate())
	for _, want := range []string{
		"low [-1, 3): lower -1", "swapped [5, 4): lower 5 is not below upper 4",
		"high [9, 11): upper 11 is above boundary 10",
		"overlap in [1, 2)", `"Bad name"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	many := allocator.Layout{Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{}}
	for i := range int64(allocator.MaxRooms + 1) {
		many.Ranges[allocator.Room(fmt.Sprintf("r%d", i))] = allocator.Range{Lower: i, Upper: i + 1}
	}
	if err := many.Validate(); err == nil {
		t.Error("65 rooms are valid")
	}
	delete(many.Ranges, "r0")
	if err := many.Validate(); err != nil {
		t.Errorf("64 rooms: %v", err)
	}
}

func TestEqualLayoutAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		boundary := rapid.OneOf(rapid.Int64Range(1, 200), rapid.Int64Range(allocator.MaxID-200, allocator.MaxID),
			rapid.Int64Range(1, allocator.MaxID)).Draw(t, "boundary")
		n := rapid.IntRange(1, allocator.MaxRooms).Draw(t, "rooms")
		rooms := make([]allocator.Room, n)
		for i := range rooms {
			rooms[i] = allocator.Room(fmt.Sprintf("r%d", i))
		}
		l, err := allocator.EqualLayout(boundary, rooms)
		if want := boundary >= int64(n); (err == nil) != want {
			t.Fatalf("boundary %d, %d rooms: %v", boundary, n, err)
		}
		if err != nil {
			if !errors.Is(err, allocator.Invalid) {
				t.Errorf("%v is not invalid", err)
			}
			return
		}
		cut := func(i int) int64 {
			c := new(big.Int).Mul(big.NewInt(boundary), big.NewInt(int64(i)))
			return c.Quo(c, big.NewInt(int64(n))).Int64()
		}
		for i, room := range rooms {
			if got, want := l.Ranges[room], (allocator.Range{Lower: cut(i), Upper: cut(i + 1)}); got != want {
				t.Errorf("room %d of %d in %d: %v, want %v", i, n, boundary, got, want)
			}
		}
		if !slices.Equal(l.Rooms(), rooms) {
			t.Errorf("rooms %v, want %v", l.Rooms(), rooms)
		}
	})
	for _, c := range []struct {
		boundary int64
		rooms    []allocator.Room
	}{{10, nil}, {0, []allocator.Room{"a"}}, {-5, []allocator.Room{"a", "b"}}, {10, []allocator.Room{"a", "a"}},
		{10, []allocator.Room{"A"}}} {
		if _, err := allocator.EqualLayout(c.boundary, c.rooms); !errors.Is(err, allocator.Invalid) {
			t.Errorf("EqualLayout(%d, %v): %v, want invalid", c.boundary, c.rooms, err)
		}
	}
}

func TestLayoutEqual(t *testing.T) {
	a, b := strided(), strided()
	b.Version = 9
	if !a.Equal(b) {
		t.Error("versions are compared")
	}
	b.Boundary++
	if a.Equal(b) || a.Equal(dense()) {
		t.Error("different layouts are equal")
	}
}
