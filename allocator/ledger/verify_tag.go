package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
)

// checker holds a cluster to what must hold in it. It is pure: what was read
// goes in, add is told what is wrong. It is the only one: a live cluster
// (Verify) and a Dump (Problems) go through it.
type checker struct {
	add func(format string, args ...any)

	layouts map[int64]allocator.Layout // the history
	lost    [][2]int64                 // versions that were lost when etcd went back in time: from, up to
	ever    []allocator.Room           // all rooms that any layout's list has, sorted
	// layoutRevision is the mod revision of the key `layout`, in the snapshot
	// that the tag is from: no stamp can be above it.
	layoutRevision int64
	recovering     bool // a recover has begun, and has not ended

	last *LayoutRecord // of the history, nil before the first
}

// version checks the next layout of the history: versions are 1 to n, and
// rooms that ever were stay so.
func (c *checker) version(r LayoutRecord) {
	before := LayoutRecord{}
	if c.last != nil {
		before = *c.last
	}
	if want := before.Layout.Version + 1; r.Lost == want && r.Layout.Version > want {
		c.lost = append(c.lost, [2]int64{r.Lost, r.Layout.Version})
	} else if r.Layout.Version != want || r.Lost != 0 {
		c.add("layout %d of the history is version %d", want, r.Layout.Version)
	}
	if err := r.Layout.Validate(); err != nil {
		c.add("layout version %d: %v", r.Layout.Version, err)
	}
	for _, room := range slices.Concat(before.Ever, r.Layout.Rooms()) {
		if !slices.Contains(r.Ever, room) {
			c.add("layout version %d: room %s is not among those that ever were, %v", r.Layout.Version, room, r.Ever)
		}
	}
	if c.layouts == nil {
		c.layouts = make(map[int64]allocator.Layout)
	}
	c.layouts[r.Layout.Version] = r.Layout
	c.rooms(r.Ever)
	c.last = &r
}

// rooms adds to the rooms that ever were.
func (c *checker) rooms(ever []allocator.Room) {
	if !containsAll(c.ever, ever) {
		all := slices.Concat(c.ever, ever)
		slices.Sort(all)
		c.ever = slices.Compact(all)
	}
}

// current checks that the layout in force is the last of the history.
func (c *checker) current(r LayoutRecord) {
	switch {
	case c.last == nil:
		c.add("the history of layouts is empty")
	case c.last.Layout.Version != r.Layout.Version || !c.last.Layout.Equal(r.Layout) || !slices.Equal(c.last.Ever, r.Ever):
		c.add("the layout %v, rooms that ever were %v, is not the last of the history, %v, %v", r.Layout, r.Ever, c.last.Layout, c.last.Ever)
	}
}

// served checks that an instance serves a layout that is or was.
func (c *checker) served(room allocator.Room, name allocator.Instance, version int64) {
	if _, ok := c.layouts[version]; !ok && !c.wasLost(version) {
		c.add("instance %s/%s serves layout version %d; there is no such layout", room, name, version)
	}
}

// tagState is what one snapshot says of a tag.
type tagState struct {
	name     allocator.Tag
	settings *Tag // nil where they are deleted, or cannot be read
	marks    map[allocator.Room]markState
	eras     map[allocator.Room][]Era // those that ended, by version
}

type markState struct {
	Mark
	revision int64 // the key's mod revision, 0 where it is not known
	unread   bool  // it is there, but cannot be read, which was reported
}

// leasedEra is an era of a room.
type leasedEra struct {
	Era
	room allocator.Room
}

func (e leasedEra) String() string {
	return fmt.Sprintf("room %s version %d [%d, %d)", e.room, e.Version, e.First, e.End)
}

// tag checks the marks and eras of a tag.
func (c *checker) tag(s tagState) {
	var all []leasedEra
	for _, room := range slices.Sorted(maps.Keys(s.marks)) {
		mark := s.marks[room]
		if _, was := slices.BinarySearch(c.ever, room); !was && !c.behind(mark.Mark) {
			c.add("tag %s has a mark of room %s, which never was", s.name, room)
		}
		eras := make([]leasedEra, 0, len(s.eras[room])+1)
		for _, e := range s.eras[room] {
			eras = append(eras, leasedEra{e, room})
		}
		if mark.Era.Version != 0 {
			at := len(eras) // the last one, unless a recover wrote of stretches that were lost since
			for at > 0 && eras[at-1].Version > mark.Era.Version && c.wasLost(eras[at-1].Version) {
				at--
			}
			eras = slices.Insert(eras, at, leasedEra{mark.Era, room})
		}
		for _, e := range eras {
			if mark.Next < e.End && !mark.unread {
				c.add("tag %s room %s: next %d below the end of the era of version %d, %d", s.name, room, mark.Next, e.Version, e.End)
			}
		}
		// A lease compares the tag's settings, so the limit binds each lease that was
		// made after them; one from before may lie above a limit that was lowered
		// since. A mark that was raised (by a recover, say) is no lease.
		if s.settings != nil && mark.revision > s.settings.kv.ModRevision && mark.Next == mark.Era.End && mark.Next > s.settings.Settings.Limit {
			c.add("tag %s room %s: next %d above the tag's limit %d", s.name, room, mark.Next, s.settings.Settings.Limit)
		}
		all = append(all, c.eras(s.name, eras)...)
	}
	for _, room := range slices.Sorted(maps.Keys(s.eras)) {
		if _, ok := s.marks[room]; ok {
			continue
		}
		if _, was := slices.BinarySearch(c.ever, room); !was {
			c.add("tag %s has eras of room %s, which never was", s.name, room)
		}
		c.add("tag %s room %s has eras but no mark", s.name, room)
		eras := make([]leasedEra, 0, len(s.eras[room]))
		for _, e := range s.eras[room] {
			eras = append(eras, leasedEra{e, room})
		}
		all = append(all, c.eras(s.name, eras)...)
	}
	c.disjoint(s.name, all)
}

