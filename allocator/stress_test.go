package allocator_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/race"
)

// bitmap holds a bit for each ID of strided's room, by dense index.
type bitmap []atomic.Uint64

// index returns the dense index of an ID under strided.
func index(id int64) int64 { return id/1000*400 + id%1000 - 300 }

// mark sets the bits of a run and reports whether none was set.
func (b bitmap) mark(first, count int64) bool {
	fresh := true
	for from, end := index(first), index(first)+count; from < end; {
		n := min(64-from%64, end-from)
		bits := (^uint64(0) >> (64 - n)) << (from % 64)
		fresh = b[from/64].Or(bits)&bits == 0 && fresh
		from += n
	}
	return fresh
}

// TestStress has goroutines do everything to one chain at once. Each ID comes
// once, in its range, and grows within each goroutine.
func TestStress(t *testing.T) {
	few := race.Enabled || !programs.All() // .ci/run has more
	t.Run("large segments", func(t *testing.T) {
		goal := int64(120_000_000)
		if few {
			goal = 5_000_000
		}
		stress(t, goal, 2_000_000, nil)
	})
	t.Run("small segments", func(t *testing.T) { // a new link all the time
		goal := int64(5_000_000)
		if few {
			goal = 500_000
		}
		stress(t, goal, 3_000, nil)
	})
	t.Run("gated", func(t *testing.T) {
		goal := int64(5_000_000)
		if few {
			goal = 500_000
		}
		stress(t, goal, 30_000, func(allocator.Segment) (allocator.Part, error) { return allocator.Part{}, nil })
	})
}

func stress(t *testing.T, goal, maxStep int64, gate allocator.Gate) {
	seen := make(bitmap, (4*goal+40*2*maxStep)/64)
	cfg := allocator.DefaultRefillerConfig(time.Now, rand.Float64)
	refiller := newRefiller(t, cfg)
	m := newMemory(t, strided())
	chain := gated(t, refiller, m, settings(min(1000, maxStep), maxStep, time.Second), gate)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	run := make(chan error)
	go func() { run <- refiller.Run(ctx) }()

	var issued atomic.Int64
	var all sync.WaitGroup
	worker := func(work func(take func(first, count int64)) error) {
		all.Go(func() {
			last := int64(-1)
			take := func(first, count int64) {
				if first <= last || !strided().Ranges[room].Contains(first%1000) {
					t.Errorf("%d after %d", first, last)
				}
				if !seen.mark(first, count) {
					t.Errorf("an ID of the %d from %d on came twice", count, first)
				}
				last = first + count - 1
				issued.Add(count)
			}
			for issued.Load() < goal && !t.Failed() {
				if err := work(take); err != nil {
					t.Error(err)
				}
			}
		})
	}
	worker(func(take func(first, count int64)) (err error) {
		for range 1000 {
			id, ok := chain.TryNext()
			if !ok {
				if id, err = chain.Next(ctx); err != nil {
					return err
				}
			}
			take(id, 1)
		}
		return nil
	})
	worker(func(take func(first, count int64)) error {
		id, err := chain.Next(ctx)
		if err == nil {
			take(id, 1)
		}
		return err
	})
	for range 2 {
		var runs []allocator.Run
		worker(func(take func(first, count int64)) (err error) {
			runs, err = chain.NextN(ctx, rand.Int64N(20_000)+1, runs[:0])
			for _, r := range runs {
				take(r.First, r.Count)
			}
			return err
		})
	}
	worker(func(take func(first, count int64)) error {
		seg, err := chain.Lease(ctx, rand.Int64N(5_000)+1)
		for r := range seg.Runs() {
			take(r.First, r.Count)
		}
		return err
	})
	worker(func(take func(first, count int64)) error {
		run, _, err := chain.NextRun(ctx, rand.Int64N(398)+1)
		if err == nil {
			take(run.First, run.Count)
		}
		return err
	})
	// The operator changes settings and layouts, and reads the status. Each layout drops
	// the held IDs, so there are few.
	all.Go(func() {
		for version := int64(2); issued.Load() < goal && !t.Failed(); {
			chain.Observe()
			chain.Status()
			if err := chain.Update(settings(rand.Int64N(min(maxStep, 100_000))+1, maxStep, time.Second)); err != nil {
				t.Error(err)
			}
			if version <= 40 && issued.Load() > goal/50*version {
				// Two ranges by turns, neither of which contains the other.
				chain.Renew(m.setRange(allocator.Range{Lower: 300 + version%2, Upper: 699 + version%2}))
				version++
			}
			chain.CloseUnused(time.Hour)
		}
	})
	all.Wait()
	stop()
	if err := <-run; err != nil {
		t.Error(err)
	}
	s := chain.Status()
	if total := m.total(); s.Issued+s.Held+s.Dropped != total || s.Issued != issued.Load() {
		t.Errorf("%+v, but %d were leased and %d came out", s, total, issued.Load())
	}
	t.Logf("%d IDs, %d leases, %d dropped, %d waits", s.Issued, s.Refills, s.Dropped, s.Waits)
}
