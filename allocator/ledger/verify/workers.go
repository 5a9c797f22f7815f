package verify

import (
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// window is the key of a worker, with its value.
type window struct {
	key string
	record.Worker
}

// overlaps reports whether two windows of a worker have a time in common, and are not one that
// goes on under another key.
func (w window) overlaps(o window) bool {
	return max(w.From, o.From) < min(w.Until, o.Until) && (w.Incarnation != o.Incarnation || w.From != o.From)
}

// worker checks the window of a worker of time-ordered IDs, in a key. It finds windows of two rooms that have a
// time in common, a worker that its room must not have, and a window that no instance takes. Two windows of earlier
// epochs show nothing: a restore may have brought back an end that its owner had lowered before another room took the
// number.
func (v *verification) worker(key string, id record.WorkerID, w record.Worker) {
	is := window{key, w}
	for _, other := range v.windows[id] {
		if is.overlaps(other) && (other.Stamp.Epoch == v.epochID || is.Stamp.Epoch == v.epochID) {
			v.add("worker %v is leased to %s and to %s for the time from %d until %d", id, other.ID(), is.ID(),
				max(other.From, is.From), min(other.Until, is.Until))
		}
	}
	v.windows[id] = append(v.windows[id], is)
	if !slices.Contains(v.checker.ever, w.Room) {
		v.add("worker %v is room %s's, which never was", id, w.Room)
	}
	// A window lasts at least three ticks.
	if least := w.From + 4*time.Second.Milliseconds(); w.Until > max(
		w.Clock+record.LongestWindow.Milliseconds(), least) {
		v.add("worker %v is leased until %d, %v after its owner's clock: longer than any window, %v", id, w.Until,
			time.Duration(w.Until-w.Clock)*time.Millisecond, record.LongestWindow)
	}
	// Revisions belong to an epoch.
	l, known := v.revisions[w.Stamp.Revision]
	if !known || w.Stamp.Epoch != v.epochID {
		return
	}
	if slice, _ := timeid.SliceOf(l, w.Room, id.Bits); !slice.Contains(id.Number) {
		v.add("worker %v was leased by room %s under layout version %d, where the room's slice is %v",
			id, w.Room, l.Version, slice)
	}
}
