package recovery

import (
	"context"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// raiseMachines puts the keys of machine IDs back that a mirror saw in later use than the store: a
// client has the number, and no instance remembers it. Each room's key is a claim of its own, so a
// claim that is put back takes none away. The client that has a number is that of the key which was
// written last: so keys of one number are written in the order of their times, each in a
// transaction of its own.
func (r *run) raiseMachines(ctx context.Context) error {
	r.report.Machines = 0
	for _, page := range machinePages(r.seenMachines()) {
		if err := r.raiseMachinesPage(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

// seenMachines returns the machine IDs that mirrors saw, the one that was in use longest ago first.
func (r *run) seenMachines() (all []mirror.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, c := range r.mu.machines {
		all = append(all, mirror.Machine{WorkerIn: key, Machine: c})
	}
	slices.SortFunc(all, mirror.Machine.Compare)
	return all
}

// machinePages cuts machine IDs into pages that have each number once at most.
func machinePages(all []mirror.Machine) (pages [][]mirror.Machine) {
	for from := 0; from < len(all); {
		numbers, to := make(map[record.WorkerID]bool), from
		for ; to < len(all) && to < from+marksPage && !numbers[all[to].WorkerID]; to++ {
			numbers[all[to].WorkerID] = true
		}
		pages, from = append(pages, all[from:to]), to
	}
	return pages
}

func (r *run) raiseMachinesPage(ctx context.Context, page []mirror.Machine) error {
	for range raiseAttempts {
		raised, done, err := r.tryRaiseMachines(ctx, page)
		if done {
			r.report.Machines += raised
			return nil
		}
		if err != nil && allocator.KindOf(err) != allocator.Unavailable {
			return err
		}
		if !store.Pause(ctx) {
			return brokenOff(ctx)
		}
	}
	return allocator.Errorf(allocator.Unavailable, "%d machine IDs could not be put back in %d tries; check etcd",
		len(page), raiseAttempts)
}

// tryRaiseMachines is one try. After an error, or false, the keys are read again.
func (r *run) tryRaiseMachines(ctx context.Context, page []mirror.Machine) (raised int64, done bool, err error) {
	ops := make([]store.Op, len(page))
	for i, c := range page {
		key := r.keys.Machine(c.WorkerID)
		if c.Room != "" {
			key = r.keys.Client(c.Room, c.WorkerID)
		}
		ops[i] = store.OpGet(key)
	}
	reply, err := r.gets(ctx, ops...)
	if err != nil {
		return 0, false, err
	}
	txn := store.Txn{If: []store.Cond{store.HasValue(r.found.epochKV.Key, r.found.epochKV.Value)}}
	for i, c := range page {
		key := ops[i].Get.Key
		cond := store.Absent(key)
		if kv, there := reply.One(i); there {
			var stored record.Machine
			if err := record.Decode(kv, &stored); err != nil {
				r.unreadable(key, err) // no client gets it
				continue
			}
			if stored.Last >= c.Last {
				continue
			}
			cond = store.Unchanged(kv)
		}
		raised++
		txn.If, txn.Then = append(txn.If, cond), append(txn.Then, store.OpPut(key, c.Encode()))
	}
	if raised == 0 {
		return 0, true, nil
	}
	reply, err = r.l.Try(ctx, txn)
	return raised, err == nil && reply.Succeeded, err
}
