package plan

import (
	"fmt"
	"strings"

	"github.com/march-id/march/allocator"
)

// why describes in one sentence what a move does to which rooms, and what it promises.
func why(kind MoveKind, before, after, target allocator.Layout) string {
	if before.Boundary != after.Boundary {
		return fmt.Sprintf("the boundary changes from %d to %d, and residues of two boundaries cannot be compared: "+
			"IDs stay unique by the floor; only the retract promise is not given until all instances have reported",
			before.Boundary, after.Boundary)
	}
	what := changes(before, after, target)
	switch kind {
	case Switch:
		return what + " in one switch: IDs stay unique by the floor; only the retract promise is not given until all instances have reported"
	case Retract:
		return what + "; no room gains a residue"
	case Expand:
		return what + ", into residues that no room held"
	default:
		return what + "; every residue gained was free"
	}
}

// changes lists the rooms by their change: "room b goes, rooms a and c grow".
func changes(before, after, target allocator.Layout) string {
	var gone, shrink, yield, over, wait, grow, appear []allocator.Room
	for _, room := range before.Rooms() {
		was := before.Ranges[room]
		is, stays := after.Ranges[room]
		common, _ := was.Intersect(target.Ranges[room])
		_, meets := is.Intersect(target.Ranges[room])
		switch {
		case !stays:
			gone = append(gone, room)
		case was == is:
		case within(is, was) && is == common:
			shrink = append(shrink, room)
		case within(is, was):
			yield = append(yield, room)
		case within(was, is):
			grow = append(grow, room)
		case meets:
			over = append(over, room)
		default:
			wait = append(wait, room)
		}
	}
	for _, room := range after.Rooms() {
		if _, had := before.Ranges[room]; !had {
			appear = append(appear, room)
		}
	}
	var all []string
	for _, group := range []struct {
		rooms     []allocator.Room
		one, many string
	}{
		{gone, "goes", "go"},
		{shrink, "shrinks to what old and new have in common", "shrink to what old and new have in common"},
		{yield, "gives way for a while", "give way for a while"},
		{over, "goes over to its new range", "go over to their new ranges"},
		{wait, "waits in a gap", "wait in gaps"},
		{grow, "grows", "grow"},
		{appear, "appears", "appear"},
	} {
		switch n := len(group.rooms); n {
		case 0:
		case 1:
			all = append(all, fmt.Sprintf("room %s %s", group.rooms[0], group.one))
		default:
			names := make([]string, n)
			for i, room := range group.rooms {
				names[i] = string(room)
			}
			all = append(all, fmt.Sprintf("rooms %s and %s %s", strings.Join(names[:n-1], ", "), names[n-1], group.many))
		}
	}
	return strings.Join(all, ", ")
}
