package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// timed has the oracles of time-ordered IDs. Bits cannot hold them, because an ID has up to 63
// bits: they are sorted and compared at the end.
type timed struct {
	*check
	windows map[record.WorkerID][]history.Window
	spans   map[allocator.Tag][]span64
	last    history.Window // the window of the last found ID: the next one is often there, too
}

// span64 is IDs of one worker and tick that a caller got.
type span64 struct {
	first, count int64
	who          string
	at           time.Time
}

func newTimed(c *check) *timed {
	t := &timed{check: c, windows: make(map[record.WorkerID][]history.Window), spans: make(map[allocator.Tag][]span64)}
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
func (t *timed) take(i runlog.Issued, l timeid.Layout) error {
	who := fmt.Sprintf("%s/%s %s", i.Room, cmp.Or(string(i.Instance), "client"), i.Tag)
	for _, run := range i.Runs {
		for run.Count > 0 {
			p, err := l.Decompose(run.First)
			if err != nil {
				return fmt.Errorf("%s was given %d: %w", who, run.First, err)
			}
			n := min(run.Count, l.PerTick()-p.Sequence)
			if l.Order == timeid.WorkerLast {
				n = 1
			}
			t.r.TimeIDs += n
			t.find(i, who, l, p, n)
			t.spans[i.Tag] = append(t.spans[i.Tag], span64{run.First, n, who, i.Received})
			run.First, run.Count = run.First+n, run.Count-n
		}
	}
	return nil
}

// find checks that the instance had the worker of IDs in etcd, for a window that contains their
// whole tick. A caller with a window of its own, or of none, got it from any instance of the
// room.
func (t *timed) find(i runlog.Issued, who string, l timeid.Layout, p timeid.Parts, n int64) {
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
		who, n, id, time.UnixMilli(p.Time).UTC().Format(timeid.Format), i.Received.Format(stamp))
	if slices.ContainsFunc(t.history.Lives, func(l history.Life) bool { return len(l.Gaps) > 0 }) {
		t.r.UnseenWindows.add(n, example) // it may have been written in a gap
		return
	}
	t.r.NoWindow.add(n, example)
}

// end finds the IDs that were issued twice: with the same worker, tick and sequence. One ID of
// each tag comes twice for this oracle, which must find that.
func (t *timed) end() {
	for tag, spans := range t.spans {
		plant := spans[len(spans)/2].first
		spans = append(spans, span64{first: plant, count: 1, who: "the oracle", at: spans[0].at})
		t.r.Planted++
		slices.SortFunc(spans, func(a, b span64) int { return cmp.Compare(a.first, b.first) })
		found := int64(0)
		var furthest span64
		for _, s := range spans {
			if both := min(furthest.first+furthest.count, s.first+s.count) - s.first; both > 0 {
				own := int64(0)
				if found == 0 && (s.first == plant || plant >= s.first && plant < s.first+both) {
					found, own = 1, 1
				}
				if both -= own; both > 0 {
					t.r.Duplicates.add(both, fmt.Sprintf("tag %s: %d IDs from %d on: to %s at %s, and to %s at %s",
						tag, both, s.first, furthest.who, furthest.at.Format(stamp), s.who, s.at.Format(stamp)))
				}
			}
			if s.first+s.count > furthest.first+furthest.count {
				furthest = s
			}
		}
		if found == 0 {
			t.r.Checker.add(1, fmt.Sprintf("the oracle of time-ordered IDs missed what was "+
				"planted: tag %s, %d", tag, plant))
		}
	}
}
