package report

import (
	"cmp"
	"slices"

	"github.com/march-id/march/allocator"
)

// taken are the IDs of one tag that callers got. They are kept as intervals, which grow together: the IDs
// of a run are many, and few are left out.
type taken struct {
	sorted []interval // apart from each other
	added  []interval // since the last sort
	twice  []interval // that were there already, each as often as they came again
}

// interval is the IDs from first until before end.
type interval struct{ first, end int64 }

func (i interval) count() int64 { return i.end - i.first }

func (i interval) meets(run allocator.Run) bool {
	return run.First < i.end && i.first < run.First+run.Count
}

// atOnce bounds the intervals that are kept without being sorted.
const atOnce = 1 << 20

func (t *taken) add(run allocator.Run) {
	t.added = append(t.added, interval{run.First, run.First + run.Count})
	if len(t.added) >= max(atOnce, len(t.sorted)) {
		t.sort()
	}
}

// sort joins the intervals that touch, and finds what is in more than one.
func (t *taken) sort() {
	all := slices.Grow(t.sorted, len(t.added))
	all = append(all, t.added...)
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.first, b.first) })
	joined := all[:0]
	for _, next := range all {
		n := len(joined)
		if n == 0 || joined[n-1].end < next.first {
			joined = append(joined, next)
			continue
		}
		last := &joined[n-1]
		if both := (interval{next.first, min(last.end, next.end)}); both.count() > 0 {
			t.twice = append(t.twice, both)
		}
		last.end = max(last.end, next.end)
	}
	t.sorted, t.added = joined, nil
}

// count returns how many different IDs there are.
func (t *taken) count() (n int64) {
	t.sort()
	for _, i := range t.sorted {
		n += i.count()
	}
	return n
}

// plant adds an ID again, as if it had been issued twice, and reports whether that was found. It must be
// the last ID that is added.
func (t *taken) plant(id int64) (found bool) {
	t.sort()
	before := len(t.twice)
	t.add(allocator.Run{First: id, Count: 1})
	t.sort()
	found = len(t.twice) == before+1 && t.twice[before] == interval{id, id + 1}
	t.twice = t.twice[:before]
	return found
}
