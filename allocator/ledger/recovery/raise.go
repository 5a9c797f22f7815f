package recovery

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/crash"
)

// A restored etcd has forgotten leases. What memories and mirrors know of them is compared with the store's keys, and
// keys that say less are raised: marks, windows of workers, machine IDs and the bounds of tags.

const (
	// keysPage is how many keys are compared or raised in one transaction: etcd
	// takes 128 operations.
	keysPage = 120
	// pagesAtOnce is how many such transactions are under way at once: leasing is
	// halted meanwhile. With four at once and a round trip of 50 ms, 300,000 marks took
	// over a minute of waiting.
	pagesAtOnce = 16
	// raiseAttempts bounds how often such a transaction is sent again.
	raiseAttempts = 5
)

// inPages calls use with pages of items, many at once.
func inPages[T any](ctx context.Context, all []T, use func(context.Context, []T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pagesAtOnce)
	for page := range slices.Chunk(all, keysPage) {
		group.Go(func() error { return use(ctx, page) })
	}
	return group.Wait()
}

// each reads the keys of items, and calls use with each item and its key as it was found.
func each[T any](ctx context.Context, r *session, all []T, key func(T) string, use func(T, []store.KV) error) error {
	how := raising[T]{
		keys:  func(item T) []string { return []string{key(item)} },
		value: func(item T, found [][]store.KV) ([]byte, error) { return nil, use(item, found[0]) },
	}
	return inPages(ctx, all, func(ctx context.Context, page []T) error {
		_, _, err := how.try(ctx, r, page)
		return err
	})
}

// raising says how the keys of one kind are raised.
type raising[T any] struct {
	failed string           // "marks could not be raised", say
	keys   func(T) []string // that are read for an item; the first one may be put
	// value returns what the first key is to be, given what was found; nil leaves it.
	value func(item T, found [][]store.KV) ([]byte, error)
}

// page raises keys in one transaction, until they are raised. It returns how many it put.
func (how raising[T]) page(ctx context.Context, r *session, page []T) (int64, error) {
	for range raiseAttempts {
		put, done, err := how.try(ctx, r, page)
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
	return 0, allocator.Errorf(allocator.Unavailable, "%d %s in %d tries; check etcd", len(page), how.failed,
		raiseAttempts)
}

// pages raises keys, one page after the other. It returns how many it put.
func (how raising[T]) pages(ctx context.Context, r *session, all iter.Seq[[]T]) (sum int64, err error) {
	for page := range all {
		put, err := how.page(ctx, r, page)
		if err != nil {
			return sum, err
		}
		sum += put
	}
	return sum, nil
}

// try is one try. After an error, or false, the keys are read again, which shows whether they were put.
func (how raising[T]) try(ctx context.Context, r *session, page []T) (put int64, done bool, err error) {
	var ops []store.Op
	first := make([]int, len(page)+1) // the operations of each
	for k, item := range page {
		for _, key := range how.keys(item) {
			ops = append(ops, store.OpGet(key))
		}
		first[k+1] = len(ops)
	}
	reply, err := r.gets(ctx, ops...)
	if err != nil {
		return 0, false, err
	}
	txn := store.Txn{If: []store.Cond{store.HasValue(r.found.epochKV.Key, r.found.epochKV.Value)}}
	for k, item := range page {
		value, err := how.value(item, reply.Got[first[k]:first[k+1]])
		if err != nil {
			return 0, false, err
		}
		if value == nil {
			continue
		}
		key := ops[first[k]].Get.Key
		cond := store.Absent(key)
		if kv, there := reply.One(first[k]); there {
			cond = store.Unchanged(kv)
		}
		txn.If, txn.Then = append(txn.If, cond), append(txn.Then, store.OpPut(key, value))
	}
	if len(txn.Then) == 0 {
		return 0, true, nil
	}
	// A crash or a lost answer here leaves the keys raised or not: the next try, or
	// the next recover, reads them again.
	reply, err = r.l.Try(ctx, txn)
	crash.Here(crash.AfterRaise)
	return int64(len(txn.Then)), err == nil && reply.Succeeded, err
}

// compare compares the marks of a room that an instance remembers, or that the mirror by saw, with the store's, and
// keeps those that are higher.
func (r *findings) compare(ctx context.Context, by string, room allocator.Room, marks []record.RememberedMark) error {
	key := func(m record.RememberedMark) string { return r.keys.Mark(room, m.Tag) }
	return each(ctx, &r.session, marks, key, func(m record.RememberedMark, found []store.KV) error {
		r.keepHigher(by, roomTag{room, m.Tag}, m, found)
		return nil
	})
}

// keepHigher keeps a mark that is higher than the store's, which was found.
func (r *findings) keepHigher(by string, at roomTag, m record.RememberedMark, found []store.KV) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mark, err := r.storedMark(found)
	was := r.higher[at]
	if err != nil || m.Next <= mark.Next || m.Next <= was.next && m.Total <= was.total {
		return
	}
	now := reached{max(m.Next, was.next), max(m.Total, was.total), max(was.known, mark.Next), was.by}
	if by == "" {
		now.known = max(now.known, m.Next)
	}
	if m.Next > was.next {
		now.by = by
	}
	r.higher[at] = now
	r.total = max(r.total, m.Total)
	r.learned++
}

