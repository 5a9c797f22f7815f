package ledger

import (
	"context"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Leave removes the registration and the heartbeat: a clean stop. Nothing may be
// leased after it. If etcd went back in time, or leasing is halted, the
// registration stays, and the error says so: `march recover` has to know of this
// instance.
//
// A missing registration may also come from an operator's forget. So Leave first
// writes into the registration that the instance leaves in good order, for processes
// that watch it. That write compares a last heartbeat, which counted as a lease
// does. So each store that shows that the instance left also has all its leases, and
// those of the earlier processes that it covers.
func (i *Instance) Leave(ctx context.Context) error {
	l := i.ledger
	covers := i.covered(ctx)
	for range joinAttempts {
		state, err := l.LeasableState(ctx)
		if err != nil && allocator.KindOf(err) != allocator.Refused { // an invalid layout does not stop a leave
			return err
		}
		if state == nil {
			state, _ = l.State()
		}
		registration, beat, value := i.held()
		if !value.Leaving {
			before := l.before()
			if err := i.send(ctx); err != nil {
				return err
			}
			if !i.sentChecked(before) {
				l.uncheck()
				continue
			}
			if err := i.sayLeaving(ctx, state, covers); err != nil {
				return err
			}
			continue
		}
		answer, err := l.Try(ctx, store.Txn{
			If:   []store.Cond{store.Unchanged(registration), store.HasValue(l.keys.Epoch(), state.raw)},
			Then: []store.Op{{Delete: registration.Key}, {Delete: beat.Key}},
			Else: []store.Op{store.OpGet(registration.Key)},
		})
		if err != nil {
			return err
		}
		if answer.Succeeded || len(answer.Got[0]) == 0 { // it is gone, perhaps by an earlier try
			_ = i.lose("instance %s of room %s has left", i.name, i.room) // a late lease does not register it again
			return nil
		}
		if err := i.checkRegistration(ctx, answer.Got[0]); err != nil {
			return err
		}
		if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
			return err
		}
	}
	return allocator.Errorf(allocator.Conflict, "the registration of instance %s of room %s, or the epoch, "+
		"was changed %d times while it was to be taken away", i.name, i.room, joinAttempts)
}

// held returns the registration and the heartbeat as we know them, and the
// registration's new value.
func (i *Instance) held() (registration, beat store.KV, value record.Registration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.kv, i.mu.beat.kv, i.mu.value
}

// sentChecked reports whether the last heartbeat counts as a lease would: its answer
// came over the probed connection, at a revision above all that were seen before,
// and no barrier or epoch came up meanwhile. A suspicion undoes the probe.
func (i *Instance) sentChecked(before sentAt) bool {
	l := i.ledger
	i.mu.Lock()
	defer i.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	t, by, revision := &l.mu.clock, i.mu.beat.by, i.mu.beat.kv.ModRevision
	return by.Connection != 0 && by == t.checked.by && revision > before.seen && t.epochSeq == before.epochSeq
}

// maxCovers bounds how many earlier processes a leaving one covers: the latest.
const maxCovers = 100

// covered returns the earlier processes of this instance whose leases etcd has: those with whose
// memory this process began, if answers that count show all of it.
func (i *Instance) covered(ctx context.Context) []string {
	chain := i.chain()
	ctx, cancel := context.WithTimeout(ctx, i.ledger.Patience()) // to see marks and windows
	defer cancel()
	if len(chain) == 0 || i.ledger.Check(ctx) != nil {
		return nil
	}
	for page := range slices.Chunk(i.unshown(), comparePage) {
		if !i.compareMarks(ctx, page) {
			return nil
		}
	}
	if len(i.unshown()) > 0 || !i.windowsShown(ctx) {
		return nil
	}
	return chain
}

// chain returns the earlier processes whose memory this one has, the latest ones.
func (i *Instance) chain() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	earlier := i.memory.incarnations[:len(i.memory.incarnations)-1]
	return slices.Clone(earlier[max(len(earlier)-maxCovers, 0):])
}

// windowsShown reads the workers that this instance remembers, and reports whether etcd has each
// window.
func (i *Instance) windowsShown(ctx context.Context) bool {
	l := i.ledger
	for page := range slices.Chunk(i.leases(), comparePage/2) {
		ops := make([]store.Op, 0, 2*len(page))
		for _, lease := range page {
			ops = append(ops, store.OpGet(l.keys.Window(i.room, lease.WorkerID)),
				store.OpGet(l.keys.Worker(lease.WorkerID)))
		}
		before := l.before()
		answer, err := l.Gets(ctx, ops...)
		if err != nil || !l.shows(before, answer) {
			return false
		}
		for k, lease := range page {
			shown := int64(0)
			for _, kv := range slices.Concat(answer.Got[2*k], answer.Got[2*k+1]) {
				shown = max(shown, untilOf(kv))
			}
			if shown < lease.Until {
				return false
			}
		}
	}
	return true
}

// shows is epochClock.shows.
func (l *Ledger) shows(before sentAt, answer store.Answer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.clock.shows(before, answer)
}

// leases returns the windows that were accepted, as last written.
func (i *Instance) leases() (all []record.Lease) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for id, own := range i.memory.windows {
		if own.worker.Until > 0 {
			all = append(all, record.Lease{WorkerID: id, Worker: own.worker})
		}
	}
	return all
}

// sayLeaving writes into the registration that the instance leaves, if its last
// heartbeat still stands, and which earlier processes it covers.
func (i *Instance) sayLeaving(ctx context.Context, state *State, covers []string) error {
	l := i.ledger
	registration, beat, value := i.held()
	value.Leaving, value.Covers = true, covers
	leaving := record.Encode(&value)
	answer, err := l.Try(ctx, store.Txn{
		If: []store.Cond{
			store.Unchanged(registration), store.HasValue(l.keys.Epoch(), state.raw),
			{Key: beat.Key, ModRevision: beat.ModRevision, Value: beat.Value},
		},
		Then: []store.Op{store.OpPut(registration.Key, leaving)},
		Else: []store.Op{store.OpGet(registration.Key)},
	})
	if err != nil {
		return err
	}
	if !answer.Succeeded {
		if err := i.checkRegistration(ctx, answer.Got[0]); err != nil {
			return err
		}
		if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
			return err
		}
		return nil
	}
	i.saidLeaving(store.KV{Key: registration.Key, Value: leaving, ModRevision: answer.Revision})
	return nil
}

// saidLeaving notes that the registration says that the instance leaves.
func (i *Instance) saidLeaving(registration store.KV) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.value.Leaving = true
	i.mu.kv = registration
}
