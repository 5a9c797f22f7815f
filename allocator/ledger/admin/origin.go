package admin

import (
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

// Origin is the lease of an ID, as far as etcd shows it.
type Origin struct {
	Room   allocator.Room // the room that leased it; empty if that is not known
	Layout record.Layout  // the layout of the lease; zero if Room is empty
	// Rooms, if Room is empty, are the rooms that had the ID's residue in a layout
	// of the time when it was leased: the eras of that time are no longer kept.
	Rooms []allocator.Room
	// Lost is set, if Room is empty, for an ID between the eras of two epochs, or below
	// the first era of a room if that began after a recover: the ID may have been leased
	// in a history that a restore lost.
	Lost bool
	// Unreadable, if Room is empty, are the layouts that are needed to find the room,
	// but are missing from the history, no longer kept in it, or cannot be read.
	Unreadable []record.KeyError
	Next       int64 // for an ID that was never leased: the next ID of the room that has its residue now
}

// Origin finds the room that leased an ID of a tag, in the eras of all rooms. Its error
// is NotFound when the ID was never leased: not yet, or skipped, or there was no such
// tag.
func (a *view) Origin(ctx context.Context, name allocator.Tag, id int64) (Origin, error) {
	marks, err := a.Marks(ctx, name)
	if err != nil {
		return Origin{}, err
	}
	layouts, bad, err := a.Layouts(ctx, 0, record.MaxLayouts)
	if err != nil {
		return Origin{}, err
	}
	s, _ := a.Ledger.State()
	stored := s.Layout()
	if len(stored.Ever) == 0 {
		return Origin{}, s.Refusal() // it names what is missing
	}
	var found Origin
	for _, room := range stored.Ever {
		mark := marks[room]
		exactly, older, lost := mark.At(id, s.Recovered())
		found.Lost = found.Lost || lost
		known := false
		for _, under := range layouts {
			has := under.Layout.Ranges[room].Contains(under.Layout.Residue(id))
			known = known || exactly.Version == under.Layout.Version
			switch {
			case exactly.Version == under.Layout.Version && has:
				return Origin{Room: room, Layout: under}, nil
			case older && has && under.Layout.Version <= mark.Eras[0].Version:
				found.Rooms = append(found.Rooms, room)
				older = false
			}
		}
		switch {
		case older:
			found.misses(bad...)
			if n := len(layouts); n > 0 && layouts[n-1].Layout.Version > 1 {
				found.misses(record.KeyError{
					Key: a.keys.LayoutAt(layouts[n-1].Layout.Version - 1),
					Err: allocator.Errorf(allocator.NotFound, "the layout is no longer kept"),
				})
			}
		case exactly.Version != 0 && !known: // its era alone shows the room
			found.Rooms = append(found.Rooms, room)
			if n := len(layouts); n < record.MaxLayouts || len(bad) > 0 ||
				exactly.Version > layouts[n-1].Layout.Version {
				found.misses(missing(a.keys.LayoutAt(exactly.Version), bad))
			}
		}
	}
	if len(found.Rooms) == 0 && len(found.Unreadable) == 0 && !found.Lost {
		room, _ := stored.Layout.RoomOf(id)
		return Origin{Next: marks[room].Next}, allocator.Errorf(allocator.NotFound,
			"ID %d of tag %s was never leased", id, name)
	}
	return found, nil
}

// misses notes the layouts that are needed but missing, each once.
func (o *Origin) misses(layouts ...record.KeyError) {
	for _, bad := range layouts {
		if !slices.ContainsFunc(o.Unreadable, func(b record.KeyError) bool { return b.Key == bad.Key }) {
			o.Unreadable = append(o.Unreadable, bad)
		}
	}
}

// missing returns why a key was not read.
func missing(key string, bad []record.KeyError) record.KeyError {
	if i := slices.IndexFunc(bad, func(b record.KeyError) bool { return b.Key == key }); i >= 0 {
		return bad[i]
	}
	return record.KeyError{Key: key, Err: allocator.Errorf(allocator.Internal, "it is missing")}
}

// TimeOrigin returns the parts of an ID of a tag of kind time, and the room that
// issued it. Its errors are timeid.Layout.DecomposeBefore's, and Unavailable.
func (a *view) TimeOrigin(ctx context.Context, tag record.TimeTag, id int64) (worker.Origin, error) {
	parts, err := tag.Layout().DecomposeBefore(id, a.now().Add(record.MaxAhead).UnixMilli())
	if err != nil {
		return worker.Origin{}, err
	}
	return a.PartsOrigin(ctx, tag, parts)
}

// PartsOrigin is TimeOrigin of the parts of an ID, which a text may have without a number.
// Its errors are worker.OriginOf's, and Unavailable.
func (a *view) PartsOrigin(ctx context.Context, tag record.TimeTag, parts timeid.Parts) (worker.Origin, error) {
	layouts, _, err := a.Layouts(ctx, 0, record.MaxLayouts) // unreadable layouts are ignored
	if err != nil {
		return worker.Origin{}, err
	}
	id := record.WorkerID{Bits: tag.WorkerBits, Number: parts.Worker}
	var ops []store.Op
	for _, prefix := range a.workerPrefixes() {
		ops = append(ops, store.OpGet(prefix+id.Padded()))
	}
	answer, err := a.Ledger.Gets(ctx, ops...)
	if err != nil {
		return worker.Origin{}, err
	}
	var key *record.Worker // of the window that has the time, if it is still there
	for _, kv := range slices.Concat(answer.Got...) {
		if _, w, err := a.keys.DecodeWorker(kv); err == nil && w.From <= parts.Time && parts.Time < w.Until {
			key = &w
		}
	}
	return worker.OriginOf(tag, parts, a.now().Truncate(time.Millisecond), key, layouts)
}
