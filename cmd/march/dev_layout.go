package main

import (
	"strings"

	"github.com/march-id/march/allocator"
)

// firstDevLayout returns the first layout of a data directory: rooms of equal ranges. If machines
// is a name, a tenth is reserved under that name. Its errors are Invalid.
func firstDevLayout(names []string, boundary int64, machines allocator.Room) (allocator.Layout, error) {
	if n := len(names); n < 1 || n > mostDevRooms {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "rooms: %d named; allowed: 1 to %d", n,
			mostDevRooms)
	}
	rooms := make([]allocator.Room, len(names))
	for i, name := range names {
		var err error
		if rooms[i], err = allocator.ParseRoom(strings.TrimSpace(name)); err != nil {
			return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "rooms: %w", err)
		}
	}
	if boundary < int64(len(rooms)) {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid,
			"boundary: %d; allowed: at least one residue for each of the %d rooms, up to %d", boundary,
			len(rooms), int64(allocator.MaxID))
	}
	if machines == "" {
		return allocator.EqualLayout(boundary, rooms)
	}
	return layoutWithMachines(boundary, rooms, machines)
}

// layoutWithMachines returns a first layout of which the last tenth is reserved.
func layoutWithMachines(boundary int64, rooms []allocator.Room, name allocator.Room) (allocator.Layout, error) {
	reserved := allocator.Range{Lower: boundary - boundary/10, Upper: boundary}
	if reserved.Lower == boundary || reserved.Lower < int64(len(rooms)) {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "boundary: %d; allowed with --cosid-machines: "+
			"at least 10, and a residue for each of the %d rooms below the last tenth", boundary, len(rooms))
	}
	l, err := allocator.EqualLayout(reserved.Lower, rooms)
	l.Boundary, l.Reserved = boundary, map[allocator.Room]allocator.Range{name: reserved}
	return l, err
}
