package recovery

import (
	"context"
	"errors"
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
		was, known := r.mu.workers[l.WorkerID]
		if known && was.Until >= l.Until {
			continue
		}
		r.mu.workers[l.WorkerID] = was.Raised(l.Worker)
		r.mu.learned++
	}
	r.mu.notBefore = max(r.mu.notBefore, m.NotBefore)
}

// raiseWorkers raises the workers that end later in a memory than in the store.
func (r *run) raiseWorkers(ctx context.Context) error {
	all, layout := r.rememberedWorkers()
	r.report.Workers = 0
	for page := range slices.Chunk(all, max(marksPage/(len(layout.Ever)+1), 1)) {
		if err := r.raiseWorkersPage(ctx, layout, page); err != nil {
			return err
		}
	}
	return nil
}

// rememberedWorkers returns the workers that memories know, by width and number, and a layout with
// all rooms and the formats that are known.
func (r *run) rememberedWorkers() ([]record.Lease, record.Layout) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]record.Lease, 0, len(r.mu.workers))
	for id, w := range r.mu.workers {
		all = append(all, record.Lease{WorkerID: id, Worker: w})
	}
	record.SortLeases(all)
	return all, record.Layout{Ever: r.mu.rooms, Formats: r.mu.extremes.Formats}
}

// raiseWorkersPage raises workers in one transaction, until they are raised.
func (r *run) raiseWorkersPage(ctx context.Context, layout record.Layout, page []record.Lease) error {
	for range raiseAttempts {
		raised, done, err := r.tryRaiseWorkers(ctx, layout, page)
		if done {
			r.report.Workers += raised
			return nil
		}
		if err != nil && allocator.KindOf(err) != allocator.Unavailable {
			return err
		}
		if !store.Pause(ctx) {
			return brokenOff(ctx)
		}
	}
	return allocator.Errorf(allocator.Unavailable,
		"%d workers could not be raised in %d tries; check etcd", len(page), raiseAttempts)
}

// tryRaiseWorkers is one try. After an error, or false, the workers are read again,
// which shows whether they were raised. A window goes into its own room's key; no key of
// the number may have a later end.
func (r *run) tryRaiseWorkers(ctx context.Context, layout record.Layout,
	page []record.Lease) (raised int64, done bool, err error) {
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
		if l.Until <= n.Last().Until {
			continue
		}
		key := ops[first[k]].Get.Key
		cond := store.Absent(key)
		if n.KV.ModRevision != 0 {
			cond = store.Unchanged(n.KV)
		}
		raised++
		txn.If, txn.Then = append(txn.If, cond), append(txn.Then, store.OpPut(key, l.Encode()))
	}
	if raised == 0 {
		return 0, true, nil
	}
	reply, err = r.l.Try(ctx, txn)
	return raised, err == nil && reply.Succeeded, err
}
