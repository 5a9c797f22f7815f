package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// checker checks the rules that a cluster must keep. It is pure: it takes the values that
// were read, and calls add with each problem.
type checker struct {
	add func(format string, args ...any)

	layouts map[int64]allocator.Layout // the history that is kept
	oldest  int64                      // the least version in layouts, 0 before the first
	ever    []allocator.Room           // all rooms that any layout's list has, sorted
	last    record.Layout              // of the history, zero before the first
	inForce record.Layout              // the layout in the snapshot that the tag is from; zero where it cannot be read
}

// version checks the next layout of the history: versions grow, and the list of all
// rooms so far never shrinks.
func (c *checker) version(r record.Layout) {
	switch grown := r.Layout.Version - c.last.Layout.Version; {
	case grown <= 0:
		c.add("layout version %d follows version %d in the history", r.Layout.Version, c.last.Layout.Version)
	case c.last.Layout.Version > 0 && grown > 1 && grown < record.RecoverVersions: // a move adds 1
		c.add("the layouts between version %d and version %d are missing from the history, and decode cannot name the "+
			"rooms of their IDs", c.last.Layout.Version, r.Layout.Version)
	}
	for _, room := range slices.Concat(c.last.Ever, r.Layout.Rooms()) {
		if !slices.Contains(r.Ever, room) {
			c.add("layout version %d: room %s is not among those that ever were, %v", r.Layout.Version, room, r.Ever)
		}
	}
	if !r.AtLeast(c.last) {
		c.add("layout version %d: narrowest range %d, largest boundary %d and formats %d do not cover this or an "+
			"earlier layout", r.Layout.Version, r.NarrowestRange, r.LargestBoundary, max(r.Formats, 1))
	}
	if c.layouts == nil {
		c.layouts, c.oldest = make(map[int64]allocator.Layout), r.Layout.Version
	}
	c.layouts[r.Layout.Version] = r.Layout
	c.ever = record.Union(c.ever, r.Ever)
	c.last = r
}

// current checks that the layout in force is the last of the history.
func (c *checker) current(r record.Layout) {
	c.inForce = r
	c.ever = record.Union(c.ever, r.Ever)
	switch last := c.last; {
	case c.oldest == 0:
		c.add("the history of layouts is empty")
	case c.oldest > 1 && len(c.layouts) < record.MaxLayouts:
		c.add("the layouts before version %d are missing from the history, though it has %d of %d, and decode cannot "+
			"name the rooms of their IDs", c.oldest, len(c.layouts), record.MaxLayouts)
	case last.Layout.Version != r.Layout.Version || !last.Layout.Equal(r.Layout) || !slices.Equal(last.Ever, r.Ever):
		c.add("the layout %v, rooms that ever were %v, is not the last of the history, %v, %v",
			r.Layout, r.Ever, last.Layout, last.Ever)
	}
}

// served checks that an instance serves no future layout. An older one may be gone
// from the history.
func (c *checker) served(room allocator.Room, name allocator.Instance, version int64) {
	if version > c.last.Layout.Version {
		c.add("instance %s/%s serves layout version %d; there is no such layout", room, name, version)
	}
}

// tagState is the state of a tag in one snapshot.
type tagState struct {
	settings *record.Tag // nil if they are deleted, or cannot be read
	marks    map[allocator.Room]markState
}

type markState struct {
	record.Mark
	revision int64 // the key's mod revision, 0 if it is not known
}

// leasedEra is an era of a room.
type leasedEra struct {
	record.Era
	room allocator.Room
}

func (e leasedEra) String() string {
	return fmt.Sprintf("room %s version %d [%d, %d)", e.room, e.Version, e.First, e.End)
}

// tag checks the marks of a tag.
func (c *checker) tag(name allocator.Tag, s tagState) {
	var all []leasedEra
	for _, room := range slices.Sorted(maps.Keys(s.marks)) {
		mark := s.marks[room]
		if _, was := slices.BinarySearch(c.ever, room); !was && len(mark.Eras) > 0 {
			// A mark that was only raised comes from an instance that a recover went on
			// without.
			c.add("tag %s has a mark of room %s, which never was", name, room)
		}
		// A lease compares the tag's settings, so the limit binds each later lease.
		// An earlier lease may lie above a limit that was lowered since. A mark that
		// was raised, for example by a recover, is not a lease.
		if t := s.settings; t != nil && mark.revision > t.KV.ModRevision &&
			mark.Next == mark.Last().End && mark.Next > t.Limit {
			c.add("tag %s room %s: next %d above the tag's limit %d", name, room, mark.Next, t.Limit)
		}
		for _, era := range mark.Eras {
			e := leasedEra{era, room}
			c.era(name, e)
			all = append(all, e)
		}
		if f := c.inForce; mark.Last().Version > f.Layout.Version && f.Revision > 0 ||
			mark.Last().Version == f.Layout.Version && f.Revision > 0 && mark.Stamp.Revision > f.Revision {
			c.add("tag %s room %s: the stamp of layout version %d, revision %d, but the layout in force is version %d "+
				"at revision %d",
				name, room, mark.Last().Version, mark.Stamp.Revision, f.Layout.Version, f.Revision)
		}
	}
	c.disjoint(name, all)
}

// era checks an era against its layout. An era that is older than the history
// cannot be checked.
func (c *checker) era(tag allocator.Tag, e leasedEra) {
	l, ok := c.layouts[e.Version]
	r, in := l.Ranges[e.room]
	switch {
	case !ok && e.Version < c.oldest:
	case !ok || !in:
		c.add("tag %s: %v: there is no such layout, or the room is not in it", tag, e)
	case !r.Contains(e.First%l.Boundary) || !r.Contains((e.End-1)%l.Boundary):
		c.add("tag %s: %v does not begin and end with an ID of %v mod %d", tag, e, r, l.Boundary)
	}
}

// disjoint checks that no two eras may have leased one ID. Eras of one layout are
// of rooms with disjoint ranges. Eras of two layouts share no ID between
// their first and their last: the first lease of a room under the later one was
// above all that was leased under the earlier one. It visits the eras in the order
// of their first IDs, and compares each with the earlier ones that have not ended
// at its first ID.
func (c *checker) disjoint(tag allocator.Tag, all []leasedEra) {
	slices.SortStableFunc(all, func(a, b leasedEra) int { return cmp.Compare(a.First, b.First) })
	var open []leasedEra
	for _, b := range all {
		open = slices.DeleteFunc(open, func(a leasedEra) bool { return a.End <= b.First })
		for _, a := range open {
			if a.Version != b.Version {
				c.add("tag %s: %v and %v may both have leased %d", tag, a, b, b.First)
			}
		}
		open = append(open, b)
	}
}
