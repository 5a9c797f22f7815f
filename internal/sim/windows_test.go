package sim_test

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
)

// window is a transaction by which a process asks for the window of a worker.
type window struct {
	worker     record.WorkerID
	record     record.Worker
	sent, done time.Time
	lost       string // why it does not count; empty if it counts
}

// windowOf returns the window that a transaction of an instance asks for, false if it asks for
// none. An instance writes only its own windows.
func (l *link) windowOf(txn store.Txn) (window, bool) {
	if l.clock == nil || len(txn.Then) == 0 || txn.Then[0].Put == nil {
		return window{}, false
	}
	put := txn.Then[0].Put
	key, err := keys.Parse(put.Key)
	if err != nil || key.Kind != record.Windows && key.Kind != record.Workers {
		return window{}, false
	}
	w := window{worker: key.Worker, sent: time.Now()}
	if err := json.Unmarshal(put.Value, &w.record); err != nil {
		l.w.Errorf("%s writes a worker: %v", l.name, err)
	}
	l.mu.Lock()
	if l.mu.incarnation == "" {
		l.mu.incarnation = w.record.Incarnation
	}
	other := l.mu.incarnation != w.record.Incarnation
	l.mu.Unlock()
	if other {
		l.w.Errorf("%s writes a window of worker %s for another process, from %d until %d", l.name, w.worker,
			w.record.From, w.record.Until)
	}
	return w, true
}

// windowWith returns the latest counting window of a worker that contains a tick.
func (l *link) windowWith(worker record.WorkerID, from, until int64) (window, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range slices.Backward(l.mu.windows) {
		if w.lost == "" && w.worker == worker && w.record.From <= from && until <= w.record.Until {
			return w, true
		}
	}
	return window{}, false
}

// timedID is an issued time-ordered ID: its process, its window and its time.
type timedID struct {
	by     *process
	window window
	at     time.Time
}

// timedRecover is a recover that went on without an instance. That instance's windows end
// before the recover's not_before if clocks are right.
type timedRecover struct {
	at    time.Time
	wrong bool // its own clock was wrong
}

// noteTimed stores time-ordered IDs. No worker, tick and sequence may be issued twice; the tick
// lies in a window of the process, and the worker in its room's slice by some layout from a version
// on.
func (w *world) noteTimed(p *process, tag timeTag, runs []allocator.Run, since int64) {
	now := time.Now()
	w.log("%-12s %s: %v", p.id, tag.name, runs)
	layout := tag.settings.Layout()
	w.mu.Lock()
	ever := w.mu.ever
	w.mu.Unlock()
	for _, run := range runs {
		for n := range run.Count {
			id := run.First + n*max(run.Stride, 1)
			parts, err := layout.Decompose(id)
			if err != nil {
				w.Errorf("%s, tag %s: %v", p.id, tag.name, err)
				return
			}
			worker := record.WorkerID{Bits: layout.WorkerBits, Number: parts.Worker}
			in, ok := p.link.windowWith(worker, parts.Time, parts.Time+layout.Unit.Milliseconds())
			if !ok {
				w.Errorf("%s, tag %s: ID %d of worker %s lies in no window of the process: its tick begins at %d", p.id,
					tag.name, id, worker, parts.Time)
				return
			}
			if !inSlice(ever, p.in, since, parts.Worker, layout.WorkerBits) {
				w.Errorf("%s, tag %s: worker %s of ID %d lies in no slice of room %s since layout version %d",
					p.id, tag.name, worker, id, p.in, since)
				return
			}
			w.noteTick(tag.name, id, parts, timedID{p, in, now})
		}
	}
}

// inSlice reports whether a room, or a reserved range, has a worker in a layout from a version on.
func inSlice(ever []change, room allocator.Room, from, worker int64, bits int) bool {
	return slices.ContainsFunc(ever, func(c change) bool {
		if c.layout.Version < from {
			return false
		}
		if slice, _ := timeid.SliceOf(c.layout, room, bits); slice.Contains(worker) {
			return true
		}
		r, ok := c.layout.Reserved[room]
		return ok && timeid.Slice(r, c.layout.Boundary, bits).Contains(worker)
	})
}

