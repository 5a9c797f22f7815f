package plan

import (
	"fmt"
	"maps"
	"strings"

	"github.com/march-id/march/allocator"
)

// MoveKind says how a move changes the ranges.
type MoveKind string

const (
	// Retract: ranges only shrink or go away.
	Retract MoveKind = "retract"
	// Expand: ranges only grow or appear, into residues that were free.
	Expand MoveKind = "expand"
	// Shift: residues are gained and lost by one move, the gained ones all
	// from what was free: a range goes elsewhere, or one grows where another
	// shrinks.
	Shift MoveKind = "shift"
	// Switch: residues pass from room to room at once, or the boundary changes,
	// so the retract promise is not given: a residue may still be issued by the
	// room that lost it until that room's instances have all reported.
	Switch MoveKind = "switch"
)

// Move is one change of layout, in a plan and in the migration that follows it. The migration
// stores it unchanged.
type Move struct {
	Kind MoveKind `json:"kind"`
	// Why is one sentence for operators.
	Why string `json:"why"`
	// Layout after the move. Its Version is the one it will have: From's plus
	// 1 for the first move, plus 2 for the second.
	Layout allocator.Layout `json:"layout"`
	// Loses are the rooms that lose residues by the move, the drained ones too, by lower.
	// Before the next move (of this plan, or of the plan back that replaces it) every
	// registered instance of these rooms must have reported Layout.
	Loses []allocator.Room `json:"loses,omitempty"`
}

// newMove describes the move from one layout to the next on the way to target.
func newMove(before, after, target allocator.Layout) Move {
	m := Move{Kind: kindOf(before, after), Layout: after}
	for _, room := range before.Rooms() {
		if before.Boundary != after.Boundary || !within(before.Ranges[room], after.Ranges[room]) {
			m.Loses = append(m.Loses, room)
		}
	}
	m.Why = why(m.Kind, before, after, target)
	return m
}

func kindOf(before, after allocator.Layout) MoveKind {
	if before.Boundary != after.Boundary || !onlyFree(before, after) {
		return Switch
	}
	var gains, loses bool
	for room, r := range after.Ranges {
		gains = gains || !within(r, before.Ranges[room])
	}
	for room, r := range before.Ranges {
		loses = loses || !within(r, after.Ranges[room])
	}
	switch {
	case gains && loses:
		return Shift
	case gains:
		return Expand
	default:
		return Retract
	}
}

// onlyFree reports whether no room gains a residue that another room had before. The boundaries
// must be the same.
func onlyFree(before, after allocator.Layout) bool {
	for gainer, r := range after.Ranges {
		for holder, held := range before.Ranges {
			if _, meet := r.Intersect(held); meet && gainer != holder {
				return false
			}
		}
	}
	return true
}

// within reports whether o contains all of r. r must not be empty.
func within(r, o allocator.Range) bool { return o.Lower <= r.Lower && r.Upper <= o.Upper }

func cloneLayout(l allocator.Layout) allocator.Layout {
	l.Ranges, l.Reserved = maps.Clone(l.Ranges), maps.Clone(l.Reserved)
	return l
}

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
		return what + " in one switch: IDs stay unique by the floor; only the retract promise is not given until all " +
			"instances have reported"
	case Retract:
		return what + "; no room gains a residue"
	case Expand:
		return what + ", into residues that no room held"
	default:
		return what + "; every residue gained was free"
	}
}

// changes lists the rooms by their change, then the reserved ranges: "room b goes, rooms a and c
// grow, [80, 100) is reserved for asia".
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
			all = append(all, fmt.Sprintf("rooms %s and %s %s", strings.Join(names[:n-1], ", "),
				names[n-1], group.many))
		}
	}
	return strings.Join(append(all, reservations(before, after)...), ", ")
}

// reservations lists the ranges that become reserved, and those that are released.
func reservations(before, after allocator.Layout) (all []string) {
	for _, name := range after.ReservedNames() {
		if r := after.Reserved[name]; r != before.Reserved[name] {
			all = append(all, fmt.Sprintf("%v is reserved for %s", r, name))
		}
	}
	for _, name := range before.ReservedNames() {
		if _, stays := after.Reserved[name]; !stays {
			all = append(all, fmt.Sprintf("%v is no longer reserved for %s", before.Reserved[name], name))
		}
	}
	return all
}
