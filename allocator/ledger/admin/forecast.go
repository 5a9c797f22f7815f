package admin

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
)

// Forecaster computes the effects on tags of changes of layout that follow each
// other. Its numbers come from the code that leases: floors, bases and segments.
//
// The ID at which a room goes on depends on the order in which the rooms first lease
// under a new layout, because each room goes on above all leases of the others. Take
// the boundary 100 with room a [0, 50) and room b [50, 100), and the floor 7. If a
// leases first, it leases 7 and b 50. If b leases first, it leases 50 and a 100. So
// a forecast is a bound: it takes, for each room, the order that sends this room the
// furthest. Often that order is the others by falling ranges, because each then has
// to go on to the next block, and the room itself last.
//
// It assumes that each room leases one step under each layout, and that nothing is
// leased before the first change.
type Forecaster struct {
	now   *ledger.State
	moves []*ledger.State    // at least one; the last has the extremes of all
	rooms [][]allocator.Room // of the layout of each move
	at    time.Time          // the periods of tags are those of this time
}

// RoomForecast is the effect of the changes on a tag in one room of the last
// layout.
type RoomForecast struct {
	Next    int64 // the room's next ID without the changes; for a new room the floor
	First   int64 // the largest that its first ID under the last layout can be; 0 if there is none
	Skipped int64 // IDs of its new range from Next up to First, or up to the limit
	Left    int64 // IDs it has left from First on; 0 if it can lease nothing
	Refused error // why it leases nothing until an operator agrees (max_jump); nil if it leases
}

// TagForecast is the effect of the changes on a tag.
type TagForecast struct {
	Limit  int64                           // the end of the IDs: of the period that is now, in a tag with a period
	Floor  int64                           // the ID at which the first room goes on after the first change
	Before map[allocator.Room]int64        // IDs that each room of the current layout has left if nothing changes
	Rooms  map[allocator.Room]RoomForecast // those of the last layout
}

// Forecaster returns the forecaster of changes from the current layout, which
// Refresh returned, to each of layouts, of which there must be one.
func (a *view) Forecaster(from record.Layout, layouts ...allocator.Layout) *Forecaster {
	known, _ := a.Ledger.State()
	f := &Forecaster{now: known.Under(from), at: a.now()}
	for _, to := range layouts {
		revision := from.Revision + 1
		from = from.Next(to)
		from.Revision = revision // a revision that no mark has
		f.moves, f.rooms = append(f.moves, known.Under(from)), append(f.rooms, to.Rooms())
	}
	return f
}

// Tag returns the forecast of a tag with these marks. steps are how many IDs each
// room leases at once: 1 for rooms without a number.
func (f *Forecaster) Tag(t record.Tag, marks map[allocator.Room]record.Mark,
	steps map[allocator.Room]int64) TagForecast {
	next := int64(0)
	for _, mark := range marks {
		next = max(next, mark.Next)
	}
	t.TagSettings, _ = t.Present(f.at, next)
	last, terms := f.moves[len(f.moves)-1], t.Terms()
	w := walk{limit: t.Limit, rooms: make(map[allocator.Room]walker, len(marks))}
	now, then := f.now.NextBases(t, marks, f.at), last.NextBases(t, marks, f.at)
	_, floor, _ := then("")
	for _, rooms := range f.rooms {
		for _, room := range rooms {
			least := max(marks[room].Next, terms.Start, terms.Skips[room])
			w.rooms[room] = walker{least: least, step: min(max(steps[room], 1), t.LargestStep)}
		}
	}
	ranges := f.now.Layout().Layout.Ranges
	forecast := TagForecast{Limit: t.Limit, Floor: floor, Before: make(map[allocator.Room]int64, len(ranges)),
		Rooms: make(map[allocator.Room]RoomForecast, len(f.rooms[len(f.rooms)-1]))}
	for room, r := range ranges {
		next, _, _ := now(room)
		forecast.Before[room] = f.now.Layout().Layout.CountIDs(r, next, t.Limit)
	}
	var found map[allocator.Room]int64
	for k, move := range f.moves {
		found = w.through(move.Layout().Layout, f.rooms[k], floor)
		floor = found[""]
	}
	for room, r := range last.Layout().Layout.Ranges {
		next, least, _ := now(room)
		p := RoomForecast{Next: next}
		_, _, p.Refused = then(room)
		if _, serves := ranges[room]; !serves {
			p.Next = max(next, least)
		}
		end := t.Limit
		// Its first ID under the last layout is the first from here on.
		base := max(w.rooms[room].least, found[room])
		if seg, err := last.Layout().Layout.Segment(room, base, 1, t.Limit); err == nil {
			p.First, end = seg.First, seg.First
			p.Left = last.Layout().Layout.CountIDs(r, seg.First, t.Limit)
		}
		p.Skipped = last.Layout().Layout.CountIDs(r, p.Next, end)
		forecast.Rooms[room] = p
	}
	return forecast
}

