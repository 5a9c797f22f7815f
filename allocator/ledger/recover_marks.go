package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/crash"
)

// recoverTag is what is known of a tag.
type recoverTag struct {
	known int64 // the largest next of any source
	step  int64 // its max_step
	limit int64
}

// learn takes over what was remembered: tags, rooms and layout versions, even
// those that the store has forgotten.
func (r *recovery) learn() {
	r.rooms = slices.Concat(r.layout.Ever, r.seen.Ever)
	r.version = max(r.layout.Layout.Version, r.seen.Layout.Version)
	for _, m := range r.memories {
		r.rooms = append(append(r.rooms, m.Room), m.Rooms...)
		r.version = max(r.version, m.Version)
		for tag, next := range m.Marks {
			r.tag(tag).know(mutated("recover-by-store", next, 0))
		}
	}
	slices.Sort(r.rooms)
	r.rooms = slices.Compact(r.rooms)
	r.version = newVersion(r.version, now())
	r.report.Version = r.version
}

// newVersion returns the layout version of a recover: above the newest that is
// known, and above those that nobody who answered knows. An instance that was left
// out may serve one of those: it would take a version below its own, or the same
// one again, for one that it serves already, and its registration would say so,
// which is what migrations wait for. As many are lost as were made since the
// backup, an earlier recover's among them: no step above what is known is surely
// enough, but no layout is made within the millisecond of the one before, so the
// time at which each recover is made keeps them in order.
//
// Uniqueness does not depend on it: leases compare the epoch. So a clock that goes
// wrong is no worse than the step alone, and one far in the future needs no bound:
// until its time comes, recovers have the step alone, and as a Duration ends 292
// years after 2000, a version of a clock is below 2^44, with room for as many steps
// and moves as anybody makes.
func newVersion(known int64, at time.Time) int64 {
	step := known + recoverVersions
	began := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the later, the fewer digits people read
	return mutated("recover-versions", max(step, at.Sub(began).Milliseconds()), step)
}

// tag returns what is known of a tag.
func (r *recovery) tag(name allocator.Tag) *recoverTag {
	t, ok := r.tags[name]
	if !ok {
		t = &recoverTag{step: allocator.DefaultSettings().MaxStep, limit: allocator.MaxID}
		r.tags[name] = t
	}
	return t
}

func (t *recoverTag) know(next int64) { t.known = max(t.known, next) }

// target returns what a tag's marks are raised to. Not cut at the tag's limit,
// which is one of the backup's: it may have been raised since, and IDs leased
// above it, by who does not answer. A mark above the limit makes a tag exhausted,
// as one at it does; but should somebody raise the limit again, the margin counts.
func (r *recovery) target(t *recoverTag) int64 {
	margin := r.cfg.Margin
	if margin == 0 {
		margin = t.step // LargestStep is 2^40 and there are fewer than 2^22 instances: no overflow
		if int64(r.present) < allocator.MaxID/t.step {
			margin *= int64(r.present)
		}
	}
	if t.known > allocator.MaxID-margin {
		return allocator.MaxID
	}
	return t.known + margin
}

// lost is the version of the stretch that was lost: one that the store never
// had.
func (r *recovery) lost() int64 { return r.layout.Layout.Version + 1 }

// read reads all tags and marks that the store has.
func (r *recovery) read(ctx context.Context) error {
	const pageSize = 1000
	for from, end := r.l.keys.tags(), prefixEnd(r.l.keys.tags()); ; {
		answer, err := r.gets(ctx, page(from, end, pageSize))
		if err != nil {
			return err
		}
		for _, kv := range answer.Got[0] {
			t, err := r.l.decodeTag(kv)
			if err != nil {
				return err
			}
			known := r.tag(t.Name)
			known.know(t.Settings.Start)
			known.step, known.limit = t.Settings.Chain.MaxStep, t.Settings.Limit
			from = kv.Key + "\x00"
		}
		r.progress("reading tags", int64(len(r.tags)), 0)
		if len(answer.Got[0]) < pageSize {
			break
		}
	}
	marks := int64(0)
	for _, room := range r.rooms {
		from, end := r.l.keys.marksOf(room), prefixEnd(r.l.keys.marksOf(room))
		for {
			answer, err := r.gets(ctx, page(from, end, pageSize))
			if err != nil {
				return err
			}
			found := answer.Got[0]
			if err := r.readMarks(ctx, found); err != nil {
				return err
			}
			marks += int64(len(found))
			r.progress("reading marks", int64(len(r.tags)), marks)
			if len(found) < pageSize {
				break
			}
			from = found[len(found)-1].Key + "\x00"
		}
	}
	return nil
}

