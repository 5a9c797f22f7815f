package allocator

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// MaxRooms is how many rooms a cluster may have in its life.
const MaxRooms = 64

// MaxID is the largest int64. A tag's limit is exclusive and at most MaxID, so that
// "the next ID" also fits an int64.
const MaxID = math.MaxInt64

// Layout is a boundary and each room's range under it. Layouts are values: a
// changed layout is a new one. The zero value is not valid.
type Layout struct {
	// 1 for the first, and only growing; 0 for a layout that was not stored yet
	Version  int64          `json:"version,string"`
	Boundary int64          `json:"boundary,string"` // the modulus, 1 to MaxID
	Ranges   map[Room]Range `json:"rooms"`
	Reserved map[Room]Range `json:"reserved,omitempty"` // for another cluster: no room has any of them; nil for none
}

// LayoutError lists every constraint that a layout breaks. Its Kind is
// Invalid.
type LayoutError struct {
	Problems []string
	// Rooms are the rooms that each of Problems concerns, in the same order; empty
	// if all concern the layout as a whole.
	Rooms [][]Room
}

func (e *LayoutError) Error() string { return "invalid layout: " + strings.Join(e.Problems, "; ") }

// Is reports whether target is Invalid.
func (e *LayoutError) Is(target error) bool { return target == Invalid }

// Validate checks that 1 <= boundary, and for the rooms sorted by lower that
// 0 <= lower1 < upper1 <= lower2 < upper2 <= boundary. Gaps are allowed. Its
// error is a *LayoutError that names every broken constraint with its rooms
// and numbers.
func (l Layout) Validate() error {
	found := &LayoutError{}
	add := func(about []Room, format string, args ...any) {
		found.Problems, found.Rooms = append(found.Problems, fmt.Sprintf(format, args...)), append(found.Rooms, about)
	}
	if l.Boundary < 1 {
		add(nil, "boundary %d; allowed: 1 to %d", l.Boundary, int64(MaxID))
	}
	if n := len(l.Ranges); n < 1 || n > MaxRooms {
		add(nil, "%d rooms; allowed: 1 to %d", n, MaxRooms)
		if n > MaxRooms {
			return found // too many to compare all pairs
		}
	}
	rooms := l.Rooms()
	for _, room := range rooms {
		r, about := l.Ranges[room], []Room{room}
		if _, err := ParseRoom(string(room)); err != nil {
			add(about, "%v", err)
		}
		if r.Lower < 0 {
			add(about, "room %s %v: lower %d is below 0", room, r, r.Lower)
		}
		if r.Lower >= r.Upper {
			add(about, "room %s %v: lower %d is not below upper %d", room, r, r.Lower, r.Upper)
		}
		if l.Boundary >= 1 && r.Upper > l.Boundary {
			add(about, "room %s %v: upper %d is above boundary %d", room, r, r.Upper, l.Boundary)
		}
	}
	for i, a := range rooms {
		for _, b := range rooms[i+1:] {
			if both, ok := l.Ranges[a].Intersect(l.Ranges[b]); ok {
				add([]Room{a, b}, "rooms %s %v and %s %v overlap in %v", a, l.Ranges[a], b, l.Ranges[b], both)
			}
		}
	}
	l.checkReserved(add)
	if found.Problems == nil {
		return nil
	}
	return found
}

// Rooms returns the layout's rooms, sorted by lower, then by name.
func (l Layout) Rooms() []Room {
	return slices.SortedFunc(maps.Keys(l.Ranges), func(a, b Room) int {
		return cmp.Or(cmp.Compare(l.Ranges[a].Lower, l.Ranges[b].Lower), cmp.Compare(a, b))
	})
}

// Equal reports whether l and o give the same rooms the same ranges under the
// same boundary, and reserve the same; versions are not compared.
func (l Layout) Equal(o Layout) bool {
	return l.Boundary == o.Boundary && maps.Equal(l.Ranges, o.Ranges) && maps.Equal(l.Reserved, o.Reserved)
}

// Block returns the number of the block that an ID is in. Blocks are as long as the boundary.
func (l Layout) Block(id int64) int64 { return id / l.Boundary }

// Residue returns id mod boundary.
func (l Layout) Residue(id int64) int64 { return id % l.Boundary }

// RoomOf returns the room whose range contains id's residue, and false when it
// lies in a gap.
func (l Layout) RoomOf(id int64) (Room, bool) {
	residue := l.Residue(id)
	for room, r := range l.Ranges {
		if r.Contains(residue) {
			return room, true
		}
	}
	return "", false
}