// storedMark reads a mark that was found, zero for none, and notes one that cannot be read. The caller holds mu.
func (r *findings) storedMark(found []store.KV) (mark record.Mark, err error) {
	if len(found) > 0 {
		if mark, err = record.DecodeMark(found[0]); err != nil {
			r.bad[found[0].Key] = err
		}
	}
	return mark, err
}

// raiseMarks raises the marks that are higher in a memory than in the store: those of the
// rooms that leased.
func (r *findings) raiseMarks(ctx context.Context) error {
	higher := r.higherMarks(func(reached) bool { return true })
	r.report.Higher, r.report.Raised = int64(len(higher)), 0
	how := raising[roomTag]{
		failed: "marks could not be raised",
		keys:   func(at roomTag) []string { return []string{r.keys.Mark(at.room, at.tag)} },
		value:  r.raisedMark,
	}
	return inPages(ctx, higher, func(ctx context.Context, page []roomTag) error {
		_, err := how.page(ctx, &r.session, page)
		if err == nil {
			r.with(func() { // to keep the order of what is reported
				r.report.Raised += int64(len(page))
				r.progress("raising marks", r.report.Raised, r.report.Higher)
			})
		}
		return err
	})
}

// higherMarks returns the marks that are higher in a memory, of a kind, sorted.
func (r *findings) higherMarks(of func(reached) bool) (all []roomTag) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, h := range r.higher {
		if of(h) {
			all = append(all, at)
		}
	}
	slices.SortFunc(all, func(a, b roomTag) int {
		return cmp.Or(cmp.Compare(a.room, b.room), cmp.Compare(a.tag, b.tag))
	})
	return all
}

// raisedMark returns a mark that is too low in the store as it is to be. decide checked that the operator agreed to
// leave one that cannot be read.
func (r *findings) raisedMark(at roomTag, found [][]store.KV) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mark, err := r.storedMark(found[0])
	to := r.higher[at]
	if err != nil || mark.Next >= to.next {
		return nil, nil //nolint:nilerr // see above
	}
	mark = mark.Raised(to.next)
	// Without it the mark would get the margins of these recovers once more. A room would
	// then go further than their total says, and so would what a later restore loses. A total
	// above the halt's would be known to no recover after this one, should it break off.
	if len(mark.Eras) > 0 {
		mark.Total = max(mark.Total, min(to.total, r.found.epoch.MarginTotal))
	}
	return mark.Encode(), nil
}

// Windows of workers that end later in a memory than in the store are raised, as marks are: their owners, which
// answered, go on in them. The windows of an instance that is left out are not known. They end before the epoch's
// not_before, until which no other window begins.

// takeWorkers adds the workers of a memory. The caller holds mu.
func (r *findings) takeWorkers(leases []record.Lease, notBefore int64) {
	for _, l := range leases {
		was, known := r.workers[l.In()]
		if known && was.Until >= l.Until {
			continue
		}
		r.workers[l.In()] = was.Raised(l.Worker)
		r.learned++
	}
	r.notBefore = max(r.notBefore, notBefore)
}

