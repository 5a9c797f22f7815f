package allocator_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// TestHeldIsBounded counts what was leased and not issued, under rates that grow, jump and fall, and skips: after each
// lease it is at most what lasts for twice the reserve at the peak rate by then, or two least steps; in between it only
// falls.
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
					most = max(2*s.MinStep, int64(math.Ceil(2*max(of.Peak, peak)*s.Reserve.Seconds())))
				}
				peak = of.Peak
				if held := d.m.total() - of.Issued - of.Dropped; held > most || of.Excess > 0 {
					w.Fatalf("seed %d: %d IDs are leased and not issued, at most %d may be: %+v", seed, held, most, of)
				}
			}
			for range 12 {
				d.drive(time.Duration(1+random.IntN(60))*time.Second, steady(math.Exp(random.Float64()*9)))
				switch random.IntN(4) {
				case 0:
					d.chain.Skip(d.m.skip(0) + random.Int64N(s.MinStep)) // above all that is held
				case 1:
					d.m.skip(random.Int64N(1000))
				}
			}
			if checks < 3 {
				w.Errorf("seed %d: %d leases", seed, checks)
			}
		})
	}
}

// What callers waited for and did not take is beyond the bound, and shown.
func TestExcess(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 1)
		m.latency = time.Second
		ctx, cancel := context.WithTimeout(w.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.NextN(ctx, 500_000, nil); err == nil {
			t.Fatal("the store answered at once")
		}
		time.Sleep(2 * time.Second)
		if s := c.Status(); s.Held < 500_000 || s.Excess < s.Held-4*1000 {
			w.Errorf("a caller asked for 500,000 IDs and left: %+v", s)
		}
		w.take(c, c.Status().Held)
		time.Sleep(2 * time.Second)
		if s := c.Status(); s.Excess > 0 {
			w.Errorf("they were taken: %+v", s)
		}
	})
}

// Where what stays of a chain is all that it may hold, the rest is dropped and nothing is leased in its place: the rate
// fell, say, or a prescale is over.
func TestNothingReplacesWhatIsTooMuch(t *testing.T) {
	virtual(t, func(w *world) {
		s := settings(1000, 1_000_000, time.Minute)
		c, m := w.chain(s)
		first := w.take(c, 1)[0].First
		s.Prescale, s.PrescaleUntil = 500_000, time.Now().Add(time.Minute)
		if err := c.Update(s); err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Hour)
		before := c.Status()
		c.Skip(first + 2)
		time.Sleep(time.Second)
		if s := c.Status(); before.Held < 500_000 || s.Dropped == 0 || s.Held+s.Dropped != before.Held ||
			s.Excess > 0 || s.Refills != before.Refills {
			w.Errorf("%+v; before the skip: %+v", s, before)
		}
		w.balance(c, m)
	})
}
