package allocator_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/race"
)

func TestNoAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	chain := background(t, strided())
	ctx := context.Background()
	if n := testing.AllocsPerRun(100_000, func() {
		if _, err := chain.Next(ctx); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per Next", n)
	}
	runs := make([]allocator.Run, 0, 100)
	if n := testing.AllocsPerRun(10_000, func() {
		var err error
		if runs, err = chain.NextN(ctx, 1000, runs[:0]); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per NextN", n)
	}
}

// one is a Source that many chains share, so that it takes no memory per chain.
type one struct {
	layout allocator.Layout
	last   atomic.Int64
}

func (o *one) Lease(_ context.Context, n int64) (allocator.Segment, error) {
	return o.layout.Segment(room, o.last.Add(1_000_000), n, allocator.MaxID)
}

// TestMemoryOfIdleChains: a chain that holds a segment costs at most 832 bytes, and 700 once it had no caller for a
// while.
func TestMemoryOfIdleChains(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory of its own")
	}
	const chains = 100_000
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	refiller := newRefiller(t, allocator.DefaultRefillerConfig(now, rand.Float64))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- refiller.Run(ctx) }()
	source := &one{layout: strided()}
	all := make([]*allocator.Chain, chains)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range all {
		all[i] = newChain(t, refiller, source, settings(1000, 1_000_000, time.Minute))
		if err := all[i].Warm(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := all[i].Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, most := range []int64{832, 700} {
		runtime.GC()
		runtime.ReadMemStats(&after)
		each := int64(after.HeapAlloc-before.HeapAlloc) / chains
		t.Logf("%d bytes a chain, %d of them the Chain itself", each, allocator.ChainSize)
		if each > most {
			t.Errorf("%d bytes a chain, more than %d", each, most)
		}
		for range 2 { // it is seen once to have been used
			for _, c := range all {
				if c.Observe(); c.Status().Held == 0 {
					t.Fatal("a chain holds nothing")
				}
			}
			ahead.Add(int64(time.Minute))
		}
	}
	stop()
	<-done
}
