package report

import (
	"slices"
	"time"
)

// span is the time between two moments.
type span struct{ from, to time.Time }

// spans are sorted, and do not meet once they are merged.
type spans []span

// merged returns the same times as spans that do not meet.
func (s spans) merged() spans {
	slices.SortFunc(s, func(a, b span) int { return a.from.Compare(b.from) })
	var all spans
	for _, next := range s {
		if n := len(all); n > 0 && !next.from.After(all[n-1].to) {
			if next.to.After(all[n-1].to) {
				all[n-1].to = next.to
			}
			continue
		}
		all = append(all, next)
	}
	return all
}

// meet reports whether any of the spans, which are merged, shares a moment with the one from
// from to to.
func (s spans) meet(from, to time.Time) bool {
	i, _ := slices.BinarySearchFunc(s, from, func(a span, from time.Time) int { return a.to.Compare(from) })
	return i < len(s) && !s[i].from.After(to)
}

// times summarizes durations.
func times(all []time.Duration) Times {
	if len(all) == 0 {
		return Times{}
	}
	slices.Sort(all)
	// the least value that this percentage does not exceed
	at := func(percent int) time.Duration { return all[(len(all)*percent+99)/100-1] }
	return Times{Count: len(all), P50: at(50), P99: at(99), Most: all[len(all)-1]}
}