// raiseWorkers raises the keys of workers that end later in a memory than in the store. What stands in
// another room's key counts for nothing: that room may lower it.
func (r *findings) raiseWorkers(ctx context.Context) (err error) {
	var all []record.Lease
	var layout record.Layout
	r.with(func() { all, layout = r.byNumber(r.workers) })
	r.report.Workers, err = r.putWorkers(ctx, layout, all, func(l record.Lease, n record.Number) (record.Worker, bool) {
		w := l.Worker
		w.FreeOf = n.Ours.FreeOf
		return w, w.Until > n.Ours.Until
	})
	return err
}

// freeWorkers frees the numbers whose owners go on of the new epoch's not_before: a worker's key says that the number
// is free, if its owner's window is the last one.
func (r *processes) freeWorkers(ctx context.Context, notBefore int64) error {
	windows, layout := r.goingOn()
	if notBefore <= r.cluster.Now().UnixMilli() || !layout.Upgraded() {
		return nil
	}
	_, err := r.putWorkers(ctx, layout, windows, func(l record.Lease, n record.Number) (record.Worker, bool) {
		w := n.Ours
		_, over := n.Over(w)
		last := w.Incarnation == l.Incarnation && w.From == l.From && w.Until == n.Last().Until && !over
		w.FreeOf = notBefore
		return w, last && w != n.Ours
	})
	return err
}

// goingOn returns the windows in which instances that answered go on, and a layout with all rooms
// and the formats that are known.
func (r *processes) goingOn() ([]record.Lease, record.Layout) {
	r.mu.Lock()
	defer r.mu.Unlock()
	windows := make(map[record.WorkerIn]record.Worker)
	for _, a := range r.byPlace {
		for _, l := range a.windows {
			windows[l.In()] = windows[l.In()].Raised(l.Worker)
		}
	}
	return r.byNumber(windows)
}

