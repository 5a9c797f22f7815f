package worker

import (
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// candidate is a worker that may be taken.
type candidate struct {
	record.Number
	by   record.InstanceID // the last owner, empty for none
	life string            // its incarnation
	free int64             // the earliest begin of a window, Unix ms
	mine bool              // a Take of this process wrote it, and did not get the answer
	wait bool              // free is the epoch's NotBefore, and not the end of the owner's window
}

// field is the candidates of a request.
type field struct {
	now     int64
	name    record.InstanceID // of this instance
	callers allocator.Range   // the workers that callers may have
	caller  bool              // the request is for a caller
	known   []candidate       // with a key, by number
	unused  []candidate       // without a key, some of the first
}

// unusedLook is how many of the unused workers a Take chooses among at random, so that
// processes that start together seldom choose the same, and numbers stay low.
const unusedLook = 16

// choose returns the worker to take, in the order of section 8:
//
//   - the one that a lost answer left to this process;
//   - the one that this instance had before, if its window is over;
//   - one with a window that ended more than record.MaxAhead ago, at random;
//   - one that was never used;
//   - the one that is free soonest, after a wait perhaps.
//
// For an instance's own use, workers that callers may have come after the others. It returns
// false if there is no worker at all.
func (f field) choose(random func(n int64) int64) (candidate, bool) {
	var own, over []candidate
	var soonest *candidate
	for k := range f.known {
		c := &f.known[k]
		reserved := !f.caller && f.callers.Contains(c.Number.Number)
		switch {
		case c.mine:
			return *c, true
		case c.by == f.name && c.free <= f.now && !f.caller:
			own = append(own, *c)
		case !reserved && c.free < f.now-record.MaxAhead.Milliseconds():
			over = append(over, *c)
		}
		if soonest == nil || c.free < soonest.free {
			soonest = c
		}
	}
	if len(own) > 0 {
		return latest(own), true
	}
	if len(over) > 0 {
		return over[random(int64(len(over)))], true
	}
	if n := int64(len(f.unused)); n > 0 {
		if c := f.unused[random(n)]; soonest == nil || c.free <= f.now || c.free < soonest.free {
			return c, true
		}
	}
	if soonest == nil {
		return candidate{}, false
	}
	return *soonest, true
}

// latest returns the candidate with the window that ended last: the worker that the instance
// had before.
func latest(all []candidate) candidate {
	c := all[0]
	for _, other := range all[1:] {
		if other.free > c.free {
			c = other
		}
	}
	return c
}

// claim chooses a worker that is free by now, and marks it so that no other Take of this
// process chooses it meanwhile. Its error is a *BusyError, for a caller a *CallersError or that of
// its Holder, or NoRange if this process has all workers of the slice.
func (w *Workers) claim(f ledger.Footing, r Request, slice allocator.Range,
	numbers ledger.Numbers) (candidate, error) {
	i := w.instance
	now := w.now()
	var said pending.Lines
	defer said.Write(w.cfg.Logger)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(now)
	of := field{now: now, name: record.NewInstanceID(i.Room(), i.Name()), caller: r.Caller}
	if !r.Caller && !r.Pin.set {
		of.callers = allocator.Range{Lower: slice.Upper - w.callers(slice), Upper: slice.Upper}
	}
	there := make(map[int64]bool, len(numbers.Found))
	for _, n := range numbers.Found {
		there[n.Number] = true
		if n.Err != nil {
			said.Add(hclog.Error, "a worker's key cannot be read: it is not taken", "error", n.Err)
			continue
		}
		if _, held := w.mu.held[n.WorkerID]; held {
			continue
		}
		last := n.Last()
		c := candidate{Number: n, by: last.ID(), life: last.Incarnation, free: last.Until}
		// This holds also if this process had the worker before: that window began elsewhere.
		if from, unknown := w.mu.unknownTakes[n.WorkerID]; unknown && n.Ours.From == from &&
			n.Ours.Incarnation == i.Incarnation() && n.Ours.Stamp.Epoch == f.Stamp.Epoch {
			if _, over := n.Over(n.Ours); !over {
				c.free, c.mine = from, true
			}
		}
		if !n.Free(f.Stamp.Epoch, f.NotBefore) && c.free < f.NotBefore {
			c.free, c.wait = f.NotBefore, true
		}
		of.known = append(of.known, c)
	}
	if numbers.All { // otherwise there are keys that were not read
		others := allocator.Range{Lower: slice.Lower, Upper: slice.Upper - of.callers.Width()}
		if of.unused = w.unused(f, r.Bits, others, there); len(of.unused) == 0 {
			of.unused = w.unused(f, r.Bits, of.callers, there)
		}
	}
	c, ok := of.choose(w.cfg.Rand)
	if r.Caller && (!ok || c.free > now && c.by != "") {
		return c, &CallersError{Room: i.Room(), Bits: r.Bits, Workers: slice.Width()}
	}
	if !ok {
		return c, allocator.Errorf(allocator.NoRange, "this process has all %d workers of the slice", slice.Width())
	}
	if c.free > now {
		if c.wait {
			c.by = ""
		}
		busy := &BusyError{Worker: c.WorkerID, By: c.by, Until: time.UnixMilli(c.free), Pinned: r.Pin.set}
		busy.Beat, busy.Gone = lastBeat(numbers.Heartbeats, c.life)
		return c, busy
	}
	if r.Caller {
		if err := w.another(r.By, r.Bits, 0, w.free(r, now, slice, of.known, there)); err != nil {
			return c, err
		}
	}
	w.mu.held[c.WorkerID] = &Worker{request: r, id: c.WorkerID, claimed: true}
	return c, nil
}

// free returns how many of the workers for callers, which are slice, are free. known are those with a key that this
// process does not hold. The caller of free has the lock.
func (w *Workers) free(r Request, now int64, slice allocator.Range, known []candidate, there map[int64]bool) int64 {
	free := slice.Width() - int64(len(there))
	for _, c := range known {
		if c.free <= now {
			free++
		}
	}
	for id := range w.mu.held {
		if id.Bits == r.Bits && slice.Contains(id.Number) && !there[id.Number] {
			free--
		}
	}
	return free
}

// another returns nil if a caller may hold another worker of a width while free ones are left, where so many of those
// that it holds are passed over. The error says when the first of its windows ends. The caller of another has the lock.
func (w *Workers) another(by allocator.Holder, bits int, passed, free int64) error {
	has, all, now, ends := -passed, -passed, w.now(), int64(math.MaxInt64)
	for id, held := range w.mu.held {
		if !held.request.Caller || held.request.By.Name != by.Name {
			continue
		}
		all++
		if id.Bits == bits {
			has++
		}
		if !held.claimed {
			ends = min(ends, held.Window().Until)
		}
	}
	if ends == math.MaxInt64 {
		ends = now
	}
	after := time.Duration(ends-now)*time.Millisecond + record.MaxAhead
	return by.Another(fmt.Sprintf("workers of %d bits", bits), has, all, free, after)
}

// MayKeep returns nil if a caller may go on with a worker: its quota may be smaller than when it took the worker. The
// error is TooMany.
func (w *Workers) MayKeep(held *Worker, by allocator.Holder) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(w.now())
	by.Share = 100 // what it has it keeps
	return w.another(by, held.id.Bits, 1, 1)
}

