package ledger

import (
	"context"
	"strconv"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A window of a worker (package worker decides which and how long) is leased as a
// segment is: by a transaction that compares epoch, layout, registration and the
// worker's key. Steps 5 to 7 of a segment's life hold for the answer and the
// journal, too. This file has that part.

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

// Layout returns the layout as this process knows it, and a channel that is closed when
// it knows another one.
func (i *Instance) Layout() (record.Layout, <-chan struct{}) { return i.ledger.Layout() }

// Room returns the room that the instance serves.
func (i *Instance) Room() allocator.Room { return i.room }

// Name returns the instance's name, which is stable over restarts.
func (i *Instance) Name() allocator.Instance { return i.name }

// Incarnation returns the name of this process, which no other process has.
func (i *Instance) Incarnation() string { return i.incarnation }

// Now returns the time by the ledger's clock, in whole ms.
func (i *Instance) Now() time.Time { return i.ledger.now() }

// maxWindows bounds how many workers are remembered: those with the latest ends.
const maxWindows = journal.MaxWindows

// ReadWorkers reads, in one snapshot, the workers of a width within a slice, and a
// number of heartbeats of any instances. False without an error means that epoch or
// layout are no longer f's, or that the values are older than the remembered ones:
// the caller begins anew with another Footing.
func (i *Instance) ReadWorkers(ctx context.Context, f Footing, bits int, slice allocator.Range,
	workers, heartbeats int64) (found, beats []store.KV, ok bool, err error) {
	l := i.ledger
	within := store.Get{
		Interval: store.Interval{Key: l.keys.Worker(record.WorkerID{Bits: bits, Number: slice.Lower}),
			End: l.keys.Worker(record.WorkerID{Bits: bits, Number: slice.Upper})},
		Limit: workers,
	}
	alive := store.OpGetPrefix(l.keys.Heartbeats(""))
	alive.Get.Limit = heartbeats
	before := l.before()
	answer, err := l.Try(ctx, store.Txn{If: l.Holds(f.state), Then: []store.Op{{Get: &within}, alive}})
	if err != nil {
		return nil, nil, false, i.noted(err)
	}
	if !answer.Succeeded {
		_, err := l.Refresh(ctx)
		return nil, nil, false, err
	}
	found, end := answer.Got[0], within.End
	if int64(len(found)) == workers { // there may be more
		end = found[len(found)-1].Key + "\x00"
	}
	if !i.compareWindows(before, answer.Revision, f, within.Key, end, found) {
		return nil, nil, false, nil
	}
	return found, answer.Got[1], true, nil
}

// compareWindows compares the workers that an answer showed, all between two keys, with
// the remembered ones. A window that ends earlier than this instance wrote it in the
// same epoch is evidence that etcd went back. False means that the caller must read
// them again, after a probe.
func (i *Instance) compareWindows(before sentAt, revision int64, f Footing, from, end string, found []store.KV) bool {
	l := i.ledger
	until := make(map[string]int64, len(found))
	for _, kv := range found {
		until[kv.Key] = untilOf(kv)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.clock
	if before.epochSeq != t.epochSeq || before.suspicionSeq != t.suspicionSeq {
		return false
	}
	fits := true
	for id, own := range i.memory.windows {
		key := l.keys.Worker(id)
		if key < from || key >= end || own.worker.Stamp.Epoch != f.Stamp.Epoch || until[key] >= own.worker.Until {
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
}

// PutWorker writes a worker's key over what was read there, if f still holds. True
// means that the window of w is this instance's, and the journal has it. False without
// an error means that this is not known: the key was changed, the answer does not
// count, or f is out of date. The caller then reads the key again, as it does after an
// error. Its errors are those of a lease.
//
// goes is true if w goes on from a window that this process holds. Any other window
// must begin at or after f.NotBefore, unless the number is free of it.
func (i *Instance) PutWorker(ctx context.Context, f Footing, was store.KV, id record.WorkerID, w record.Worker,
	goes bool) (now store.KV, done bool, err error) {
	l := i.ledger
	if err := i.mayPut(f, was, id, w, goes); err != nil {
		return now, false, err
	}
	registration := i.registered()
	put := store.KV{Key: l.keys.Worker(id), Value: w.Encode()}
	unchanged := store.Absent(put.Key)
	if was.ModRevision != 0 {
		unchanged = store.Cond{Key: put.Key, ModRevision: was.ModRevision, Value: was.Value}
	}
	txn := store.Txn{
		If:   append(l.Holds(f.state), store.Unchanged(registration), unchanged),
		Then: []store.Op{store.OpPut(put.Key, put.Value)},
		Else: []store.Op{store.OpGet(put.Key), store.OpGet(registration.Key)},
	}
	audits := i.auditsOwner(was)
	if audits {
		txn.Then = append(txn.Then, l.audit(string(w.ID()), "take worker", put.Key, was.Value, put.Value))
		txn = txn.With(l.MakeRoom(ctx))
	}
	if err := i.journalReady(); err != nil {
		return now, false, i.noted(err)
	}
	lowers, note := i.sendsWindow(id, w), journal.Record{Windows: []journal.Window{journalWindow(id, w)}}
	if lowers {
		// Note it before it is sent. Otherwise an instance that crashes in between would
		// later take the lower end for evidence.
		if err := i.journalAnyLease(ctx, f.state, note); err != nil {
			return now, false, i.noted(err)
		}
	}
	before := l.before()
	answer, err := l.Try(ctx, txn)
	// If the process crashes here, or the answer is lost, the window may be in etcd. No
	// process issues in it, and it ends by itself.
	if err != nil {
		return now, false, i.noted(err)
	}
	if !answer.Succeeded {
		if err := i.checkRegistration(ctx, answer.Got[1]); err != nil {
			return now, false, err
		}
		if i.compareWindows(before, answer.Revision, f, put.Key, put.Key+"\x00", answer.Got[0]) {
			_, err = l.Refresh(ctx)
		}
		return now, false, err
	}
	if audits {
		i.auditedOwner()
	}
	if ours, err := i.acceptWindow(before, answer, id, w); err != nil || !ours {
		return now, false, err
	}
	if !lowers {
		if err := i.journalAnyLease(ctx, f.state, note); err != nil {
			return now, false, i.noted(err)
		}
	}
	l.confirmLayout(f.state.layout.Layout, before.at)
	put.ModRevision = answer.Revision
	return put, true, nil
}

// mayPut refuses a window that goes on from one that is no longer held, and another one that
// begins before the epoch's NotBefore, unless the number is free of that: see FreeOf.
func (i *Instance) mayPut(f Footing, was store.KV, id record.WorkerID, w record.Worker, goes bool) error {
	var before record.Worker
	if was.ModRevision != 0 {
		_ = record.Decode(was, &before) // an unreadable one is not taken
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	own := i.memory.windows[id]
	switch {
	case goes && (!own.held || own.worker.From != w.From):
		return allocator.Errorf(allocator.Unavailable,
			"worker %v: this instance has it no longer: a recover went on without the instance, "+
				"or it was forgotten", id)
	case !goes && w.From < f.NotBefore && !before.FreeOf(f.Stamp.Epoch):
		return allocator.Errorf(allocator.Internal,
			"worker %v: a window from %d, before %d, where the epoch's windows begin", id, w.From, f.NotBefore)
	}
	return nil
}

// acceptWindow decides whether the window that a transaction wrote is ours, as accept
// does for a segment.
func (i *Instance) acceptWindow(before sentAt, answer store.Answer, id record.WorkerID, w record.Worker) (bool, error) {
	l := i.ledger
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if ours, err := l.counts(before, answer); err != nil || !ours {
		return false, err
	}
	own := i.memory.windows[id]
	if answer.Revision < own.taken {
		return false, nil // another process wrote the key since
	}
	if answer.Revision > own.revision {
		// Earlier requests can no longer succeed, because they compare the revision.
		own.worker, own.sent, own.revision, own.held = w, w, answer.Revision, true
	}
	i.memory.sequence++
	i.memory.leaser, i.memory.leases, i.memory.probes = i.incarnation, failures{}, failures{}
	i.memory.setWindow(id, own)
	return true, nil
}

// TimeTagError is the error of leasing a segment of a tag with time-ordered IDs. Its Kind
// is Invalid.
type TimeTagError struct {
	Tag      allocator.Tag
	Settings record.TagSettings // Time is not nil
}

func (e *TimeTagError) Error() string {
	return "tag " + string(e.Tag) + " is of kind time: its IDs follow the clock, and no segment of them is leased"
}

// Unwrap returns the Kind.
func (e *TimeTagError) Unwrap() error { return allocator.Invalid }

// Key returns the key of a worker.
func (i *Instance) Key(id record.WorkerID) string { return i.ledger.keys.Worker(id) }

// ReadKey reads a worker's key. Its error is a KeyError.
func (i *Instance) ReadKey(kv store.KV) (record.WorkerID, record.Worker, error) {
	return i.ledger.keys.DecodeWorker(kv)
}
