package recovery

import (
	"cmp"
	"context"
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
	// halted meanwhile. With four, 300,000 marks took over a minute where etcd is 50 ms
	// away, for waiting alone.
	pagesAtOnce = 16
	// raiseAttempts bounds how often such a transaction is sent again.
	raiseAttempts = 5
	// progressEvery is after how many tags progress is told.
	progressEvery = 1000
)

// compare holds marks that an instance of a room remembers against the store, and
// keeps those that are higher.
func (r *run) compare(ctx context.Context, room allocator.Room, marks []record.RememberedMark) error {
	for page := range slices.Chunk(marks, marksPage) {
		ops := make([]store.Op, len(page))
		for k, m := range page {
			ops[k] = store.OpGet(r.keys.Mark(room, m.Tag))
		}
		reply, err := r.gets(ctx, ops...)
		if err != nil {
			return err
		}
		r.mu.Lock()
		for k, m := range page {
			var mark record.Mark
			if kv, ok := reply.One(k); ok {
				if mark, err = record.DecodeMark(kv); err != nil {
					r.mu.unreadable[kv.Key] = err
					continue
				}
			}
			if at := (roomTag{room, m.Tag}); m.Next > max(mark.Next, r.mu.higher[at]) {
				r.mu.higher[at] = m.Next
				r.mu.learned++
			}
		}
		r.mu.Unlock()
	}
	return nil
}

// raise raises the marks that a memory knows to be higher than the store's: those of
// the rooms that leased.
func (r *run) raise(ctx context.Context) error {
	r.mu.Lock()
	pairs := make([]roomTag, 0, len(r.mu.higher))
	for at := range r.mu.higher {
		pairs = append(pairs, at)
	}
	r.mu.Unlock()
	slices.SortFunc(pairs, func(a, b roomTag) int { return cmp.Or(cmp.Compare(a.room, b.room), cmp.Compare(a.tag, b.tag)) })
	r.report.Higher, r.report.Raised = int64(len(pairs)), 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pagesAtOnce)
	for page := range slices.Chunk(pairs, marksPage) {
		group.Go(func() error { return r.raisePage(ctx, page) })
	}
	return group.Wait()
}

// raisePage raises marks in one transaction, until they are raised.
func (r *run) raisePage(ctx context.Context, page []roomTag) error {
	for range raiseAttempts {
		done, err := r.tryRaise(ctx, page)
		if done {
			r.mu.Lock()
			r.report.Raised += int64(len(page))
			r.progress("raising marks", r.report.Raised, r.report.Higher)
			r.mu.Unlock()
			return nil
		}
		if err != nil && allocator.KindOf(err) != allocator.Unavailable {
			return err
		}
		if !store.Pause(ctx) {
			return brokenOff(ctx)
		}
	}
	return allocator.Errorf(allocator.Unavailable, "etcd did not take the raise of %d marks in %d tries", len(page), raiseAttempts)
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
	txn := store.Txn{If: []store.Cond{store.HasValue(r.halt.Key, r.halt.Value)}}
	r.mu.Lock()
	for i, at := range page {
		var mark record.Mark
		key := k.Mark(at.room, at.tag)
		cond := store.Absent(key)
		if kv, ok := reply.One(i); ok {
			if mark, err = record.DecodeMark(kv); err != nil {
				r.mu.unreadable[key] = err
				continue // decide has the operator's word for it
			}
			cond = store.Unchanged(kv)
		}
		if to := r.mu.higher[at]; mark.Next < to {
			mark = mark.Raised(to)
			txn.If, txn.Then = append(txn.If, cond), append(txn.Then, store.OpPut(key, mark.Encode()))
		}
	}
	r.mu.Unlock()
	if len(txn.Then) == 0 {
		return true, nil
	}
	// A crash or a lost answer here leaves the marks raised or not: the next try, or
	// the next recover, reads them again.
	reply, err = r.l.Try(ctx, txn)
	crash.Here(crash.AfterRaise)
	return err == nil && reply.Succeeded, err
}

