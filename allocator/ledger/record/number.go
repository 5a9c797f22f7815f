package record

import (
	"cmp"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Number is a worker as one snapshot shows it: the keys of all rooms that ever were, and the one
// that all rooms wrote before. A room writes its own key only.
type Number struct {
	WorkerID
	KV      store.KV // the key that the reader's room writes; without a mod revision if it is not there
	Ours    Worker   // of KV
	Windows []Worker // of all keys, that of KV first
	Err     error    // why a key cannot be read: then no process takes the worker
}

// Last returns the window with the latest end, the zero value if there is none.
func (n Number) Last() (last Worker) {
	for _, w := range n.Windows {
		last = last.Raised(w)
	}
	return last
}

// Free is Worker.Free of this room's key: another room's word counts for nothing.
func (n Number) Free(epoch string, notBefore int64) bool { return n.Ours.Free(epoch, notBefore) }

// Own returns the window that a process of this room began at a time, false if there is none. It is
// in this room's key, or in the one of before while no process of this room has written its own.
func (n Number) Own(incarnation string, from int64) (Worker, bool) {
	windows := n.Windows
	if n.KV.ModRevision != 0 {
		windows = []Worker{n.Ours}
	}
	at := slices.IndexFunc(windows, func(w Worker) bool { return w.Incarnation == incarnation && w.From == from })
	if at < 0 {
		return Worker{}, false
	}
	return windows[at], true
}

// Over returns a window of another process that ends after own began, if there is one: then own
// does not go on.
func (n Number) Over(own Worker) (other Worker, overlaps bool) {
	for _, w := range n.Windows {
		if w.Until > own.From && (w.Incarnation != own.Incarnation || w.From != own.From) {
			other, overlaps = other.Raised(w), true
		}
	}
	return other, overlaps
}

// WorkersIn returns the intervals of the keys of workers within a slice: under a layout with the
// formats of generation 2 those of a room, of each other room that ever was, and of all rooms
// before.
func (k Keys) WorkersIn(l Layout, room allocator.Room, bits int, slice allocator.Range) (all []store.Interval) {
	within := func(key func(WorkerID) string) {
		all = append(all, store.Interval{
			Key: key(WorkerID{Bits: bits, Number: slice.Lower}), End: key(WorkerID{Bits: bits, Number: slice.Upper})})
	}
	if l.Upgraded() {
		rooms := slices.DeleteFunc(slices.Clone(l.Ever), func(other allocator.Room) bool { return other == room })
		for _, room := range append([]allocator.Room{room}, rooms...) {
			within(func(id WorkerID) string { return k.Window(room, id) })
		}
	}
	within(k.Worker)
	return all
}

// Numbers returns the workers of what the intervals of WorkersIn have, in order. An interval with
// limit keys may have more of them: then all is false, and no number is returned whose keys may
// not all be known.
func (k Keys) Numbers(got [][]store.KV, limit int64) (found []Number, all bool) {
	byID := make(map[WorkerID]Number)
	all = true
	last := int64(1<<63 - 1)
	for at, kvs := range got {
		for _, kv := range kvs {
			id, w, err := k.DecodeWorker(kv)
			n := byID[id]
			n.WorkerID = id
			if at == 0 {
				n.KV, n.Ours = kv, w
			}
			if err != nil {
				n.Err = err
			} else {
				n.Windows = append(n.Windows, w)
			}
			byID[id] = n
			if int64(len(kvs)) == limit && kv.Key == kvs[len(kvs)-1].Key {
				last, all = min(last, id.Number), false
			}
		}
	}
	found = slices.SortedFunc(maps.Values(byID), func(a, b Number) int { return cmp.Compare(a.Number, b.Number) })
	return slices.DeleteFunc(found, func(n Number) bool { return n.Number > last }), all
}
