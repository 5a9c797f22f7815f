package recovery

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/crash"
)

const (
	// marksPage is how many marks are compared or raised in one transaction: etcd
	// takes 128 operations.
	marksPage = 120
	// pagesAtOnce is how many such transactions are under way at once: leasing is
	// halted meanwhile. With four at once and a round trip of 50 ms, 300,000 marks took
	// over a minute of waiting.
	pagesAtOnce = 16
	// raiseAttempts bounds how often such a transaction is sent again.
	raiseAttempts = 5
)

// compare compares the marks that an instance of a room remembers with the store's,
// and keeps those that are higher.
func (r *run) compare(ctx context.Context, room allocator.Room, marks []record.RememberedMark) error {
	return r.compareAs(ctx, "", room, marks)
}

// compareAs is compare for the marks that a mirror saw; an empty name stands for an instance.
func (r *run) compareAs(ctx context.Context, by string, room allocator.Room, marks []record.RememberedMark) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pagesAtOnce)
	for page := range slices.Chunk(marks, marksPage) {
		group.Go(func() error {
			ops := make([]store.Op, len(page))
			for k, m := range page {
				ops[k] = store.OpGet(r.keys.Mark(room, m.Tag))
			}
			reply, err := r.gets(ctx, ops...)
			if err == nil {
				r.keepHigher(by, room, page, reply)
			}
			return err
		})
	}
	return group.Wait()
}

// keepHigher keeps the marks of a page that are higher than the store's, which reply has.
func (r *run) keepHigher(by string, room allocator.Room, page []record.RememberedMark, reply store.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, m := range page {
		var mark record.Mark
		if kv, ok := reply.One(k); ok {
			var err error
			if mark, err = record.DecodeMark(kv); err != nil {
				r.mu.unreadable[kv.Key] = err
				continue
			}
		}
		at := roomTag{room, m.Tag}
		was := r.mu.higher[at]
		if m.Next <= mark.Next || m.Next <= was.next && m.Total <= was.total {
			continue
		}
		now := reached{max(m.Next, was.next), max(m.Total, was.total), max(was.known, mark.Next), was.by}
		if by == "" {
			now.known = max(now.known, m.Next)
		}
		if m.Next > was.next {
			now.by = by
		}
		r.mu.higher[at] = now
		r.mu.total = max(r.mu.total, m.Total)
		r.mu.learned++
	}
}

// raise raises the marks that are higher in a memory than in the store: those of the
// rooms that leased.
func (r *run) raise(ctx context.Context) error {
	pairs := r.higherMarks()
	r.report.Higher, r.report.Raised = int64(len(pairs)), 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pagesAtOnce)
	for page := range slices.Chunk(pairs, marksPage) {
		group.Go(func() error { return r.raisePage(ctx, page) })
	}
	return group.Wait()
}

// higherMarks returns the marks that are higher in a memory, sorted.
func (r *run) higherMarks() []roomTag {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Keys(r.mu.higher), func(a, b roomTag) int {
		return cmp.Or(cmp.Compare(a.room, b.room), cmp.Compare(a.tag, b.tag))
	})
}

// raisePage raises marks in one transaction, until they are raised.
func (r *run) raisePage(ctx context.Context, page []roomTag) error {
	for range raiseAttempts {
		done, err := r.tryRaise(ctx, page)
		if done {
			r.raised(int64(len(page)))
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
		"%d marks could not be raised in %d tries; check etcd", len(page), raiseAttempts)
}

// raised counts marks that were raised. It reports the progress under the lock, to keep the
// order.
func (r *run) raised(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Raised += n
	r.progress("raising marks", r.report.Raised, r.report.Higher)
}

// tryRaise is one try of raisePage. After an error, or false, the marks are read
// again, which shows whether they were raised.
func (r *run) tryRaise(ctx context.Context, page []roomTag) (bool, error) {
	k := r.keys
	ops := make([]store.Op, len(page))
	for i, at := range page {
		ops[i] = store.OpGet(k.Mark(at.room, at.tag))
	}
	reply, err := r.gets(ctx, ops...)
	if err != nil {
		return false, err
	}
	txn := r.raises(page, reply)
	if len(txn.Then) == 0 {
		return true, nil
	}
	// A crash or a lost answer here leaves the marks raised or not: the next try, or
	// the next recover, reads them again.
	reply, err = r.l.Try(ctx, txn)
	crash.Here(crash.AfterRaise)
	return err == nil && reply.Succeeded, err
}

// raises returns the transaction that raises those marks of a page that are too low in reply.
func (r *run) raises(page []roomTag, reply store.Answer) store.Txn {
	r.mu.Lock()
	defer r.mu.Unlock()
	txn := store.Txn{If: []store.Cond{store.HasValue(r.found.epochKV.Key, r.found.epochKV.Value)}}
	for i, at := range page {
		var mark record.Mark
		key := r.keys.Mark(at.room, at.tag)
		cond := store.Absent(key)
		if kv, ok := reply.One(i); ok {
			var err error
			if mark, err = record.DecodeMark(kv); err != nil {
				r.mu.unreadable[key] = err
				continue // decide checked that the operator agreed
			}
			cond = store.Unchanged(kv)
		}
		if to := r.mu.higher[at]; mark.Next < to.next {
			mark = mark.Raised(to.next)
			// Without it the mark would get the margins of these recovers once more. A room would
			// then go further than their total says, and so would what a later restore loses. A total
			// above the halt's would be known to no recover after this one, should it break off.
			if len(mark.Eras) > 0 {
				mark.Total = max(mark.Total, min(to.total, r.found.epoch.MarginTotal))
			}
			txn.If, txn.Then = append(txn.If, cond), append(txn.Then, store.OpPut(key, mark.Encode()))
		}
	}
	return txn
}