// lastBeat returns when a process last sent a heartbeat, the zero time if that is not known, and whether it is
// registered no longer.
func lastBeat(beats []store.KV, incarnation string) (at time.Time, gone bool) {
	for _, kv := range beats {
		var v record.Heartbeat
		if record.Decode(kv, &v) == nil && v.Incarnation == incarnation {
			return v.Time, false
		}
	}
	return time.Time{}, len(beats) < beatsRead // else there are more
}

// unused returns some of the first workers of a slice that have no key and that no Take of this
// process is about to claim. The caller holds the lock.
func (w *Workers) unused(f ledger.Footing, bits int, slice allocator.Range, there map[int64]bool) (some []candidate) {
	for number := slice.Lower; number < slice.Upper && len(some) < unusedLook; number++ {
		id := record.WorkerID{Bits: bits, Number: number}
		if _, held := w.mu.held[id]; !there[number] && !held {
			some = append(some, candidate{Number: record.Number{WorkerID: id}, free: f.NotBefore})
		}
	}
	return some
}

// forget drops the workers that a recover took from this instance because it went on without
// it: no owner gives them back. It also drops the workers of callers with windows that are over
// even by a clock that is behind by the most that clocks may differ. Each may be taken again,
// from its end on. The caller holds the lock.
func (w *Workers) forget(now int64) {
	for id, held := range w.mu.held {
		switch {
		case held.claimed:
		case !w.instance.HoldsWorker(id):
			_ = held.loses(&LostError{Worker: id})
			delete(w.mu.held, id)
		case held.request.Caller && held.Window().Until < now-record.MaxAhead.Milliseconds():
			_ = held.loses(errEnded)
			delete(w.mu.held, id)
			w.instance.ReleaseWorker(id)
		}
	}
}

var errEnded = &allocator.Error{Kind: allocator.Unavailable, Msg: "the window of a caller's worker is over"}
