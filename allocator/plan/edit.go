package plan

import (
	"maps"
	"math/bits"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
)

// Edit makes a target out of the current layout: a move of residues, an added
// or a drained room, a new boundary. Values come from ParseMove, ParseAddRoom,
// Drain and ScaleBoundary; the zero value is refused by Apply. Every error of
// an edit is Invalid.
type Edit struct {
	do func(*allocator.Layout) error // changes a layout that is its own
}

// Apply applies the edits to l in their order. l stays as it is. The result is valid and its
// Version is 0. The error is Invalid; it names the edit that cannot be made, and why.
func Apply(l allocator.Layout, edits ...Edit) (allocator.Layout, error) {
	if err := l.Validate(); err != nil {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "from: %w", err)
	}
	l = cloneLayout(l)
	l.Version = 0
	for i, e := range edits {
		if e.do == nil {
			return allocator.Layout{}, allocator.Errorf(allocator.Invalid,
				"edit %d: empty; allowed: a move, add_room, drain or boundary", i+1)
		}
		if err := e.do(&l); err != nil {
			return allocator.Layout{}, err
		}
	}
	if err := l.Validate(); err != nil {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "target: %w", err)
	}
	return l, nil
}

// ParseMove parses "a:25-50=b": the residues [25, 50) of room a go to room b. They must lie at
// an edge of a's range, next to b's, and a must keep some.
func ParseMove(s string) (Edit, error) {
	const form = "FROM:LOWER-UPPER=TO, like a:25-50=b"
	from, rest, ok1 := strings.Cut(s, ":")
	run, to, ok2 := strings.Cut(rest, "=")
	if !ok1 || !ok2 {
		return Edit{}, allocator.Errorf(allocator.Invalid, "move: %q; allowed: %s", s, form)
	}
	a, err := parseRoomOf("move", s, from)
	if err != nil {
		return Edit{}, err
	}
	b, err := parseRoomOf("move", s, to)
	if err != nil {
		return Edit{}, err
	}
	moved, err := parseRange("move", s, run)
	if err != nil {
		return Edit{}, err
	}
	if a == b {
		return Edit{}, allocator.Errorf(allocator.Invalid, "move: %s: from room %s to itself; allowed: two rooms", s, a)
	}
	return Edit{func(l *allocator.Layout) error { return moveResidues(l, s, a, b, moved) }}, nil
}

func moveResidues(l *allocator.Layout, s string, a, b allocator.Room, moved allocator.Range) error {
	ra, ok := l.Ranges[a]
	if !ok {
		return allocator.Errorf(allocator.Invalid, "move: %s: no room %s; allowed: %s", s, a, ListRanges(*l))
	}
	rb, ok := l.Ranges[b]
	switch {
	case !ok:
		return allocator.Errorf(allocator.Invalid,
			"move: %s: no room %s; allowed: %s, or a new room by --add-room", s, b, ListRanges(*l))
	case !within(moved, ra):
		return allocator.Errorf(allocator.Invalid,
			"move: %s: %v is not room %s's; allowed: residues of its %v", s, moved, a, ra)
	case moved == ra:
		return allocator.Errorf(allocator.Invalid,
			"move: %s: %v is all that room %s has; allowed: less, or --drain %s", s, moved, a, a)
	case moved.Lower != ra.Lower && moved.Upper != ra.Upper:
		return allocator.Errorf(allocator.Invalid,
			"move: %s: without %v room %s would be left in two parts; allowed: residues at an edge of its %v",
			s, moved, a, ra)
	}
	switch {
	case rb.Upper == moved.Lower: // at a's lower edge
		rb.Upper, ra.Lower = moved.Upper, moved.Upper
	case rb.Lower == moved.Upper: // at a's upper edge
		rb.Lower, ra.Upper = moved.Lower, moved.Lower
	default:
		return allocator.Errorf(allocator.Invalid,
			"move: %s: %v does not touch room %s's %v; allowed: residues of room %s %v next to it, "+
				"as a range is one run",
			s, moved, b, rb, a, ra)
	}
	l.Ranges[a], l.Ranges[b] = ra, rb
	return nil
}

