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

// EtcdTime returns the time by the clock of the member of etcd that answers, give or take unsure. Nothing that makes
// IDs unique rests on it.
func (i *Instance) EtcdTime(ctx context.Context) (at time.Time, unsure time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.ledger.tryFor())
	defer cancel()
	clock, err := store.ReadClock(ctx, i.ledger.store)
	return time.Now().Add(clock.Ahead), clock.Unsure, err
}

// maxWindows bounds how many workers are remembered: those with the latest ends.
const maxWindows = journal.MaxWindows

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
	alive := store.OpGetPrefix(l.keys.Heartbeats(""))
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
	if before.epochSeq != t.epochSeq {
		return false
	}
	fits := true
	for id, own := range i.memory.windows {
		key := i.workerKey(f.Layout, id)
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
}

// workerKey returns the key that this instance writes for a worker under a layout.
func (i *Instance) workerKey(l record.Layout, id record.WorkerID) string {
	if l.Upgraded() {
		return i.ledger.keys.Window(i.room, id)
	}
	return i.ledger.keys.Worker(id)
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
	registration := i.registered()
	put := store.KV{Key: i.workerKey(f.Layout, id), Value: w.Encode()}
	unchanged := store.Absent(put.Key)
	if n.KV.ModRevision != 0 {
		unchanged = store.Cond{Key: put.Key, ModRevision: n.KV.ModRevision, Value: n.KV.Value}
	}
	txn := store.Txn{
		If:   append(l.Holds(f.state), store.Unchanged(registration), unchanged),
		Then: []store.Op{store.OpPut(put.Key, put.Value)},
		Else: []store.Op{store.OpGet(put.Key), store.OpGet(registration.Key)},
	}
	last := n.Last()
	audits := i.auditsOwner(last)
	if audits {
		txn.Then = append(txn.Then, l.audit(string(w.ID()), "take worker", put.Key, last.Encode(), put.Value))
		txn = txn.With(l.MakeRoom(ctx))
	}
	if err := i.journalReady(); err != nil {
		return false, i.noted(err)
	}
	lowers, note := i.sendsWindow(id, w), journal.Record{Windows: []journal.Window{journalWindow(id, w)}}
	if lowers {
		// Note it before it is sent. Otherwise an instance that crashes in between would
		// later take the lower end for evidence.
		if err := i.journalAnyLease(ctx, f.state, note); err != nil {
			return false, i.noted(err)
		}
	}
	before := l.before()
	answer, err := l.Try(ctx, txn)
	// If the process crashes here, or the answer is lost, the window may be in etcd. No
	// process issues in it, and it ends by itself.
	if err != nil {
		return false, i.noted(err)
	}
	if !answer.Succeeded {
		if err := i.checkRegistration(ctx, answer.Got[1]); err != nil {
			return false, err
		}
		if i.compareWindows(before, answer.Revision, f, put.Key, put.Key+"\x00", answer.Got[0]) {
			_, err = l.Refresh(ctx)
		}
		return false, err
	}
	if audits {
		i.auditedOwner()
	}
	if ours, err := i.acceptWindow(before, answer, id, put.Key, w); err != nil || !ours {
		return false, err
	}
	if !lowers {
		if err := i.journalAnyLease(ctx, f.state, note); err != nil {
			return false, i.noted(err)
		}
	}
	l.confirmLayout(f.state.layout.Layout, before.at)
	return true, nil
}

// mayPut refuses a window that goes on from one that is no longer held, and another one that
// begins before the epoch's NotBefore, unless the number is free of that.
func (i *Instance) mayPut(f Footing, n record.Number, w record.Worker, goes bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	own := i.memory.windows[n.WorkerID]
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

// acceptWindow decides whether the window that a transaction wrote is ours, as accept
// does for a segment.
func (i *Instance) acceptWindow(before sentAt, answer store.Answer, id record.WorkerID, key string,
	w record.Worker) (bool, error) {
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
		own.worker, own.sent, own.key, own.revision, own.held = w, w, key, answer.Revision, true
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
