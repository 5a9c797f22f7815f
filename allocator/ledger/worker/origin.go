package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// Origin is what an ID of a tag of kind time says by itself, together with etcd's record of its
// worker.
type Origin struct {
	timeid.Parts

	// Room issued the ID; empty if it is not known.
	Room allocator.Room
	// Layout is the version in force then, the newest if it changed about that time; 0 if it is
	// no longer kept.
	Layout int64
	// Instance issued the ID, if the worker is still that instance's, or was last; empty if it
	// is not known.
	Instance allocator.Instance
	// Rooms had the worker in a layout of about that time; set only if Room is empty.
	Rooms []allocator.Room
}

// OriginOf finds the room that issued an ID of a tag, given the ID's parts. It looks at the
// worker's key (nil if there is none), and then at the layouts of that time. A room uses a
// worker for up to record.LongestWindow after a layout took it away, and clocks differ by up to
// record.MaxAhead. layouts are all that are kept, in any order. Its error is Invalid if the ID
// is of the future.
func OriginOf(tag record.TimeTag, parts timeid.Parts, now time.Time, key *record.Worker,
	layouts []record.Layout) (Origin, error) {
	if err := parts.CheckBefore(now.Add(record.MaxAhead).UnixMilli()); err != nil {
		return Origin{}, err
	}
	o := Origin{Parts: parts}
	at := time.UnixMilli(parts.Time)
	layouts = slices.SortedFunc(slices.Values(layouts), func(a, b record.Layout) int {
		return cmp.Compare(a.Layout.Version, b.Layout.Version)
	})
	for k, l := range layouts {
		// A layout is in force from its time to that of the next.
		if l.Time.After(at.Add(record.MaxAhead)) {
			break
		}
		if !l.Time.After(at) {
			o.Layout = l.Layout.Version
		}
		if k+1 < len(layouts) && layouts[k+1].Time.Before(at.Add(-record.LongestWindow-record.MaxAhead)) {
			continue
		}
		if room, has := timeid.RoomOf(l.Layout, parts.Worker, tag.WorkerBits); has && !slices.Contains(o.Rooms, room) {
			o.Rooms = append(o.Rooms, room)
		}
	}
	if key != nil && key.From <= parts.Time && parts.Time < key.Until {
		o.Room, o.Instance, o.Rooms = key.Room, key.Instance, nil
	}
	// A layout before those that are kept may have been in force, too.
	whole := len(layouts) > 0 && (layouts[0].Layout.Version == 1 ||
		layouts[0].Time.Before(at.Add(-record.LongestWindow-record.MaxAhead)))
	if len(o.Rooms) == 1 && whole {
		o.Room, o.Rooms = o.Rooms[0], nil
	}
	return o, nil
}