// ParseAddRoom parses "c=75-100": the residues [75, 100) go to a new room c,
// from gaps or from the edges of rooms that keep some.
func ParseAddRoom(s string) (Edit, error) {
	name, run, ok := strings.Cut(s, "=")
	if !ok {
		return Edit{}, allocator.Errorf(allocator.Invalid, "add_room: %q; allowed: ROOM=LOWER-UPPER, like c=75-100", s)
	}
	room, err := parseRoomOf("add_room", s, name)
	if err != nil {
		return Edit{}, err
	}
	r, err := parseRange("add_room", s, run)
	if err != nil {
		return Edit{}, err
	}
	return Edit{func(l *allocator.Layout) error { return addRoom(l, s, room, r) }}, nil
}

func addRoom(l *allocator.Layout, s string, room allocator.Room, r allocator.Range) error {
	if had, ok := l.Ranges[room]; ok {
		return allocator.Errorf(allocator.Invalid,
			"add_room: %s: room %s is there, with %v; allowed: a new name, or --move", s, room, had)
	}
	if r.Upper > l.Boundary {
		return allocator.Errorf(allocator.Invalid,
			"add_room: %s: upper %d is above the boundary; allowed: up to %d", s, r.Upper, l.Boundary)
	}
	for _, other := range l.Rooms() {
		held := l.Ranges[other]
		switch _, meet := held.Intersect(r); {
		case !meet:
			continue
		case within(held, r):
			return allocator.Errorf(allocator.Invalid,
				"add_room: %s: room %s %v would have nothing left; allowed: less, or --drain %s first",
				s, other, held, other)
		case held.Lower < r.Lower && r.Upper < held.Upper:
			return allocator.Errorf(allocator.Invalid,
				"add_room: %s: room %s %v would be left in two parts; allowed: residues at an edge of its range",
				s, other, held)
		case held.Lower < r.Lower:
			held.Upper = r.Lower
		default:
			held.Lower = r.Upper
		}
		l.Ranges[other] = held
	}
	l.Ranges[room] = r
	return nil
}

// Drain takes a room away; its residues become a gap.
func Drain(room allocator.Room) Edit {
	return Edit{func(l *allocator.Layout) error {
		if _, ok := l.Ranges[room]; !ok {
			return allocator.Errorf(allocator.Invalid, "drain: no room %s; allowed: %s", room, ListRanges(*l))
		}
		if len(l.Ranges) == 1 {
			return allocator.Errorf(allocator.Invalid,
				"drain: room %s %v is the last; allowed: any but the last room", room, l.Ranges[room])
		}
		delete(l.Ranges, room)
		return nil
	}}
}

// ParseReserve parses "other=75-100": the residues [75, 100), which no room has, are reserved
// under that name.
func ParseReserve(s string) (Edit, error) {
	name, run, ok := strings.Cut(s, "=")
	if !ok {
		return Edit{}, allocator.Errorf(allocator.Invalid,
			"reserve: %q; allowed: NAME=LOWER-UPPER, like other=75-100", s)
	}
	of, err := parseRoomOf("reserve", s, name)
	if err != nil {
		return Edit{}, err
	}
	r, err := parseRange("reserve", s, run)
	if err != nil {
		return Edit{}, err
	}
	return Edit{func(l *allocator.Layout) error {
		if had, there := l.Reserved[of]; there {
			return allocator.Errorf(allocator.Invalid,
				"reserve: %s: %s is reserved already, as %v; allowed: a new name, or --release %s first",
				s, of, had, of)
		}
		if l.Reserved == nil {
			l.Reserved = make(map[allocator.Room]allocator.Range)
		}
		l.Reserved[of] = r
		return nil
	}}, nil
}