// EqualLayout returns the layout in which the rooms, in the order given, share
// the boundary as equally as integers allow: room i of n has
// [i*boundary/n, (i+1)*boundary/n). Its error is Invalid.
func EqualLayout(boundary int64, rooms []Room) (Layout, error) {
	l := Layout{Boundary: boundary, Ranges: make(map[Room]Range, len(rooms))}
	n := int64(len(rooms))
	for i, room := range rooms {
		if _, twice := l.Ranges[room]; twice {
			return Layout{}, Errorf(Invalid, "rooms: %s is named twice", room)
		}
		l.Ranges[room] = Range{Lower: share(boundary, int64(i), n), Upper: share(boundary, int64(i)+1, n)}
	}
	return l, l.Validate()
}

// share returns floor(whole*i/n) for 0 <= i <= n without overflow.
func share(whole, i, n int64) int64 { return whole/n*i + whole%n*i/n }

// Range is a room's half-open interval of residues [Lower, Upper). The zero
// value is empty and not valid in a layout.
type Range struct {
	Lower int64 `json:"lower,string"` // the least residue, inclusive
	Upper int64 `json:"upper,string"` // the end, exclusive
}

// Width returns how many residues, and so how many IDs per block, the range
// has.
func (r Range) Width() int64 { return r.Upper - r.Lower }

// Contains reports whether Lower <= residue < Upper.
func (r Range) Contains(residue int64) bool { return r.Lower <= residue && residue < r.Upper }

// Intersect returns the residues that r and o have in common, and whether there are
// any.
func (r Range) Intersect(o Range) (Range, bool) {
	both := Range{Lower: max(r.Lower, o.Lower), Upper: min(r.Upper, o.Upper)}
	return both, both.Lower < both.Upper
}

func (r Range) String() string { return fmt.Sprintf("[%d, %d)", r.Lower, r.Upper) }

// A layout may reserve ranges by name, for rooms of another cluster: no room of this one has a
// residue of them, so two clusters that issue into the same space stay apart. A reserved range
// keeps rooms out, and is nothing else: it has no marks, and no instance looks at it.

// ReservedNames returns the names of the reserved ranges, sorted by lower, then by name.
func (l Layout) ReservedNames() []Room {
	return Layout{Ranges: l.Reserved}.Rooms()
}

// checkReserved tells add what is wrong with the reserved ranges.
func (l Layout) checkReserved(add func(about []Room, format string, args ...any)) {
	if n := len(l.Reserved); n > MaxRooms {
		add(nil, "%d reserved ranges; allowed: 0 to %d", n, MaxRooms)
		return // too many to compare all pairs
	}
	names := l.ReservedNames()
	for i, name := range names {
		r := l.Reserved[name]
		if _, err := ParseRoom(string(name)); err != nil {
			add(nil, "reserved: %v", err)
		}
		if r.Lower < 0 || r.Lower >= r.Upper || l.Boundary >= 1 && r.Upper > l.Boundary {
			add(nil, "reserved range %s %v; allowed: 0 <= lower < upper <= %d", name, r, l.Boundary)
		}
		for _, other := range names[i+1:] {
			if both, ok := r.Intersect(l.Reserved[other]); ok {
				add(nil, "reserved ranges %s %v and %s %v overlap in %v", name, r, other, l.Reserved[other], both)
			}
		}
		for _, room := range l.Rooms() {
			if both, ok := r.Intersect(l.Ranges[room]); ok {
				add([]Room{room},
					"room %s %v and reserved range %s %v overlap in %v", room, l.Ranges[room], name, r, both)
			}
		}
	}
}

// Free returns the runs of r that are neither a room's nor reserved, in order.
func (l Layout) Free(r Range) []Range {
	taken := slices.AppendSeq(slices.Collect(maps.Values(l.Ranges)), maps.Values(l.Reserved))
	slices.SortFunc(taken, func(a, b Range) int { return int(min(max(a.Lower-b.Lower, -1), 1)) })
	var runs []Range
	lower := r.Lower
	for _, held := range taken {
		held, meet := held.Intersect(r)
		if !meet {
			continue
		}
		if lower < held.Lower {
			runs = append(runs, Range{lower, held.Lower})
		}
		lower = max(lower, held.Upper)
	}
	if lower < r.Upper {
		runs = append(runs, Range{lower, r.Upper})
	}
	return runs
}