// exactRooms is the largest number of rooms for which every order is tried. With
// more rooms walk.bound is used, which is a block or two too high.
const exactRooms = 6

// walk takes a floor through the leases of rooms.
type walk struct {
	limit int64
	rooms map[allocator.Room]walker
}

// walker are the terms of a room's leases.
type walker struct{ least, step int64 }

// lease returns the floor after a room's lease under a layout. A higher floor never
// gives a lower result.
func (w *walk) lease(l allocator.Layout, room allocator.Room, floor int64) int64 {
	seg, err := l.Segment(room, max(w.rooms[room].least, floor), w.rooms[room].step, w.limit)
	if err != nil {
		return floor // no ID is left, so the room raises no mark
	}
	return max(floor, seg.Last()+1)
}

// through returns the largest floor that each room of a layout may find after the
// others leased once, and under "" the largest after all did.
func (w *walk) through(l allocator.Layout, rooms []allocator.Room, floor int64) map[allocator.Room]int64 {
	found := make(map[allocator.Room]int64, len(rooms)+1)
	if len(rooms) > exactRooms {
		w.bound(l, rooms, floor, found)
		return found
	}
	// most[set] is the largest floor after the leases of a set of rooms. The last of
	// them did best to find the largest floor that the others can leave.
	most := make([]int64, 1<<len(rooms))
	most[0] = floor
	for set := 1; set < len(most); set++ {
		for i, room := range rooms {
			if others := set &^ (1 << i); others != set {
				most[set] = max(most[set], w.lease(l, room, most[others]))
			}
		}
	}
	all := len(most) - 1
	found[""] = most[all]
	for i, room := range rooms {
		found[room] = most[all&^(1<<i)]
	}
	return found
}

// bound finds floors that the leases of all rooms but one do not exceed, and under "" those of all. ceil(n/w) blocks
// from anywhere contain n IDs of a range of width w, so no lease of n IDs ends later.
func (w *walk) bound(l allocator.Layout, rooms []allocator.Room, floor int64, found map[allocator.Room]int64) {
	blocks := func(room allocator.Room) int64 { return (w.rooms[room].step-1)/l.Ranges[room].Width() + 1 }
	first, second, all := floor, floor, int64(0) // the two largest that rooms begin at, and the blocks of all rooms
	for _, room := range rooms {
		least := w.rooms[room].least
		first, second, all = max(first, least), max(second, min(first, least)), all+blocks(room)
	}
	after := func(floor, blocks int64) int64 {
		if blocks > (allocator.MaxID-floor)/l.Boundary {
			return allocator.MaxID
		}
		return floor + blocks*l.Boundary
	}
	found[""] = after(first, all)
	for _, room := range rooms {
		from := first
		if w.rooms[room].least == first {
			from = second
		}
		found[room] = after(from, all-blocks(room))
	}
}