// Release makes a reserved range a gap.
func Release(name allocator.Room) Edit {
	return Edit{func(l *allocator.Layout) error {
		if len(l.Reserved) == 0 {
			return allocator.Errorf(allocator.Invalid, "release: %s; the layout has no reserved range", name)
		}
		if _, ok := l.Reserved[name]; !ok {
			return allocator.Errorf(allocator.Invalid,
				"release: no reserved range %s; allowed: one of %v", name, l.ReservedNames())
		}
		if delete(l.Reserved, name); len(l.Reserved) == 0 {
			l.Reserved = nil
		}
		return nil
	}}
}

// ScaleBoundary sets the boundary to n and every range to the same share of it,
// where that is exact.
func ScaleBoundary(n int64) Edit {
	return Edit{func(l *allocator.Layout) error {
		if err := mayScale(*l, n); err != nil {
			return err
		}
		if least := int64(len(l.Ranges)); n < least {
			return allocator.Errorf(allocator.Invalid, "boundary: %d; allowed: %d to %d, a residue for each room",
				n, least, int64(allocator.MaxID))
		}
		for _, room := range l.Rooms() {
			r := l.Ranges[room]
			lower, ok1 := scale(r.Lower, n, l.Boundary)
			upper, ok2 := scale(r.Upper, n, l.Boundary)
			number := r.Lower
			if ok1 {
				number = r.Upper
			}
			if !ok1 || !ok2 {
				return allocator.Errorf(allocator.Invalid,
					"boundary: %d: room %s %v does not scale, as %d * %d / %d is not whole; allowed: "+
						"a boundary that fits, or ranges given by --target",
					n, room, r, number, n, l.Boundary)
			}
			l.Ranges[room] = allocator.Range{Lower: lower, Upper: upper}
		}
		l.Boundary = n
		return nil
	}}
}

// mayScale refuses another boundary while ranges are reserved: these are residues of the
// present boundary, in another cluster, too.
func mayScale(l allocator.Layout, boundary int64) error {
	if boundary == l.Boundary || len(l.Reserved) == 0 {
		return nil
	}
	return allocator.Errorf(allocator.Invalid,
		"boundary: %d; allowed: %d while ranges are reserved (%v), or release these first", boundary,
		l.Boundary, l.ReservedNames())
}

// KeepReserved returns a target with the ranges that the current layout reserves, if it has none
// of its own: a plan leaves them alone. Its error is Invalid for another boundary.
func KeepReserved(current, target allocator.Layout) (allocator.Layout, error) {
	if len(target.Reserved) > 0 {
		return target, nil
	}
	if err := mayScale(current, target.Boundary); err != nil {
		return target, err
	}
	target.Reserved = maps.Clone(current.Reserved)
	return target, nil
}

// scale returns v*n/boundary and whether that is exact, for 0 <= v <= boundary
// and 1 <= n. The product has 128 bits; the quotient is at most n.
func scale(v, n, boundary int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(v), uint64(n))
	quotient, rest := bits.Div64(hi, lo, uint64(boundary)) // hi < boundary, as v*n < boundary * 2^64
	return int64(quotient), rest == 0
}

func parseRoomOf(field, s, name string) (allocator.Room, error) {
	room, err := allocator.ParseRoom(name)
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid, "%s: %q: %w", field, s, err)
	}
	return room, nil
}

// parseRange parses "25-50" as [25, 50).
func parseRange(field, s, run string) (allocator.Range, error) {
	lower, upper, ok := strings.Cut(run, "-")
	lo, err1 := strconv.ParseUint(lower, 10, 63)
	hi, err2 := strconv.ParseUint(upper, 10, 63)
	if !ok || err1 != nil || err2 != nil || lo >= hi {
		return allocator.Range{}, allocator.Errorf(allocator.Invalid,
			"%s: %q: range %q; allowed: LOWER-UPPER, the first residue and the end, 0 <= lower < upper <= %d", field, s,
			run, int64(allocator.MaxID))
	}
	return allocator.Range{Lower: int64(lo), Upper: int64(hi)}, nil
}
