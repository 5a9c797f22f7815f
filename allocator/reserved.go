package allocator

import (
	"maps"
	"slices"
)

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
