package report

import (
	"math/rand/v2"
	"testing"

	"github.com/march-id/march/allocator"
)

// What comes twice is counted as a map of all IDs counts it, whatever the order, and however often it is sorted.
func TestTaken(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var all taken
		there, twice := make(map[int64]bool), int64(0)
		for range 30 {
			run := allocator.Run{First: r.Int64N(300), Count: 1 + r.Int64N(12)}
			all.add(run)
			for id := run.First; id < run.First+run.Count; id++ {
				if there[id] {
					twice++
				}
				there[id] = true
			}
			if r.IntN(4) == 0 {
				all.sort()
			}
		}
		got := int64(0)
		count := all.count()
		for _, i := range all.twice {
			got += i.count()
		}
		if count != int64(len(there)) || got != twice || !all.plant(all.sorted[0].first) {
			t.Fatalf("%d IDs and %d twice, want %d and %d", count, got, len(there), twice)
		}
	}
}
