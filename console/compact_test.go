package console

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
)

// compacting counts the compactions of an etcd.
type compacting struct {
	store.Store
	n *atomic.Int64
}

func (c compacting) Compact(ctx context.Context, revision int64) error {
	c.n.Add(1)
	return c.Store.Compact(ctx, revision)
}

// A console that has run for two hours compacts etcd each hour.
func TestTendCompacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		var n atomic.Int64
		s := b.consoleOver(compacting{b.Mem.Open(), &n})
		ctx, stop := context.WithCancel(bg)
		var work sync.WaitGroup
		work.Go(func() { every(ctx, s.tend) })
		defer func() { stop(); work.Wait() }()
		time.Sleep(119 * time.Minute)
		if got := n.Load(); got != 0 {
			t.Errorf("before two hours: %d compactions", got)
		}
		time.Sleep(64 * time.Minute) // 3 hours and 3 minutes
		if got := n.Load(); got != 2 {
			t.Errorf("after three hours: %d compactions, want 2", got)
		}
	})
}

// Without compaction heartbeats fill an etcd with default flags in weeks. A console
// compacts hourly and keeps at least two hours of history, even if it misses revisions
// in between.
func TestCompactions(t *testing.T) {
	var c compactions
	start := time.Unix(1e9, 0)
	revision := make(map[int64]time.Duration) // when it was the latest
	compacted, last := 0, int64(0)
	for after := time.Duration(0); after < 24*time.Hour; after += sizeEvery {
		latest := 1 + int64(after/time.Second)
		revision[latest] = after
		if after > 10*time.Hour && after < 15*time.Hour {
			continue // etcd is away
		}
		at := c.due(start.Add(after), latest)
		if at == 0 {
			continue
		}
		compacted++
		if kept := after - revision[at]; kept < keepHistory || at <= last {
			t.Errorf("after %v: compacted at %d, which leaves %v; before it was %d", after, at, kept, last)
		}
		last = at
		if len(c.seen) > 3 {
			t.Errorf("%d revisions are kept", len(c.seen))
		}
	}
	if compacted < 15 {
		t.Errorf("%d compactions in a day", compacted)
	}
	// A restored etcd counts from a lower revision: nothing from before the restore is compacted.
	now := start.Add(25 * time.Hour)
	for after := time.Duration(0); after < keepHistory; after += sizeEvery {
		if at := c.due(now.Add(after), 10+int64(after/time.Second)); at != 0 {
			t.Errorf("compacted at %d, %v after a restore", at, after)
		}
	}
}
