package plan

import "github.com/march-id/march/allocator"

// Gaining returns the rooms that have residues in target which they do not have in from, by
// lower. Where the boundary changes, a share of the residues is compared.
func Gaining(from, target allocator.Layout) (rooms []allocator.Room) {
	for _, room := range target.Rooms() {
		had, is := scaled(from, room, target.Boundary)
		if !is || !within(target.Ranges[room], had) {
			rooms = append(rooms, room)
		}
	}
	return rooms
}

// Freed is the part of the residues that a room has, and that no room has after a plan.
type Freed struct {
	Room allocator.Room
	Part float64 // of all residues
}

// FreedBy returns what the rooms of from give up that target neither gives to a room nor reserves, by lower.
func FreedBy(from, target allocator.Layout) (freed []Freed) {
	for _, room := range from.Rooms() {
		had, _ := scaled(from, room, target.Boundary)
		free := int64(0)
		for _, gap := range target.Free(had) {
			free += gap.Width()
		}
		if free > 0 {
			freed = append(freed, Freed{room, float64(free) / float64(target.Boundary)})
		}
	}
	return freed
}

// scaled returns the residues of another boundary that the range of a room corresponds to, and
// whether it has a range. It includes a residue that is the room's in part.
func scaled(l allocator.Layout, room allocator.Room, boundary int64) (allocator.Range, bool) {
	r, ok := l.Ranges[room]
	if !ok {
		return r, false
	}
	lower, _ := scale(r.Lower, boundary, l.Boundary)
	upper, exact := scale(r.Upper, boundary, l.Boundary)
	if !exact {
		upper++
	}
	return allocator.Range{Lower: lower, Upper: upper}, true
}
