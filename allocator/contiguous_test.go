package allocator_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// A run lies in one block, and skips the rest of a block that is too short. strided gives
// the room 300 to 699 of each 1000.
func TestNextRun(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		for _, want := range []struct{ n, first, skipped int64 }{
			{1, 300, 0}, {100, 301, 0}, {299, 401, 0}, // the block is used up
			{400, 1300, 0},
			{399, 2300, 0}, {2, 3300, 1},
			{400, 4300, 398},
			{250, 5300, 0}, {250, 6300, 150}, {150, 6550, 0},
		} {
			run, skipped, err := c.NextRun(w.Context(), want.n)
			if err != nil || run != (allocator.Run{First: want.first, Count: want.n}) || skipped != want.skipped {
				w.Errorf("%d in a row: %+v, skipped %d, %v; want from %d, skipped %d", want.n, run, skipped,
					err, want.first, want.skipped)
			}
		}
		if id, err := c.Next(w.Context()); err != nil || id != 7300 {
			w.Errorf("next: %d, %v", id, err)
		}
		w.balance(c, m)
	})
}

// TryRun takes what is held, and neither waits nor drops where that is too little.
func TestTryRun(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		if run, ok := c.TryRun(1); ok {
			w.Errorf("an empty chain has %+v", run)
		}
		if err := c.Warm(w.Context()); err != nil {
			w.Fatal(err)
		}
		for _, want := range []struct {
			n, first int64
			ok       bool
		}{{100, 300, true}, {0, 0, false}, {-1, 0, false}, {401, 0, false},
			{allocator.MaxID, 0, false}, {301, 1300, true}} {
			if run, ok := c.TryRun(want.n); ok != want.ok || run.First != want.first || ok && run.Count != want.n {
				w.Errorf("%d in a row: %+v, %v; want from %d, %v", want.n, run, ok, want.first, want.ok)
			}
		}
		if id, err := c.Next(w.Context()); err != nil || id != 1601 {
			w.Errorf("next: %d, %v", id, err)
		}
		w.balance(c, m)
	})
}

func TestNextRunIsRefused(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(10, 1_000_000, time.Minute))
		for _, n := range []int64{-1, 0, 401, allocator.LargestStep, allocator.MaxID} {
			run, skipped, err := c.NextRun(w.Context(), n)
			if !errors.Is(err, allocator.Invalid) || skipped != 0 {
				w.Errorf("%d in a row: %+v, skipped %d, %v", n, run, skipped, err)
			}
		}
		if id, err := c.Next(w.Context()); err != nil || id != 300 {
			w.Errorf("a refusal cost IDs: the next is %d, %v", id, err)
		}
		w.balance(c, m)
	})
}

// A chain that can lease 100 at a time has 50 in a row for certain.
func TestNextRunAboveMaxStep(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(10, 100, time.Minute))
		if run, _, err := c.NextRun(w.Context(), 50); err != nil || run.First != 300 {
			w.Errorf("%+v, %v", run, err)
		}
		if run, skipped, err := c.NextRun(w.Context(), 300); !errors.Is(err, allocator.Invalid) || skipped != 0 {
			w.Errorf("%+v, %d, %v", run, skipped, err)
		}
		w.balance(c, m)
	})
}

// Near the limit there may be n IDs in a row, and not the 2n-1 that are leased to be sure.
func TestNextRunNearTheLimit(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(10, 1_000_000, time.Minute))
		w.take(c, 10)
		c.Limit(1000)
		run, skipped, err := c.NextRun(w.Context(), 390)
		if err != nil || run.First != 310 || skipped != 0 {
			w.Errorf("%+v, %d, %v", run, skipped, err)
		}
		if run, _, err := c.NextRun(w.Context(), 1); !errors.Is(err, allocator.Exhausted) {
			w.Errorf("beyond the limit: %+v, %v", run, err)
		}
		w.balance(c, m)
	})
}

// Runs of any length, beside single IDs, from segments of any length: each ID once, and
// each run in one block.
func TestNextRunProperties(t *testing.T) {
	for seed := range uint64(200) {
		virtual(t, func(w *world) {
			dice := rand.New(rand.NewPCG(seed, 1))
			c, m := w.chain(settings(1+dice.Int64N(900), 1000, time.Minute))
			last := int64(-1)
			for range 200 {
				n := 1 + dice.Int64N(400)
				if dice.IntN(3) == 0 {
					id, err := c.Next(w.Context())
					if err != nil || id <= last {
						w.Fatalf("seed %d: %d after %d, %v", seed, id, last, err)
					}
					last = id
					continue
				}
				run, skipped, err := c.NextRun(w.Context(), n)
				if err != nil || run.Count != n || run.First <= last || run.First%1000 < 300 || run.First%1000+n > 700 {
					w.Fatalf("seed %d: %d in a row: %+v after %d, %v", seed, n, run, last, err)
				}
				if passed := index(run.First) - index(max(last, 299)) - 1; passed != skipped && last >= 0 {
					w.Fatalf("seed %d: skipped %d, said %d", seed, passed, skipped)
				}
				last = run.First + n - 1
			}
			w.balance(c, m)
		})
	}
}
