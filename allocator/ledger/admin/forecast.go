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
	moves []*ledger.State // at least one; the last has the extremes of all
	at    time.Time       // the periods of tags are those of this time
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
		f.moves = append(f.moves, known.Under(from))
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
	last := f.moves[len(f.moves)-1]
	w := walk{limit: t.Limit, rooms: make(map[allocator.Room]walker)}
	floor := last.Floor("", t.Terms(), marks).Least
	for _, move := range f.moves {
		for room := range move.Layout().Layout.Ranges {
			terms := t.Terms()
			least := max(marks[room].Next, terms.Start, terms.Skips[room])
			w.rooms[room] = walker{least: least, step: min(max(steps[room], 1), t.LargestStep)}
		}
	}
	forecast := TagForecast{Limit: t.Limit, Floor: floor, Before: make(map[allocator.Room]int64),
		Rooms: make(map[allocator.Room]RoomForecast)}
	for room, r := range f.now.Layout().Layout.Ranges {
		next, _ := f.now.NextBase(t, room, marks, f.at)
		forecast.Before[room] = f.now.Layout().Layout.CountIDs(r, next, t.Limit)
	}
	for _, move := range f.moves[:len(f.moves)-1] {
		floor = w.through(move.Layout().Layout, floor)[""]
	}
	found := w.through(last.Layout().Layout, floor)
	for room := range last.Layout().Layout.Ranges {
		forecast.Rooms[room] = f.room(t, marks, room, max(w.rooms[room].least, found[room]))
	}
	return forecast
}

// room returns the forecast of a room. Its first ID under the last layout is the first
// from base on.
func (f *Forecaster) room(t record.Tag, marks map[allocator.Room]record.Mark, room allocator.Room,
	base int64) RoomForecast {
	last := f.moves[len(f.moves)-1]
	is, limit := last.Layout().Layout, t.Limit
	var r RoomForecast
	r.Next, _ = f.now.NextBase(t, room, marks, f.at)
	_, r.Refused = last.NextBase(t, room, marks, f.at)
	if _, serves := f.now.Layout().Layout.Ranges[room]; !serves {
		r.Next = max(r.Next, f.now.Floor(room, t.Terms(), marks).Least)
	}
	end := limit
	if seg, err := is.Segment(room, base, 1, limit); err == nil {
		r.First, end = seg.First, seg.First
		r.Left = is.CountIDs(is.Ranges[room], seg.First, limit)
	}
	r.Skipped = is.CountIDs(is.Ranges[room], r.Next, end)
	return r
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
func (w *walk) through(l allocator.Layout, floor int64) map[allocator.Room]int64 {
	rooms := l.Rooms()
	found := make(map[allocator.Room]int64, len(rooms)+1)
	if len(rooms) > exactRooms {
		found[""] = w.bound(l, rooms, "", floor)
		for _, room := range rooms {
			found[room] = w.bound(l, rooms, room, floor)
		}
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

// bound returns a floor that the leases of all rooms but one do not exceed. ceil(n/w)
// blocks from anywhere contain n IDs of a range of width w, so no lease of n IDs ends
// later.
func (w *walk) bound(l allocator.Layout, rooms []allocator.Room, without allocator.Room, floor int64) int64 {
	blocks := int64(0)
	for _, room := range rooms {
		if room != without {
			floor = max(floor, w.rooms[room].least)
			blocks += (w.rooms[room].step-1)/l.Ranges[room].Width() + 1
		}
	}
	if blocks > (allocator.MaxID-floor)/l.Boundary {
		return allocator.MaxID
	}
	return floor + blocks*l.Boundary
}