// decide brings the report up to date, and chooses margin and layout. Its error is
// Refused where an operator has to say more first.
func (r *run) decide(ctx context.Context) error {
	err := r.complete()
	if reserveErr := r.leastReserve(ctx); reserveErr != nil {
		return reserveErr
	}
	r.chooseMargin()
	layoutErr := r.chooseLayout()
	if limitErr := r.limits(ctx); limitErr != nil {
		return limitErr
	}
	return cmp.Or(r.unreadableMarks(), err, layoutErr)
}

// leastReserve reads the least reserve of all tags: a step lasts for the reserve of its
// tag, so of such a tag an instance leases most steps in the same time. Tags that the
// backup does not know may have the default. It reads them before leasing is halted: an
// instance that the operator named may fall silent later.
func (r *run) leastReserve(ctx context.Context) error {
	r.reserve = allocator.DefaultSettings().Reserve
	if r.cfg.Margin != nil || len(r.report.Missing) == 0 && len(r.cfg.Without) == 0 {
		return nil
	}
	_, err := r.l.EachTagIn(ctx, nil, func(t record.Tag, _ map[allocator.Room]record.Mark) error {
		r.reserve = min(r.reserve, t.Settings.Chain.Reserve)
		return nil
	})
	return err
}

// chooseMargin chooses the margin of this recover: none where every instance answered,
// else a guess for each that did not. It grows where an instance falls silent after the
// margin was chosen first.
func (r *run) chooseMargin() {
	p := r.report
	switch {
	case r.cfg.Margin != nil:
		p.Margin = *r.cfg.Margin
	default:
		age := max(0, r.cluster.Now().Sub(p.Beat))
		p.Margin = max(p.Margin, int64(len(p.Missing))*(1+2*int64(age/r.reserve)))
	}
	p.Total = r.mu.total + p.Margin
}

// chooseLayout chooses the layout that is put in force, and its version.
func (r *run) chooseLayout() error {
	p := r.report
	p.Known = r.mu.layout
	choice := r.cfg.Layout
	if choice == LayoutUndecided {
		if stored := p.Stored.Layout; stored.Ranges != nil && p.Known.Version > stored.Version && !p.Known.Equal(stored) {
			p.Layout = stored // to be shown
			return allocator.Errorf(allocator.Refused, "etcd has layout version %d, but an instance knows version %d, with other ranges: choose with --layout known, --layout stored or --layout FILE",
				stored.Version, p.Known.Version)
		}
		choice = LayoutStored
	}
	switch choice {
	case LayoutKnown:
		p.Layout = p.Known
	case LayoutGiven:
		p.Layout = r.cfg.Given
	default:
		p.Layout = p.Stored.Layout
	}
	if p.Layout.Ranges == nil {
		return allocator.Errorf(allocator.Refused, "the layout in etcd cannot be read (%v): give one with --layout FILE, or with --layout known that of an instance", r.found.layoutErr)
	}
	if err := p.Layout.Validate(); err != nil {
		return err
	}
	p.Layout.Version = newVersion(r.mu.version, r.cluster.Now())
	if len(r.mu.rooms) > allocator.MaxRooms {
		return allocator.Errorf(allocator.Refused, "etcd, instances and journals know of %d rooms in all; a cluster can have had %d: recover from another backup, one that knows the rooms", len(r.mu.rooms), allocator.MaxRooms)
	}
	if rooms := record.Union(r.mu.rooms, p.Layout.Rooms()); len(rooms) > allocator.MaxRooms {
		return allocator.Errorf(allocator.Refused, "there were %d rooms in all; a cluster can have had %d: give a layout without new rooms (--layout)", len(rooms), allocator.MaxRooms)
	}
	return nil
}

// unreadableMarks refuses to go on where a mark cannot be read, and the operator did
// not say to leave its tag as it is.
func (r *run) unreadableMarks() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listUnreadable()
	for key := range r.mu.unreadable {
		parts, err := r.keys.Parse(key)
		if err == nil && parts.Kind == "marks" && !slices.Contains(r.cfg.Skip, parts.Tag) {
			return allocator.Errorf(allocator.Refused, "%s cannot be read: repair it, or leave tag %s as it is with --skip-tag %s", key, parts.Tag, parts.Tag)
		}
	}
	return nil
}