// readMarks takes over marks. One that a recover which did not end has raised
// counts as it was before, or each run would raise it further.
func (r *recovery) readMarks(ctx context.Context, found []KV) error {
	for chunk := range slices.Chunk(found, comparePage) {
		before := make(map[string]int64)
		if r.again {
			ops := make([]Op, 0, len(chunk))
			for _, kv := range chunk {
				key, err := r.l.keys.parse(kv.Key)
				if err != nil {
					return err
				}
				ops = append(ops, get(r.l.keys.era(key.room, key.tag, r.lost())))
			}
			answer, err := r.gets(ctx, ops...)
			if err != nil {
				return err
			}
			for i := range chunk {
				if kv, ok := answer.one(i); ok {
					era, err := decodeEra(kv)
					if err != nil {
						return err
					}
					before[chunk[i].Key] = era.First
				}
			}
		}
		for _, kv := range chunk {
			key, err := r.l.keys.parse(kv.Key)
			if err != nil {
				return err
			}
			mark, err := decodeMark(kv)
			if err != nil {
				return err
			}
			next := mark.Next
			if was, ok := before[kv.Key]; ok {
				next = was
			}
			r.tag(key.tag).know(next)
		}
	}
	return nil
}

// pair is a mark to be raised.
type pair struct {
	tag  allocator.Tag
	room allocator.Room
}

// raise raises the marks of all rooms for each tag to one number, and writes
// the stretch that is lost by that as an era of its own.
func (r *recovery) raise(ctx context.Context) error {
	if len(r.rooms) > allocator.MaxRooms {
		return allocator.Errorf(allocator.Refused, "there were %d rooms in all; a cluster can have had %d", len(r.rooms), allocator.MaxRooms)
	}
	if !r.cfg.Apply {
		r.report.Marks = int64(len(r.tags)) * int64(len(r.rooms))
		return nil
	}
	var batch []pair
	tags := int64(0)
	flush := func() error {
		for attempt := 0; len(batch) > 0; attempt++ {
			done, err := r.raiseBatch(ctx, batch)
			if err != nil && (attempt == haltAttempts || allocator.KindOf(err) != allocator.Unavailable) {
				return err
			}
			if !done && attempt == haltAttempts {
				return allocator.Errorf(allocator.Conflict, "marks are written by others, though leasing is halted: another program?")
			}
			if done {
				batch = batch[:0]
			} else if !pause(ctx) {
				return ctx.Err()
			}
		}
		r.progress("raising marks", tags, r.report.Marks)
		return nil
	}
	for _, tag := range sortedTags(r.tags) {
		for _, room := range r.rooms {
			if batch = append(batch, pair{tag, room}); len(batch) == recoverBatch {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		tags++
	}
	return flush()
}

// raiseBatch raises marks. False means that it is to be done again.
func (r *recovery) raiseBatch(ctx context.Context, batch []pair) (bool, error) {
	k := r.l.keys
	ops := make([]Op, 0, 3*len(batch))
	for _, p := range batch {
		ops = append(ops, get(k.mark(p.room, p.tag)), get(k.era(p.room, p.tag, r.lost())), Op{Get: &Get{
			Interval: Interval{Key: k.eras(p.room, p.tag), End: k.era(p.room, p.tag, r.lost())}, Limit: 1, Descending: true,
		}})
	}
	answer, err := r.gets(ctx, ops...)
	if err != nil {
		return false, err
	}
	txn := Txn{If: []Cond{hasValue(k.epoch(), r.epoch.Value)}}
	raised := int64(0)
	for i, p := range batch {
		var mark Mark
		key := k.mark(p.room, p.tag)
		cond := absent(key)
		if kv, ok := answer.one(3 * i); ok {
			if mark, err = decodeMark(kv); err != nil {
				return false, err
			}
			cond = unchanged(kv)
		}
		from := mark.Next
		if kv, ok := answer.one(3*i + 2); ok { // above the mark only where that was deleted by hand
			last, err := decodeEra(kv)
			if err != nil {
				return false, err
			}
			from = max(from, last.End)
			r.tags[p.tag].know(last.End)
		}
		to := r.target(r.tags[p.tag])
		if mark.Next >= to {
			continue
		}
		era := Era{Stamp: Stamp{Epoch: r.epochNonce(), Revision: r.epoch.ModRevision}, Version: r.lost(), First: from, End: to}
		if kv, ok := answer.one(3*i + 1); ok {
			was, err := decodeEra(kv)
			if err != nil {
				return false, err
			}
			if era.First = was.First; was.End >= to {
				era = was // never less than an earlier run wrote
			}
		}
		txn.If = append(txn.If, cond)
		txn.Then = append(txn.Then, put(key, mutated("recover-each-room", mark.raised(era.End), r.byOwn(p, mark)).encode()))
		if era.First < era.End { // else nothing was lost but a mark that was deleted by hand
			txn.Then = append(txn.Then, put(k.era(p.room, p.tag, r.lost()), era.encode()))
		}
		raised++
	}
	if raised == 0 {
		return true, nil
	}
	// A crash or a lost answer here leaves marks raised or not: who reads them
	// again sees which.
	if answer, err = r.l.try(ctx, txn); err != nil || !answer.Succeeded {
		return false, err
	}
	crash.Here(crash.AfterRaise)
	r.report.Marks += raised
	return true, nil
}

var errOtherRecover = &allocator.Error{Kind: allocator.Conflict, Msg: "another `march recover` began meanwhile, or ended: see `march audit list`"}

func (r *recovery) epochNonce() string {
	var e epochValue
	if decode(r.epoch, &e) != nil || e.Halted == nil {
		return "" // Era.fits refuses it
	}
	return e.Halted.Nonce
}