// byNumber returns workers by width, number and room, and a layout. Of the workers that share a key
// it returns the one that ends last. The caller holds mu.
func (r *findings) byNumber(workers map[record.WorkerIn]record.Worker) ([]record.Lease, record.Layout) {
	layout := record.Layout{Ever: r.rooms, Formats: r.extremes.Formats}
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

// putWorkers puts the keys of workers: each window into its own room's key, as to says. It returns how many it put.
func (r *findings) putWorkers(ctx context.Context, layout record.Layout, all []record.Lease,
	to func(record.Lease, record.Number) (w record.Worker, puts bool)) (int64, error) {
	how := raising[record.Lease]{
		failed: "workers could not be raised",
		keys: func(l record.Lease) (keys []string) {
			only := allocator.Range{Lower: l.Number, Upper: l.Number + 1}
			for _, in := range r.keys.WorkersIn(layout, l.Room, l.Bits, only) {
				keys = append(keys, in.Key)
			}
			return keys
		},
		value: func(l record.Lease, found [][]store.KV) ([]byte, error) {
			n := record.Number{}
			if numbers, _ := r.keys.Numbers(found, 0); len(numbers) > 0 {
				n = numbers[0]
			}
			if n.Err != nil {
				r.unreadable(record.Unreadable("", n.Err).Key, n.Err) // no process takes it
				return nil, nil
			}
			w, puts := to(l, n)
			if !puts {
				return nil, nil
			}
			return w.Encode(), nil
		},
	}
	return how.pages(ctx, &r.session, slices.Chunk(all, max(keysPage/(len(layout.Ever)+1), 1)))
}

// raiseMachines puts the keys of machine IDs back that a mirror saw in later use than the store: a
// client has the number, and no instance remembers it. Each room's key is a claim of its own, so a
// claim that is put back takes none away. The client that has a number is that of the key which was
// written last: so keys of one number are written in the order of their times, each in a
// transaction of its own.
func (r *findings) raiseMachines(ctx context.Context) (err error) {
	how := raising[mirror.Machine]{
		failed: "machine IDs could not be put back",
		keys: func(c mirror.Machine) []string {
			if c.Room != "" {
				return []string{r.keys.Client(c.Room, c.WorkerID)}
			}
			return []string{r.keys.Machine(c.WorkerID)}
		},
		value: func(c mirror.Machine, found [][]store.KV) ([]byte, error) {
			var stored record.Machine
			if kvs := found[0]; len(kvs) > 0 {
				if err := record.Decode(kvs[0], &stored); err != nil {
					r.unreadable(kvs[0].Key, err) // no client gets it
					return nil, nil
				}
				if stored.Last >= c.Last {
					return nil, nil
				}
			}
			return c.Encode(), nil
		},
	}
	r.report.Machines, err = how.pages(ctx, &r.session, slices.Values(machinePages(r.seenMachines())))
	return err
}

// seenMachines returns the machine IDs that mirrors saw, the one that was in use longest ago first.
func (r *findings) seenMachines() (all []mirror.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, c := range r.machines {
		all = append(all, mirror.Machine{WorkerIn: key, Machine: c})
	}
	slices.SortFunc(all, mirror.Machine.Compare)
	return all
}

// machinePages cuts machine IDs into pages that have each number once at most.
func machinePages(all []mirror.Machine) (pages [][]mirror.Machine) {
	for from := 0; from < len(all); {
		numbers, to := make(map[record.WorkerID]bool), from
		for ; to < len(all) && to < from+keysPage && !numbers[all[to].WorkerID]; to++ {
			numbers[all[to].WorkerID] = true
		}
		pages, from = append(pages, all[from:to]), to
	}
	return pages
}

// raiseTags raises the largest steps and the skips of tags to what mirrors saw: d of a margin
// follows from the step, and lost leases lie above the skips. A tag of which the store has no key
// it puts back as a tombstone.
func (r *findings) raiseTags(ctx context.Context) error {
	how := raising[allocator.Tag]{
		failed: "tags could not be raised",
		keys:   func(name allocator.Tag) []string { return []string{r.keys.Tag(name)} },
		value:  r.raisedTag,
	}
	names, gone := r.boundTags()
	if _, err := how.pages(ctx, &r.session, slices.Chunk(append(gone, names...), keysPage)); err != nil {
		return err
	}
	r.report.PutBack = gone
	return nil
}

// boundTags returns the tags of which mirrors saw more than the store has, and those of which the store has no key,
// sorted. Older programs would not read a tombstone.
func (r *findings) boundTags() (names, gone []allocator.Tag) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.bounds)) {
		if r.bounds[name].life == "" {
			names = append(names, name)
		} else if r.extremes.Upgraded() {
			gone = append(gone, name)
		}
	}
	return names, gone
}

// raisedTag returns a tag's key as it is to be. One that was created meanwhile stays.
func (r *findings) raisedTag(name allocator.Tag, found [][]store.KV) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, there := r.bounds[name], len(found[0]) > 0
	if b.life != "" && !there {
		lost, err := r.keys.Lost(name, b.life, b.step, b.least, r.cluster.Now())
		if err != nil {
			return nil, allocator.Errorf(allocator.Refused, "a mirror has a damaged tag: %w", err)
		}
		return lost.Encode(record.RandomHex()), nil
	}
	if b.life != "" || !there {
		return nil, nil
	}
	tag, err := record.ReadAs[record.Tag](r.keys, found[0][0])
	if err != nil {
		return nil, nil //nolint:nilerr // nothing is leased of it: see listUnreadable
	}
	changed := b.step > tag.LargestStep
	tag.LargestStep = max(tag.LargestStep, b.step)
	tag.Skips = maps.Clone(tag.Skips)
	for room, to := range b.skips {
		if to <= skipOf(tag, room) {
			continue
		}
		switch changed = true; {
		case room == "":
			tag.Skip = to
			continue
		case tag.Skips == nil:
			tag.Skips = make(record.Skips)
		}
		tag.Skips[room] = to
	}
	if b.least > tag.LeastEver() && r.extremes.Upgraded() {
		tag.Least, changed = b.least, true
	}
	if !changed {
		return nil, nil
	}
	return tag.Encode(record.RandomHex()), nil
}

// skipOf returns a tag's skip of a room, or of all rooms.
func skipOf(t record.Tag, room allocator.Room) int64 {
	if room == "" {
		return t.Skip
	}
	return t.Skips[room]
}