// eras checks the eras of one room, by version, and returns those of layouts
// that are known.
func (c *checker) eras(tag allocator.Tag, eras []leasedEra) (known []leasedEra) {
	for i, e := range eras {
		if e.Stamp.Revision > c.layoutRevision && c.layoutRevision > 0 && !c.recovered(e.Version) {
			c.add("tag %s: %v has the stamp of layout revision %d, but the layout is at revision %d", tag, e, e.Stamp.Revision, c.layoutRevision)
		}
		if i > 0 && (e.Version <= eras[i-1].Version || e.First < eras[i-1].End || e.Stamp.Revision <= eras[i-1].Stamp.Revision) {
			c.add("tag %s: %v does not follow %v", tag, e, eras[i-1])
		}
		if c.wasLost(e.Version) {
			known = append(known, e)
			continue
		}
		l, ok := c.layouts[e.Version]
		r, in := l.Ranges[e.room]
		if !ok || !in || l.Boundary < 1 {
			c.add("tag %s: %v: there is no such layout, or the room is not in it", tag, e)
			continue
		}
		if !r.Contains(e.First%l.Boundary) || !r.Contains((e.End-1)%l.Boundary) {
			c.add("tag %s: %v does not begin and end with an ID of %v mod %d", tag, e, r, l.Boundary)
		}
		known = append(known, e)
	}
	return known
}

// disjoint checks that no two eras may have leased one ID. It goes through
// them by their first IDs and compares each with those that have not ended
// there: at most one per room where all is well, so that a long history does
// not take the square of its length.
func (c *checker) disjoint(tag allocator.Tag, all []leasedEra) {
	slices.SortStableFunc(all, func(a, b leasedEra) int { return cmp.Compare(a.First, b.First) })
	var open []leasedEra
	for _, b := range all {
		open = slices.DeleteFunc(open, func(a leasedEra) bool { return a.End <= b.First })
		for _, a := range open {
			if id, ok := c.common(a, b); ok {
				c.add("tag %s: %v and %v may both have leased %d", tag, a, b, id)
			}
		}
		open = append(open, b)
	}
}

// common returns an ID that both eras may have leased, if there is one. Eras
// of one boundary are compared exactly: within the interval that they share,
// by the residues that they share. Eras of different boundaries must not share
// an interval at all, and the protocol sees to that: the later one began at a
// floor above the earlier one's end.
//
// Of a stretch that was lost nobody knows who leased what: eras of versions that
// were lost may share IDs with those of before, and of other rooms. But what came
// after lies above all of it.
func (c *checker) common(a, b leasedEra) (int64, bool) {
	first, end := max(a.First, b.First), min(a.End, b.End)
	if first >= end {
		return 0, false
	}
	if a.Version > b.Version {
		a, b = b, a
	}
	switch {
	case c.wasLost(b.Version):
		return 0, false
	case c.wasLost(a.Version):
		return first, true
	}
	la, lb := c.layouts[a.Version], c.layouts[b.Version]
	if la.Boundary != lb.Boundary {
		return first, true
	}
	both, ok := la.Ranges[a.room].Intersect(lb.Ranges[b.room])
	if !ok {
		return 0, false
	}
	shared := allocator.Layout{Boundary: la.Boundary, Ranges: map[allocator.Room]allocator.Range{"both": both}}
	seg, err := shared.Segment("both", first, 1, end)
	return seg.First, err == nil
}

// recovered reports whether a version is that of the stretch which a recover
// writes that has not ended: its layout comes last.
func (c *checker) recovered(version int64) bool {
	return c.recovering && c.last != nil && version == c.last.Layout.Version+1
}

// wasLost reports whether a version was lost when etcd went back in time.
func (c *checker) wasLost(version int64) bool {
	return c.recovered(version) || slices.ContainsFunc(c.lost, func(l [2]int64) bool { return l[0] <= version && version < l[1] })
}

// behind reports whether a mark may be of a room that never was. An instance that
// a recover left out raises its marks over what it holds (Instance.left), and the
// store may have forgotten its room: they count from when a layout has that again,
// and until then no floor knows them (the README says what to do). Under the mark
// that the store has nothing was leased, so it has no era.
func (c *checker) behind(mark Mark) bool { return len(c.lost) > 0 && mark.Era.Version == 0 }

// Problems returns what does not hold in d that must.
func (d *Dump) Problems() []string {
	var problems []string
	c := &checker{layoutRevision: d.Layout.revision, recovering: d.recovering, add: func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
	}}
	if d.UUID == "" || d.ClusterID == 0 {
		c.add("identity %q in etcd cluster %x", d.UUID, d.ClusterID)
	}
	for _, r := range d.History {
		c.version(r)
	}
	c.rooms(d.Layout.Ever)
	c.current(d.Layout)
	if d.Audits < len(d.History) {
		c.add("%d layouts, but %d audit entries", len(d.History), d.Audits)
	}
	names := slices.Concat(slices.Collect(maps.Keys(d.Marks)), slices.Collect(maps.Keys(d.Eras)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		s := tagState{name: name, marks: make(map[allocator.Room]markState, len(d.Marks[name])), eras: d.Eras[name]}
		if t, ok := d.Tags[name]; ok {
			s.settings = &t
		}
		for room, mark := range d.Marks[name] {
			s.marks[room] = markState{Mark: mark}
		}
		c.tag(s)
	}
	return problems
}
