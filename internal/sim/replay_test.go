//go:build steady

package sim_test

import (
	"slices"
	"strings"
	"testing"
)

// TestReplay runs seeds again, after others: each has the same transcript as before, line by
// line.
func TestReplay(t *testing.T) {
	const seeds = 16
	way := func(seed int) (lines []string) {
		simulate(t, uint64(seed), nil, func(line string) { lines = append(lines, line) }) //nolint:gosec // not negative
		return lines
	}
	var first [seeds][]string
	for seed := range seeds {
		if first[seed] = way(seed); len(first[seed]) < 100 {
			t.Errorf("seed %d: a schedule of %d lines", seed, len(first[seed]))
		}
	}
	for seed := seeds - 1; seed >= 0; seed-- {
		was, now := first[seed], way(seed)
		if at := differ(was, now); at >= 0 {
			t.Errorf("seed %d went differently from line %d on:\n%s", seed, at, strings.Join(slices.Concat(
				was[max(at-3, 0):min(at+3, len(was))], []string{"---"}, now[max(at-3, 0):min(at+3, len(now))]), "\n"))
		}
	}
}

// differ returns the first index at which a and b differ, -1 if they are equal.
func differ(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if i >= min(len(a), len(b)) || a[i] != b[i] {
			return i
		}
	}
	return -1
}
