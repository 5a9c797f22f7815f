package allocator_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// TestHeldIsBounded counts what was leased and not issued, under rates that grow, jump and fall: after each lease it is
// at most what lasts for twice the reserve at the peak rate by then, or two least steps; in between it only falls.
func TestHeldIsBounded(t *testing.T) {
	for seed := range uint64(40) {
		virtual(t, func(w *world) {
			random := rand.New(rand.NewPCG(seed, 42)) //nolint:gosec // repeatable on purpose
			s := settings(1+random.Int64N(1000), allocator.LargestStep, time.Duration(1+random.IntN(300))*time.Second)
			d := w.traffic(s, 100*time.Millisecond)
			leases, most, checks, peak := 0, int64(0), 0, 0.0
			d.seen = func(of allocator.Status) {
				if n := d.m.leases(); n != leases {
					leases, checks = n, checks+1
					most = max(2*s.MinStep, int64(math.Ceil(2*max(of.Peak, peak)*s.Reserve.Seconds()))+4)
				}
				peak = of.Peak
				if held := d.m.total() - of.Issued - of.Dropped; held > most {
					w.Fatalf("seed %d: %d IDs are leased and not issued, at most %d may be: %+v", seed, held, most, of)
				}
			}
			for range 12 {
				rate := math.Exp(random.Float64() * 9)
				d.drive(time.Duration(1+random.IntN(60))*time.Second, steady(rate))
			}
			if checks < 3 {
				w.Errorf("seed %d: %d leases", seed, checks)
			}
		})
	}
}
