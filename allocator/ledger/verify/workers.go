package verify

import (
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
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

// worker checks a key of a worker of time-ordered IDs. It finds windows of two rooms that have a
// time in common, a worker that its room must not have, and a window that no instance takes.
func (v *verification) worker(kv store.KV) {
	id, w, err := v.cluster.Keys.DecodeWorker(kv)
	earlier, counted := v.windows[id]
	if !counted {
		v.report.Workers++
	}
	if v.windows[id] = earlier; err != nil {
		v.unreadable(kv.Key, err)
		return
	}
	is := window{kv.Key, w}
	for _, other := range earlier {
		if is.overlaps(other) {
			v.overlaps = append(v.overlaps, [2]string{other.key, is.key})
		}
	}
	v.windows[id] = append(earlier, is)
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

// confirmOverlaps reads each two keys with windows that had a time in common in one snapshot: the
// pages before were of different times. Two windows of earlier epochs show nothing: a restore may
// have brought back an end that its owner had lowered before another room took the number.
func (v *verification) confirmOverlaps(ctx context.Context) error {
	for _, pair := range v.overlaps {
		answer, err := v.cluster.Gets(ctx, store.OpGet(pair[0]), store.OpGet(pair[1]))
		if err != nil {
			return err
		}
		var of [2]window
		var id record.WorkerID
		for k, kvs := range answer.Got {
			for _, kv := range kvs {
				of[k].key = kv.Key
				id, of[k].Worker, _ = v.cluster.Keys.DecodeWorker(kv)
			}
		}
		present := of[0].Stamp.Epoch == v.epochID || of[1].Stamp.Epoch == v.epochID
		if present && of[0].overlaps(of[1]) {
			v.add("worker %v is leased to %s and to %s for the time from %d until %d", id, of[0].ID(), of[1].ID(),
				max(of[0].From, of[1].From), min(of[0].Until, of[1].Until))
		}
	}
	return nil
}
