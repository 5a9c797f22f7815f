package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// timed has the oracle of windows of time-ordered IDs.
type timed struct {
	*check
	windows map[record.WorkerID][]history.Window
	last    history.Window // the window of the last found ID: the next one is often there, too
}

func newTimed(c *check) *timed {
	t := &timed{check: c, windows: make(map[record.WorkerID][]history.Window)}
	type taken struct {
		life int
		id   record.WorkerID
		inc  string
		from int64
	}
	final := make(map[taken]history.Window) // the owner may move the end of a window that it gives back
	for _, w := range c.history.Windows {
		final[taken{w.Life, w.WorkerID, w.Incarnation, w.From}] = w
	}
	for _, w := range final {
		t.windows[w.WorkerID] = append(t.windows[w.WorkerID], w)
	}
	c.r.Windows = len(final)
	return t
}

// take passes one answer to the oracles.
func (t *timed) take(i runlog.Answer, l timeid.Layout) error {
	for _, run := range i.Runs {
		for run.Count > 0 {
			p, err := l.Decompose(run.First)
			if err != nil {
				return fmt.Errorf("%s was given %d: %w", i.Who(), run.First, err)
			}
			n := min(run.Count, l.PerTick()-p.Sequence)
			if l.Order == timeid.WorkerLast {
				n = 1
			}
			t.r.TimeIDs += n
			t.shows(fmt.Sprintf("%s %d", i.Instance, p.Worker))
			t.find(i, l, p, n)
			run.First, run.Count = run.First+n, run.Count-n
		}
	}
	return nil
}

// find checks that the instance had the worker of IDs in etcd, for a window that contains their
// whole tick. A caller with a window of its own, or of none, got it from any instance of the
// room.
func (t *timed) find(i runlog.Answer, l timeid.Layout, p timeid.Parts, n int64) {
	unit := max(l.Unit, time.Millisecond).Milliseconds()
	id := record.WorkerID{Bits: l.WorkerBits, Number: p.Worker}
	fits := func(w history.Window) bool {
		return w.WorkerID == id && w.Room == i.Room && (i.Instance == "" || w.Instance == i.Instance && !w.Caller) &&
			w.From <= p.Time && p.Time+unit <= w.Until
	}
	if fits(t.last) {
		return
	}
	if at := slices.IndexFunc(t.windows[id], fits); at >= 0 {
		t.last = t.windows[id][at]
		return
	}
	example := fmt.Sprintf("%s was given %d IDs of worker %v, tick %s, at %s, and had no such window in etcd",
		i.Who(), n, id, time.UnixMilli(p.Time).UTC().Format(timeid.Format), i.Received.Format(stamp))
	if slices.ContainsFunc(t.history.Lives, func(l history.Life) bool { return len(l.Gaps) > 0 }) {
		t.r.UnseenWindows.add(n, example) // it may have been written in a gap
		return
	}
	t.r.NoWindow.add(n, example)
}
