//go:build steady

package sim_test

import (
	"slices"
	"strings"
	"testing"
)

// TestReplay runs seeds again and again: each goes the same way, to the line.
func TestReplay(t *testing.T) {
	const seeds, tries = 16, 2 // no garbage is collected meanwhile
	for seed := range uint64(seeds) {
		var first []string
		simulate(t, seed, nil, func(line string) { first = append(first, line) })
		if len(first) < 100 {
			t.Errorf("seed %d: a schedule of %d lines", seed, len(first))
		}
		for range tries {
			var again []string
			simulate(t, seed, nil, func(line string) { again = append(again, line) })
			if at := differ(first, again); at >= 0 {
				t.Errorf("seed %d went differently from line %d on:\n%s", seed, at, strings.Join(slices.Concat(
					first[max(at-3, 0):min(at+3, len(first))], []string{"---"}, again[max(at-3, 0):min(at+3, len(again))]), "\n"))
				break
			}
		}
	}
}

// differ returns the first index at which a and b differ, -1 where they do not.
func differ(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if i >= min(len(a), len(b)) || a[i] != b[i] {
			return i
		}
	}
	return -1
}
