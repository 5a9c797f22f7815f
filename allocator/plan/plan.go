// Package plan finds the moves from one layout to another. It is pure: two layouts in, a
// list of moves out. The console makes the moves and waits between them. A plan promises:
//
//  1. Every move's layout is valid, and a room that is in From and in Target
//     has a range in each.
//  2. Every residue that a room gains by a move was held by no other room in the
//     layout before, unless the move is a switch. The console waits for the instances
//     of the rooms in Loses before the next move. So no two rooms ever issue the same
//     residue at once.
//  3. A drained room is gone after the first move, and an added one appears in the
//     last. If no room stays, drained and added rooms meet in between, as a layout
//     without rooms is not valid.
//  4. A plan without --atomic is refused only if no sequence of moves exists. That is
//     so under one boundary if each residue is the only one of its room, and no room
//     can go before another comes.
//  5. With Workers.New, each layout leaves each room a worker, if any sequence of moves does.
//     Pinned workers are kept as far as the moves that were found keep them.
//
// Uniqueness of IDs does not depend on any of this: see package ledger.
package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
)

// Plan is the way from layout From to layout Target. It shares no memory with the arguments of
// New.
type Plan struct {
	From   allocator.Layout // by version: the plan fits no other layout
	Target allocator.Layout // Version is the last move's
	Atomic bool             // requested as a single move
	Moves  []Move           // at least one, except in a plan back from its own start
}

// New finds moves from one layout to another, as few as it can. With atomic the plan is always
// a single move, of whatever kind. A changed boundary is a single switch too, as residues of
// two boundaries cannot be compared. New ignores Target's Version. Its errors are Invalid
// (either layout is invalid, or they are equal) and Refused (no sequence keeps the promises
// above).
func New(from, target allocator.Layout, atomic bool) (Plan, error) {
	return newPlan(from, target, atomic, measure{from: from})
}

// New is New with moves that pass Check, if there are any. Otherwise it returns the moves of
// New, and Check says what is wrong with them.
func (w Workers) New(from, target allocator.Layout, atomic bool) (Plan, error) {
	p, err := New(from, target, atomic)
	if err != nil || p.check(w) == nil {
		return p, err
	}
	if other, err := newPlan(from, target, atomic, measureOf(from, w)); err == nil && other.check(w) == nil {
		return other, nil
	}
	return p, nil
}

// check checks all moves of a plan.
func (p Plan) check(w Workers) error {
	layouts := make([]allocator.Layout, len(p.Moves))
	for i, m := range p.Moves {
		layouts[i] = m.Layout
	}
	return w.Check(p.From, layouts...)
}

// newPlan is New by a measure.
func newPlan(from, target allocator.Layout, atomic bool, s measure) (Plan, error) {
	if err := from.Validate(); err != nil {
		return Plan{}, allocator.Errorf(allocator.Invalid, "from: %w", err)
	}
	if from.Version < 1 {
		return Plan{}, allocator.Errorf(allocator.Invalid,
			"from: layout version %d; allowed: 1 or more, a layout that is stored", from.Version)
	}
	if err := target.Validate(); err != nil {
		return Plan{}, allocator.Errorf(allocator.Invalid, "target: %w", err)
	}
	if from.Equal(target) {
		return Plan{}, allocator.Errorf(allocator.Invalid,
			"target: boundary %d, %s is the current layout, version %d; allowed: one that differs",
			target.Boundary, ListRanges(target), from.Version)
	}
	layouts := []allocator.Layout{target}
	if from.Boundary == target.Boundary && !atomic && !maps.Equal(from.Ranges, target.Ranges) {
		if layouts = shortest(reservedFirst(from, target), target, s); layouts == nil {
			return Plan{}, refused(from, target)
		}
	}
	p := Plan{From: cloneLayout(from), Atomic: atomic}
	before := p.From
	for _, l := range layouts {
		l = cloneLayout(l)
		l.Version = before.Version + 1
		p.Moves = append(p.Moves, newMove(before, l, target))
		before = l
	}
	p.Target = cloneLayout(before)
	return p, nil
}

// reservedFirst returns from with the reserved ranges of target that are free in it: they keep
// rooms out from the first move on. Reserved ranges that rooms still hold come with the last
// move.
func reservedFirst(from, target allocator.Layout) allocator.Layout {
	from = cloneLayout(from)
	from.Reserved = nil
	for _, name := range target.ReservedNames() {
		if r := target.Reserved[name]; slices.Equal(from.Free(r), []allocator.Range{r}) {
			if from.Reserved == nil {
				from.Reserved = make(map[allocator.Room]allocator.Range)
			}
			from.Reserved[name] = r
		}
	}
	return from
}

// Back is the plan of an abort: from the layout that a migration has reached to its first one,
// by moves if there are any and by one switch if not. It has no moves if nothing was moved yet.
// Its first move must wait for the Loses of the move before it, like any other: it may give
// away residues that were just given up.
// Its moves pass Check, if there are any that do.
func (w Workers) Back(current, original allocator.Layout) (Plan, error) {
	if current.Validate() == nil && current.Equal(original) {
		return Plan{From: cloneLayout(current), Target: cloneLayout(current)}, nil
	}
	p, err := w.New(current, original, false)
	if err != nil && allocator.KindOf(err) == allocator.Refused {
		return New(current, original, true)
	}
	return p, err
}

// ListRanges lists a layout's rooms: "a [0, 50), b [50, 100)".
func ListRanges(l allocator.Layout) string {
	var all []string
	for _, room := range l.Rooms() {
		all = append(all, fmt.Sprintf("%s %v", room, l.Ranges[room]))
	}
	return strings.Join(all, ", ")
}

// refused names the rooms that cannot pass each other.
func refused(from, target allocator.Layout) error {
	var all []string
	for _, room := range from.Rooms() {
		r := from.Ranges[room]
		if goal, stays := target.Ranges[room]; !stays {
			all = append(all, fmt.Sprintf("%s %v to none", room, r))
		} else if r != goal {
			all = append(all, fmt.Sprintf("%s %v to %v", room, r, goal))
		}
	}
	return allocator.Errorf(allocator.Refused,
		"target: no moves lead there from layout version %d: %s; every range is a single residue and none of the %d "+
			"is free, so that no room can go first; "+
			"use --atomic to switch in one move, without the retract promise", from.Version,
		strings.Join(all, ", "), from.Boundary)
}

// Differences says what a layout has that an earlier one, from, had not.
func Differences(from, now allocator.Layout) string {
	var list []string
	if from.Boundary != now.Boundary {
		list = append(list, fmt.Sprintf("boundary %d instead of %d", now.Boundary, from.Boundary))
	}
	for _, room := range slices.Concat(now.Rooms(), from.Rooms()) {
		was, had := from.Ranges[room]
		is, has := now.Ranges[room]
		text := fmt.Sprintf("room %s has %v instead of %v", room, is, was)
		switch {
		case !has:
			text = fmt.Sprintf("room %s has nothing instead of %v", room, was)
		case !had:
			text = fmt.Sprintf("room %s has %v", room, is)
		}
		if (had != has || was != is) && !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	if len(list) == 0 {
		return "the same ranges"
	}
	return strings.Join(list, ", ")
}

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
