package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// Workers are the needs of tags of time-ordered IDs in every layout that a plan passes. A room
// takes workers only from its slice, the image of its range. So a range that is enough for
// counters may have no worker. The zero value needs nothing.
type Workers struct {
	widths map[int]allocator.Tag // bits of a worker, and the first tag by name that has them
	last   allocator.Tag         // the first tag by name with the worker last; empty for none
	pins   []Pin
	homes  map[allocator.Room][]allocator.Tag // the first tags by name that are ordered over all rooms, by their home
}

// homesNamed is how many tags of a home an error names.
const homesNamed = 10

// Pin is a worker number that an instance keeps over restarts.
type Pin struct {
	Room     allocator.Room
	Instance allocator.Instance
	Number   int64 // counted from the lower end of the room's slice
}

// AddTag adds a tag with IDs of the layout l.
func (w *Workers) AddTag(name allocator.Tag, l timeid.Layout) {
	w.addWidth(l.WorkerBits, name)
	if l.Order == timeid.WorkerLast && (w.last == "" || name < w.last) {
		w.last = name
	}
}

func (w *Workers) addWidth(bits int, name allocator.Tag) {
	if w.widths == nil {
		w.widths = make(map[int]allocator.Tag)
	}
	if first, there := w.widths[bits]; !there || name < first {
		w.widths[bits] = name
	}
}

// AddHome adds a tag whose IDs are issued in one room.
func (w *Workers) AddHome(name allocator.Tag, home allocator.Room) {
	if w.homes == nil {
		w.homes = make(map[allocator.Room][]allocator.Tag)
	}
	all := w.homes[home]
	if at, there := slices.BinarySearch(all, name); !there {
		w.homes[home] = slices.Insert(all, at, name)[:min(len(all)+1, homesNamed)]
	}
}

// AddPin adds a pin.
func (w *Workers) AddPin(p Pin) { w.pins = append(w.pins, p) }

// With returns the needs of w and other together.
func (w Workers) With(other Workers) Workers {
	sum := Workers{widths: maps.Clone(w.widths), last: w.last, pins: slices.Clone(w.pins)}
	for bits, tag := range other.widths {
		sum.addWidth(bits, tag)
	}
	if sum.last == "" || other.last != "" && other.last < sum.last {
		sum.last = other.last
	}
	sum.homes = make(map[allocator.Room][]allocator.Tag)
	for _, of := range []Workers{w, other} {
		for home, tags := range of.homes {
			for _, tag := range tags {
				sum.AddHome(tag, home)
			}
		}
	}
	for _, p := range other.pins {
		if !slices.Contains(sum.pins, p) {
			sum.pins = append(sum.pins, p)
		}
	}
	return sum
}

// Check checks the layouts that follow from, one after another. Its error is Refused, and
// names the tag, the width and the room. No operator can agree to what it refuses:
//
//   - the boundary changes, and a tag has the worker last. Callers choose shards by the
//     last bits of its IDs, and these are of the slices of the old boundary.
//   - a room has no worker of a width that is in use.
//   - the number of a pinned worker changes, or is not in the slice any longer. The
//     instance would have to wait for another instance's window when it starts again.
//   - a room loses its range that is the home of tags: these would be issued nowhere.
func (w Workers) Check(from allocator.Layout, layouts ...allocator.Layout) error {
	for _, l := range layouts {
		if err := w.checkHomes(from, l); err != nil {
			return err
		}
		if w.last != "" && l.Boundary != from.Boundary {
			return allocator.Errorf(allocator.Refused,
				"boundary: %d; allowed: %d, as it is, as long as tag %s has the worker last (--order worker-last): "+
					"its IDs keep to their rooms by the boundary; this is refused with --force, too",
				l.Boundary, from.Boundary, w.last)
		}
		for _, bits := range slices.Sorted(maps.Keys(w.widths)) {
			if err := w.checkSlices(l, bits); err != nil {
				return err
			}
			if err := w.checkPins(from, l, bits); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSlices checks that every room has a worker of a width.
func (w Workers) checkSlices(l allocator.Layout, bits int) error {
	for _, room := range l.Rooms() {
		if slice, _ := timeid.SliceOf(l, room, bits); slice.Width() > 0 {
			continue
		}
		least := (l.Boundary-1)>>bits + 1 // residues that have a worker wherever the range lies
		return allocator.Errorf(allocator.Refused,
			"range %v of room %s in layout version %d has no worker of %d bits, and tag %s needs one in each room; "+
				"allowed: %d residues or more of the boundary %d, which have one wherever they lie; "+
				"this is refused with --force, too",
			l.Ranges[room], room, l.Version, bits, w.widths[bits], least, l.Boundary)
	}
	return nil
}

// checkHomes checks that a room which has a range, and is the home of tags, keeps one.
func (w Workers) checkHomes(from, to allocator.Layout) error {
	for _, home := range slices.Sorted(maps.Keys(w.homes)) {
		_, had := from.Ranges[home]
		if _, has := to.Ranges[home]; had && !has {
			return allocator.Errorf(allocator.Refused, "room %s has no range in layout version %d, and is the home of "+
				"tags that are ordered over all rooms (%v, the first by name): no room would issue their IDs; "+
				"allowed: after `march tag update %s --home ROOM`, and so on; this is refused with --force, too", home, to.Version,
				w.homes[home], w.homes[home][0])
		}
	}
	return nil
}

// checkPins checks that every pinned worker of a width keeps its number.
func (w Workers) checkPins(from, to allocator.Layout, bits int) error {
	for _, p := range slices.SortedFunc(slices.Values(w.pins), comparePins) {
		before, _ := timeid.SliceOf(from, p.Room, bits)
		if p.Number >= before.Width() {
			continue // the instance does not have this worker now
		}
		after, serves := timeid.SliceOf(to, p.Room, bits)
		if serves && after.Lower == before.Lower && p.Number < after.Width() {
			continue
		}
		now := fmt.Sprintf("%v instead of %v", after, before)
		if !serves {
			now = fmt.Sprintf("none instead of %v", before)
		}
		return allocator.Errorf(allocator.Refused,
			"instance %s/%s has pinned worker %d of its room's slice (--worker), which is number %d of %d bits, "+
				"as tag %s uses; in layout version %d the slice is %s; "+
				"allowed: a slice that begins at %d and has %d workers or more; or stop the instance, "+
				"or start it with --worker auto; this is refused with --force, too",
			p.Room, p.Instance, p.Number, before.Lower+p.Number, bits, w.widths[bits], to.Version,
			now, before.Lower, p.Number+1)
	}
	return nil
}

func comparePins(a, b Pin) int {
	return cmp.Or(cmp.Compare(a.Room, b.Room), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Instance, b.Instance))
}