// noteTick stores one ID of a tag. The tag's layout never changes, so the ID stands for its
// worker, tick and sequence.
func (w *world) noteTick(tag allocator.Tag, id int64, parts timeid.Parts, is timedID) {
	w.mu.Lock()
	was, twice := w.mu.ticks[tag][id]
	w.mu.ticks[tag][id] = is
	w.mu.counts["time-ordered IDs"]++
	excused := twice && w.excused(was, is)
	w.mu.Unlock()
	switch {
	case excused:
		w.count("time-ordered IDs issued twice by wrong clocks, after a recover without an instance", 1)
	case twice:
		w.Errorf("DUPLICATE: tag %s: worker %d, tick %d, sequence %d (ID %d) was issued by %s, and %v earlier by %s",
			tag, parts.Worker, parts.Time, parts.Sequence, id, is.by.id, is.at.Sub(was.at), was.by.id)
	}
}

// excused reports whether two processes may have issued one ID: a recover came in between that
// went on without an instance, and the clock of one of them, or of the recover, was wrong. In
// no other case does uniqueness depend on clocks. The caller holds the lock.
func (w *world) excused(a, b timedID) bool {
	first, last := a.window.sent, b.at
	if b.window.sent.Before(first) {
		first = b.window.sent
	}
	return a.by != b.by && slices.ContainsFunc(w.mu.leftOut, func(r timedRecover) bool {
		return r.at.After(first) && r.at.Before(last) && (r.wrong || a.by.link.clock.wrong() ||
			b.by.link.clock.wrong())
	})
}

// noteNotBefore notes that a recover began an epoch with a later start of windows, as it went
// on without an instance.
func (w *world) noteNotBefore(l *link) {
	now := stored[struct {
		NotBefore int64 `json:"not_before,string"`
	}](w, "epoch").NotBefore
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.began = time.Now()
	if now > w.mu.notBefore {
		w.mu.counts["recovers after which windows begin later"]++
		w.mu.leftOut = append(w.mu.leftOut, timedRecover{time.Now(), l.ahead.Load() != 0})
	}
	w.mu.notBefore = now
}

// settleTimes sets every clock right and makes all machines sleep until the windows taken by
// wrong clocks, or by an instance that was left out, are over. Then each instance that is sure
// to find a worker issues each tag again.
func (w *world) settleTimes(lane int) {
	if len(w.times) == 0 {
		return
	}
	w.mu.Lock()
	for _, p := range w.mu.processes {
		p.link.ahead.Store(0)
		if p.timed != nil {
			p.timed.clock.change(0, 1, 0)
		}
	}
	notBefore := w.mu.notBefore
	w.mu.Unlock()
	asleep := time.Duration(0)
	if w.wild || notBefore > 0 {
		asleep = record.LongestWindow + 2*furthest
	}
	// The clock of a recover may have been a day ahead.
	asleep = max(asleep, time.UnixMilli(notBefore).Sub(w.rightTime())+2*record.MaxAhead)
	w.log("--- all machines sleep for %v", asleep)
	w.slept.Add(int64(asleep))
	layout, err := w.admin.Ledger.Refresh(context.Background())
	if err != nil {
		w.Errorf("layout: %v", err)
		return
	}
	settled := time.Now()
	for _, s := range w.timers {
		slice, _ := timeid.SliceOf(layout.Layout, s.room, w.times[0].settings.WorkerBits)
		if slice.Width() < 4 { // so that all instances of the room have one
			continue
		}
		for _, tag := range w.times {
			if w.issuesAgain(s, tag.name, settled, lane) && notBefore > 0 {
				w.count("issued again after a recover's time", 1)
			}
		}
	}
}

// furthest is how far wild clocks are off at most.
const furthest = time.Hour

// skew returns how far a machine's clock is off at first.
func (w *world) skew(d dice) time.Duration {
	if w.wild && d.chance(3) {
		return pick(d, []time.Duration{furthest, -furthest, time.Minute, -time.Minute})
	}
	return d.between(-6*time.Second, 6*time.Second)
}