// limits names the tags that the margin takes to their limits.
func (r *run) limits(ctx context.Context) error {
	if r.report.Margin == 0 || r.found.layoutErr != nil {
		return nil
	}
	stored, err := r.l.RefreshTo(ctx, 0)
	if err != nil {
		return err
	}
	tags := int64(0)
	bad, err := r.l.EachTagIn(ctx, stored.Ever, func(t record.Tag, marks map[allocator.Room]record.Mark) error {
		if r.found.layout.Floor("", r.report.Total, t.Terms(), marks).Least >= t.Settings.Limit {
			r.report.AtLimit = append(r.report.AtLimit, t.Name)
		}
		if tags++; tags%progressEvery == 0 {
			r.progress("reading tags", tags, 0)
		}
		return nil
	})
	for _, key := range bad {
		r.unreadable(key.Key, key.Err)
	}
	return err
}

// begin begins the new epoch: with the list of processes that answered, the etcd
// cluster's present ID, a fresh beat, and the layout as a new version.
func (r *run) begin(ctx context.Context) error {
	r.progress("beginning a new epoch", 0, 0)
	k, f := r.keys, &r.found
	var status store.Status
	var oldest []store.Op
	err := together(ctx, func(ctx context.Context) (err error) {
		status, err = r.cluster.Status(ctx)
		return err
	}, func(ctx context.Context) error {
		oldest = r.l.MakeRoom(ctx, k.Layouts())
		return nil
	})
	if err != nil {
		return err
	}
	if status.ClusterID != f.identity.ClusterID {
		return allocator.Errorf(allocator.Unavailable, "etcd cluster %x answers by now, and recover began in %x: check --etcd, and run it again", status.ClusterID, f.identity.ClusterID)
	}
	p := r.report
	r.mu.Lock()
	p.Layout.Version = newVersion(r.mu.version, r.cluster.Now())
	r.chooseMargin()
	stored := r.record()
	answered := &record.Answered{Epoch: record.RandomHex(), Incarnations: []string{}}
	for incarnation := range r.mu.taken {
		answered.Incarnations = append(answered.Incarnations, incarnation)
	}
	r.mu.Unlock()
	slices.Sort(answered.Incarnations)
	beat := record.NewBeat(status, r.cluster.Now())
	epoch := record.Encode(&record.Epoch{Epoch: answered.Epoch, MarginTotal: p.Total, Layout: stored.Layout.Version, Ended: &record.EndedHalt{Nonce: r.nonce, Stopped: r.mu.latest}})
	value := stored.Encode(record.RandomHex())
	txn := store.Txn{
		If: []store.Cond{
			store.HasValue(k.Epoch(), r.halt.Value), store.Unchanged(f.layoutKV), store.Unchanged(f.identityKV), store.Absent(k.LayoutAt(stored.Layout.Version)),
		},
		Then: []store.Op{
			store.OpPut(k.Epoch(), epoch), store.OpPut(k.Answered(), record.Encode(answered)), store.OpPut(k.Layout(), value), store.OpPut(k.LayoutAt(stored.Layout.Version), value),
			store.OpPut(k.Identity(), record.Encode(&f.identity)), store.OpPut(k.Beat(), record.Encode(&beat)),
			r.audit("recover", k.Epoch(), r.halt.Value, epoch),
		},
	}
	reply, err := r.l.Try(ctx, txn.With(oldest))
	if err != nil || !reply.Succeeded { // unknown, or sent twice: the epoch is random
		check, checkErr := r.l.Read(ctx, store.Txn{Then: []store.Op{store.OpGet(k.Epoch())}})
		kv, ok := check.FirstIfAny()
		if checkErr != nil || !ok || string(kv.Value) != string(epoch) {
			return cmp.Or(err, error(errOtherRecover))
		}
	}
	p.Epoch = answered.Epoch
	return nil
}

// record returns the layout that is put in force, as it is stored. The caller holds
// mu.
func (r *run) record() record.Layout {
	return record.Layout{Layout: r.report.Layout, Ever: record.Union(r.mu.rooms, r.report.Layout.Rooms()), Time: r.cluster.Now(), Actor: r.cfg.Actor}.
		After(r.mu.extremes)
}
