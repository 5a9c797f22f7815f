package recovery

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A restored etcd has forgotten windows of workers, too. Windows that end later in a
// memory than in the store are raised, as marks are: their owners, which answered, go
// on in them. The windows of an instance that is left out are not known. They end
// before the epoch's not_before, until which no other window begins.

// takeWorkers adds the workers of a memory. The caller holds mu.
func (r *run) takeWorkers(m record.Memory) {
	for _, l := range m.Workers {
		was, known := r.mu.workers[l.In()]
		if known && was.Until >= l.Until {
			continue
		}
		r.mu.workers[l.In()] = was.Raised(l.Worker)
		r.mu.learned++
	}
	r.mu.notBefore = max(r.mu.notBefore, m.NotBefore)
}

// raiseWorkers raises the keys of workers that end later in a memory than in the store. What stands in
// another room's key counts for nothing: that room may lower it.
func (r *run) raiseWorkers(ctx context.Context) (err error) {
	all, layout := r.rememberedWorkers()
	r.report.Workers, err = r.putWorkers(ctx, layout, all, raised)
	return err
}

// raised is a worker's key with the later end of a memory.
func raised(l record.Lease, n record.Number) (w record.Worker, puts bool) {
	w = l.Worker
	w.FreeOf = n.Ours.FreeOf
	return w, w.Until > n.Ours.Until
}

// freeWorkers frees the numbers whose owners go on of the new epoch's not_before.
func (r *run) freeWorkers(ctx context.Context) error {
	windows, layout := r.goingOn()
	if r.begins <= r.cluster.Now().UnixMilli() || !layout.Upgraded() {
		return nil
	}
	_, err := r.putWorkers(ctx, layout, windows, r.freed)
	return err
}

// freed is a worker's key that says that the number is free, if its owner's window is the last one.
func (r *run) freed(l record.Lease, n record.Number) (w record.Worker, puts bool) {
	w = n.Ours
	_, over := n.Over(w)
	last := w.Incarnation == l.Incarnation && w.From == l.From && w.Until == n.Last().Until && !over
	w.FreeOf = r.begins
	return w, last && w != n.Ours
}

// goingOn returns the windows in which instances that answered go on, and a layout with all rooms
// and the formats that are known.
func (r *run) goingOn() ([]record.Lease, record.Layout) {
	r.mu.Lock()
	defer r.mu.Unlock()
	windows := make(map[record.WorkerIn]record.Worker)
	for _, a := range r.mu.answers {
		for _, l := range a.windows {
			windows[l.In()] = windows[l.In()].Raised(l.Worker)
		}
	}
	return r.byNumber(windows)
}

// rememberedWorkers returns the workers that memories know, and a layout as goingOn does.
func (r *run) rememberedWorkers() ([]record.Lease, record.Layout) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byNumber(r.mu.workers)
}

// byNumber returns workers by width, number and room, and a layout. Of the workers that share a key
// it returns the one that ends last. The caller holds mu.
func (r *run) byNumber(workers map[record.WorkerIn]record.Worker) ([]record.Lease, record.Layout) {
	layout := record.Layout{Ever: r.mu.rooms, Formats: r.mu.extremes.Formats}
	last := make(map[string]record.Lease)
	for in, w := range workers {
		key := r.keys.Worker(in.WorkerID)
		if layout.Upgraded() {
			key = r.keys.Window(in.Room, in.WorkerID)
		}
		last[key] = record.Lease{WorkerID: in.WorkerID, Worker: last[key].Worker.Raised(w)}
	}
	all := slices.Collect(maps.Values(last))
	record.SortLeases(all)
	return all, layout
}

// change returns what a worker's key is to be, and whether it is to be put.
type change func(l record.Lease, n record.Number) (w record.Worker, puts bool)

// putWorkers puts the keys of workers as a change says, in pages of one transaction each. It
// returns how many it put.
func (r *run) putWorkers(ctx context.Context, layout record.Layout, all []record.Lease, to change) (int64, error) {
	sum := int64(0)
	for page := range slices.Chunk(all, max(marksPage/(len(layout.Ever)+1), 1)) {
		put, err := r.putWorkersPage(ctx, layout, page, to)
		if err != nil {
			return sum, err
		}
		sum += put
	}
	return sum, nil
}

// putWorkersPage puts workers in one transaction, until they are put.
func (r *run) putWorkersPage(ctx context.Context, layout record.Layout, page []record.Lease, to change) (int64, error) {
	for range raiseAttempts {
		put, done, err := r.tryPutWorkers(ctx, layout, page, to)
		if done {
			return put, nil
		}
		if err != nil && allocator.KindOf(err) != allocator.Unavailable {
			return 0, err
		}
		if !store.Pause(ctx) {
			return 0, brokenOff(ctx)
		}
	}
	return 0, allocator.Errorf(allocator.Unavailable,
		"%d workers could not be raised in %d tries; check etcd", len(page), raiseAttempts)
}

// tryPutWorkers is one try. After an error, or false, the workers are read again, which shows
// whether they were put. A window goes into its own room's key.
func (r *run) tryPutWorkers(ctx context.Context, layout record.Layout, page []record.Lease,
	to change) (put int64, done bool, err error) {
	var ops []store.Op
	first := make([]int, len(page)+1) // the operations of each
	for k, l := range page {
		only := allocator.Range{Lower: l.Number, Upper: l.Number + 1}
		for _, in := range r.keys.WorkersIn(layout, l.Room, l.Bits, only) {
			ops = append(ops, store.OpGet(in.Key))
		}
		first[k+1] = len(ops)
	}
	reply, err := r.gets(ctx, ops...)
	if err != nil {
		return 0, false, err
	}
	txn := store.Txn{If: []store.Cond{store.HasValue(r.found.epochKV.Key, r.found.epochKV.Value)}}
	for k, l := range page {
		found, _ := r.keys.Numbers(reply.Got[first[k]:first[k+1]], 0)
		n := record.Number{}
		if len(found) > 0 {
			n = found[0]
		}
		if bad, isKey := errors.AsType[*record.KeyError](n.Err); isKey {
			r.unreadable(bad.Key, n.Err) // no process takes it
			continue
		}
		w, puts := to(l, n)
		if !puts {
			continue
		}
		key := ops[first[k]].Get.Key
		cond := store.Absent(key)
		if n.KV.ModRevision != 0 {
			cond = store.Unchanged(n.KV)
		}
		put++
		txn.If, txn.Then = append(txn.If, cond), append(txn.Then, store.OpPut(key, w.Encode()))
	}
	if put == 0 {
		return 0, true, nil
	}
	reply, err = r.l.Try(ctx, txn)
	return put, err == nil && reply.Succeeded, err
}
