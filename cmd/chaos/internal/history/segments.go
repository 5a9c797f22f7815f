package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
)

// Segments are the leased segments by instance, compared with the history.
type Segments struct {
	Leased, Lost, Refused int // by the instances' logs

	Applied []Line // lost, by the instance's log, but in the history
	GivenUp []Line // refused, by the instance's log, but in the history: sent twice, or not trusted
	Orphans []Rise // in no instance's log: an instance died
	Unseen  int    // leased while the history has a gap, or after its end
	Past    int    // the part of Unseen after the end of the last life
	IDs     int64  // of all leases
	Skipped int64  // of a room's range, below its marks, and never leased

	Problems []string
	More     int // further problems

	owners map[Owner][]*Line // the leases of each, by first ID
	rooms  map[Owner][]*Line // the same for all instances of a room; Instance is empty
	tags   map[allocator.Tag][]*Line
}

func (s *Segments) problem(format string, args ...any) {
	if len(s.Problems) == maxProblems {
		s.More++
		return
	}
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

// place is the room, the tag and the revision of a rise.
type place struct {
	room     allocator.Room
	tag      allocator.Tag
	revision int64
}

// Match compares the instances' logs with the history.
func Match(lines []Line, h *History) *Segments {
	s := &Segments{owners: make(map[Owner][]*Line), rooms: make(map[Owner][]*Line)}
	rises := make(map[place][]int) // more than one if revisions repeat after a restore
	for i, rise := range h.Rises {
		s.Skipped += passed(rise)
		if rise.Lease {
			at := place{rise.Room, rise.Tag, rise.Revision}
			rises[at] = append(rises[at], i)
		}
	}
	taken := make(map[int]*Line)
	var lost, refused []*Line
	for i := range lines {
		l := &lines[i]
		switch l.Outcome {
		case Leased:
			s.Leased++
			s.IDs += l.Segment.Count
			room := l.Owner
			room.Instance = ""
			s.owners[l.Owner] = append(s.owners[l.Owner], l)
			s.rooms[room] = append(s.rooms[room], l)
			s.match(l, h, rises, taken)
		case Lost:
			s.Lost++
			lost = append(lost, l)
		case Refused:
			s.Refused++
			refused = append(refused, l)
		}
	}
	s.unclaimed(lost, h, taken, func(l *Line) { s.Applied = append(s.Applied, *l) })
	s.unclaimed(refused, h, taken, func(l *Line) { s.GivenUp = append(s.GivenUp, *l) })
	for i, rise := range h.Rises {
		if rise.Lease && taken[i] == nil {
			s.Orphans = append(s.Orphans, rise)
		}
	}
	for _, list := range s.owners {
		sortByFirst(list)
	}
	s.tags = make(map[allocator.Tag][]*Line)
	for _, room := range slices.SortedFunc(maps.Keys(s.rooms), func(a, b Owner) int {
		return strings.Compare(a.String(), b.String())
	}) {
		sortByFirst(s.rooms[room])
		s.tags[room.Tag] = append(s.tags[room.Tag], s.rooms[room]...)
	}
	for _, tag := range slices.Sorted(maps.Keys(s.tags)) {
		s.disjoint(s.tags[tag])
	}
	return s
}

// passed returns how many IDs of the room's range a rise passed, leased or not: from the mark
// on, or from the first leased ID if there was no mark.
func passed(rise Rise) int64 {
	from := rise.Was
	if from == 0 {
		from = rise.Mark.Last().First
	}
	r, ok := rise.Layout.Ranges[rise.Room]
	if !ok {
		return 0
	}
	return rise.Layout.CountIDs(r, from, rise.Next)
}

func sortByFirst(lines []*Line) {
	slices.SortStableFunc(lines, func(a, b *Line) int { return cmp.Compare(a.Segment.First, b.Segment.First) })
}

// fits reports whether a rise may have leased a segment.
func fits(rise Rise, l *Line) bool {
	least, _ := rise.Least()
	seg := l.Segment
	return rise.Room == l.Room && rise.Tag == l.Tag && rise.Next == seg.Last()+1 && least <= seg.First &&
		rise.Floor <= seg.First &&
		(!rise.NewEra || rise.Mark.Last().First == seg.First) &&
		rise.Layout.Version == seg.Version && rise.Layout.Boundary == seg.Boundary &&
		rise.Layout.Ranges[rise.Room] == seg.Range
}

// match finds the rise of a segment that an instance leased.
func (s *Segments) match(l *Line, h *History, rises map[place][]int, taken map[int]*Line) {
	candidates := rises[place{l.Room, l.Tag, l.Revision}]
	for _, i := range candidates {
		if !fits(h.Rises[i], l) || h.Rises[i].Mark.Stamp.Epoch != l.Epoch {
			continue
		}
		if other := taken[i]; other != nil {
			s.problem("%v and %v say that they leased %v by one transaction, revision %d", other.Owner,
				l.Owner, l.Segment, l.Revision)
		}
		taken[i] = l
		s.Skipped -= l.Segment.Count
		return
	}
	if missed, past := unseen(h, l); missed {
		s.Unseen++
		if past {
			s.Past++
		}
		return
	}
	if len(candidates) > 0 {
		s.problem("%v says that it leased %v at revision %d, where the history has the mark go from %d to %d", l.Owner,
			l.Segment, l.Revision, h.Rises[candidates[0]].Was, h.Rises[candidates[0]].Next)
		return
	}
	s.problem("%v says that it leased %v at revision %d, which the history does not have",
		l.Owner, l.Segment, l.Revision)
}

// slack is how much older a line of the log may be than the line of the history about the same
// lease: etcd may take that long to answer, and a watch to deliver it.
const slack = 5 * time.Second

// unseen reports whether a lease may have been made while the history has not seen the writes:
// at the end of a life, cut off by a restore or by the end of the run; before the first reading
// of a life; in a gap. past says that it was at the end of the last life.
func unseen(h *History, l *Line) (missed, past bool) {
	for i, life := range h.Lives {
		last := i+1 == len(h.Lives)
		within := last || l.Time.Before(h.Lives[i+1].Began.Add(slack))
		if l.Revision > life.Last && within && l.Time.After(life.Known.Add(-slack)) {
			if !last {
				return true, false
			}
			past = true // unless it is in a gap
		}
		if i > 0 && l.Revision <= life.First && l.Time.After(h.Lives[i-1].Known.Add(-slack)) &&
			l.Time.Before(life.Began.Add(slack)) {
			return true, false
		}
		for _, gap := range life.Gaps {
			if gap.After < l.Revision && l.Revision <= gap.To && within && l.Time.After(life.Began.Add(-slack)) {
				return true, false
			}
		}
	}
	return past, past
}

// unclaimed finds, for the rises without an instance, the lines of instances that failed to
// lease them. Each line fits at most one rise.
func (s *Segments) unclaimed(lines []*Line, h *History, taken map[int]*Line, use func(*Line)) {
	type end struct {
		room allocator.Room
		tag  allocator.Tag
		next int64
	}
	said := make(map[end][]*Line)
	for _, l := range lines {
		at := end{l.Room, l.Tag, l.Segment.Last() + 1}
		said[at] = append(said[at], l)
	}
	for i, rise := range h.Rises {
		if !rise.Lease || taken[i] != nil {
			continue
		}
		at := end{rise.Room, rise.Tag, rise.Next}
		n := slices.IndexFunc(said[at], func(l *Line) bool { return fits(rise, l) && rise.Mark.Stamp.Epoch == l.Epoch })
		if n < 0 {
			continue
		}
		taken[i] = said[at][n]
		use(taken[i])
		said[at] = slices.Delete(said[at], n, n+1)
	}
}

// disjoint checks that no two segments of a tag share an ID. It goes through them by their
// first IDs and compares each with those that have not ended there.
func (s *Segments) disjoint(lines []*Line) {
	sortByFirst(lines)
	var open []*Line
	for _, b := range lines {
		open = slices.DeleteFunc(open, func(a *Line) bool { return a.Segment.Last() < b.Segment.First })
		for _, a := range open {
			if id, ok := common(a.Segment, b.Segment); ok {
				s.problem("%v and %v both leased %d: %v (revision %d), %v (revision %d)", a.Owner, b.Owner, id,
					a.Segment, a.Revision, b.Segment, b.Revision)
			}
		}
		open = append(open, b)
	}
}

// common returns an ID that is in both, if there is one. It goes through the runs of b, which
// begins within a. In a correct run, two segments lie so only if they are of several rooms, and
// their ranges share nothing.
func common(a, b allocator.Segment) (int64, bool) {
	if a.Boundary == b.Boundary {
		if _, ok := a.Range.Intersect(b.Range); !ok {
			return 0, false
		}
	}
	of := allocator.Layout{Boundary: a.Boundary, Ranges: map[allocator.Room]allocator.Range{"a": a.Range}}
	for run := range b.Runs() {
		if run.First > a.Last() {
			break
		}
		if id, err := of.Segment("a", run.First, 1, min(run.First+run.Count, a.Last()+1)); err == nil {
			return id.First, true
		}
	}
	return 0, false
}
