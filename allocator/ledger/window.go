package ledger

import (
	"context"
	"strconv"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A window of a worker is leased as a segment is: by a claim. Package worker decides which worker, and for how long.

// Footing is the state on which a lease of a window depends, as this process knows
// it. The transaction compares all of it.
type Footing struct {
	Layout    record.Layout
	Stamp     record.Stamp
	NotBefore int64 // Unix ms: the earliest begin of a window, except of one that goes on; 0 for no bound

	state *State
}

// Footing returns the state for a lease now, after a probe if one is due. Its
// errors are those of a lease: Unavailable, WentBack and Refused.
func (i *Instance) Footing(ctx context.Context) (Footing, error) {
	state, err := i.ledger.LeasableState(ctx)
	if err != nil {
		return Footing{}, i.noted(err)
	}
	return Footing{Layout: state.layout, Stamp: state.stamp(), NotBefore: state.notBefore, state: state}, nil
}

// Numbers are the workers of a slice, and heartbeats, as one snapshot shows them.
type Numbers struct {
	Found      []record.Number // those that have a key, by number
	All        bool            // no other one of the slice has a key
	Heartbeats []store.KV
}

// ReadWorkers reads, in one snapshot, the workers of a width within a slice, from the keys of all
// rooms that ever were, and a number of heartbeats of any instances. False without an error means
// that epoch or layout are no longer f's, or that the values are older than the remembered ones:
// the caller begins anew with another Footing.
func (i *Instance) ReadWorkers(ctx context.Context, f Footing, bits int, slice allocator.Range,
	workers, heartbeats int64) (n Numbers, ok bool, err error) {
	l := i.ledger
	alive := store.OpGetPrefix(l.keys.All(record.Heartbeats))
	alive.Get.Limit = heartbeats
	within := l.keys.WorkersIn(f.Layout, i.room, bits, slice)
	ops := []store.Op{alive}
	for _, in := range within {
		ops = append(ops, store.Op{Get: &store.Get{Interval: in, Limit: workers}})
	}
	before := l.before()
	answer, err := l.Try(ctx, store.Txn{If: l.Holds(f.state), Then: ops})
	if err != nil {
		return n, false, i.noted(err)
	}
	if !answer.Succeeded {
		_, err := l.Refresh(ctx)
		return n, false, err
	}
	n.Heartbeats = answer.Got[0]
	n.Found, n.All = l.keys.Numbers(answer.Got[1:], workers)
	own, end := answer.Got[1], within[0].End
	if int64(len(own)) == workers { // there may be more
		end = own[len(own)-1].Key + "\x00"
	}
	return n, i.compareWindows(before, answer.Revision, f, within[0].Key, end, own), nil
}

// compareWindows compares the keys of its room's workers that an answer showed, all between two
// keys, with the remembered windows. One that ends earlier than this instance wrote it in the
// same epoch is evidence that etcd went back. False means that the caller must read them again,
// after a probe.
func (m *memory) compareWindows(before sentAt, revision int64, f Footing, from, end string, found []store.KV) bool {
	until := make(map[string]int64, len(found))
	for _, kv := range found {
		until[kv.Key] = untilOf(kv)
	}
	return m.compared(before, func(t *epochClock) bool {
		fits := true
		for id, own := range m.mu.windows {
			key := m.workerKey(f.Layout, id)
			if key < from || key >= end || !own.at(key, f) || until[key] >= own.worker.Until {
				continue
			}
			fits = false
			if revision >= own.revision { // otherwise another answer overtook this one
				t.suspect("the worker "+key+" ends at "+strconv.FormatInt(until[key],
					10)+", and ended at "+strconv.FormatInt(own.worker.Until, 10),
					map[string]int64{key: own.worker.Until})
			}
		}
		return fits
	})
}

// workerKey returns the key that this instance writes for a worker under a layout.
func (m *memory) workerKey(l record.Layout, id record.WorkerID) string {
	if l.Upgraded() {
		return m.ledger.keys.Window(m.room, id)
	}
	return m.ledger.keys.Worker(id)
}

// PutWorker writes this room's key of a worker over what was read there, if f still holds. True
// means that the window of w is this instance's, and the journal has it. False without an error
// means that this is not known: the key was changed, the answer does not count, or f is out of
// date. The caller then reads the worker again, as it does after an error. Its errors are those of
// a lease.
//
// goes is true if w goes on from a window that this process holds. Any other window must begin at
// or after f.NotBefore, unless the number is free of it, and after all windows of n. So the number
// is free of it from then on, and the key says so.
func (i *Instance) PutWorker(ctx context.Context, f Footing, n record.Number, w record.Worker,
	goes bool) (done bool, err error) {
	l, id := i.ledger, n.WorkerID
	if err := i.mayPut(f, n, w, goes); err != nil {
		return false, err
	}
	if f.Layout.Upgraded() {
		w.FreeOf = f.NotBefore
	}
	put := store.KV{Key: i.workerKey(f.Layout, id), Value: w.Encode()}
	c := claim{
		state: f.state, was: store.KV{Key: put.Key, ModRevision: n.KV.ModRevision, Value: n.KV.Value},
		then: []store.Op{store.OpPut(put.Key, put.Value)}, window: &record.Lease{WorkerID: id, Worker: w},
		learns: func(ctx context.Context, before sentAt, answer store.Answer) (err error) {
			if i.compareWindows(before, answer.Revision, f, put.Key, put.Key+"\x00", answer.Got[1]) {
				_, err = l.Refresh(ctx)
			}
			return err
		},
	}
	last := n.Last()
	audits := i.auditsOwner(last)
	if audits {
		c.then = append(c.then, l.audit(string(w.ID()), "take worker", put.Key, last.Encode(), put.Value))
		c.then = store.Txn{Then: c.then}.With(l.MakeRoom(ctx)).Then
	}
	_, done, err = i.claim(ctx, c)
	if done && audits {
		now := l.now() // not under the lock: it is a caller's function
		i.with(func() { i.memory.mu.audited = now })
	}
	return done, err
}

// mayPut refuses a window that goes on from one that is no longer held, and another one that
// begins before the epoch's NotBefore, unless the number is free of that.
func (m *memory) mayPut(f Footing, n record.Number, w record.Worker, goes bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := m.mu.windows[n.WorkerID]
	switch {
	case goes && (!own.held || own.worker.From != w.From):
		return allocator.Errorf(allocator.Unavailable,
			"worker %v: this instance has it no longer: a recover went on without the instance, "+
				"or it was forgotten", n.WorkerID)
	case !goes && w.From < f.NotBefore && !n.Free(f.Stamp.Epoch, f.NotBefore):
		return allocator.Errorf(allocator.Internal,
			"worker %v: a window from %d, before %d, where the epoch's windows begin", n.WorkerID, w.From, f.NotBefore)
	}
	return nil
}
