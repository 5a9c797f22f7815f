//go:build steady

package sim_test

import (
	"slices"
	"strings"
	"testing"
)

// TestReplay runs seeds again: each must go the same way as it did, to the line.
// One in some hundred runs goes one of two ways still, so a seed has more tries;
// few may need them.
func TestReplay(t *testing.T) {
	const seeds, tries, most = 16, 4, 3 // no garbage is collected meanwhile
	again := 0
	for seed := range uint64(seeds) {
		var ways [][]string
		for same := false; !same; {
			var way []string
			simulate(t, seed, nil, func(line string) { way = append(way, line) })
			if len(way) < 100 {
				t.Errorf("seed %d: a schedule of %d lines", seed, len(way))
			}
			same = slices.ContainsFunc(ways, func(was []string) bool { return differ(was, way) < 0 })
			if ways = append(ways, way); same {
				break
			}
			if len(ways) == 1 {
				continue
			}
			again++
			at := differ(ways[0], way)
			t.Logf("seed %d went differently from line %d on:\n%s", seed, at, strings.Join(slices.Concat(
				ways[0][max(at-3, 0):min(at+3, len(ways[0]))], []string{"---"}, way[max(at-3, 0):min(at+3, len(way))]), "\n"))
			if len(ways) == tries {
				t.Errorf("seed %d went %d ways in %d tries", seed, tries, tries)
				break
			}
		}
	}
	if again > most {
		t.Errorf("%d runs went differently; allowed: %d", again, most)
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
