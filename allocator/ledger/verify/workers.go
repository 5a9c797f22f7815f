package verify

import (
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
)

// worker checks a worker of time-ordered IDs. Only its key says which process has it,
// so etcd cannot show two owners at one time. The check can find a worker that its
// room must not have, and a window that no instance takes.
func (v *verification) worker(kv store.KV) {
	v.report.Workers++
	id, w, err := v.cluster.Keys.DecodeWorker(kv)
	if err != nil {
		v.unreadable(kv.Key, err)
		return
	}
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
