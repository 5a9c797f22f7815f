package room_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/room"
)

// Many streams answer at the same moment, and each gets its turn.
func TestTurns(t *testing.T) {
	const most, streams, answers = 2, 50, 200
	turns := room.NewTurns(most)
	var busy, top atomic.Int32
	var work sync.WaitGroup
	for range streams {
		work.Go(func() {
			pass := turns.Pass()
			for range answers {
				pass.Take(bg)
				n := busy.Add(1)
				for seen := top.Load(); n > seen && !top.CompareAndSwap(seen, n); seen = top.Load() {
				}
				busy.Add(-1)
				pass.End()
			}
		})
	}
	work.Wait()
	// The bound does not count a stream that found few others busy.
	if n := top.Load(); n > 2*most {
		t.Errorf("%d streams answered at once, want %d at most", n, 2*most)
	}
}

// A stream that blocks in its turn, because its client does not read, does not keep other
// streams from theirs.
func TestTurnsOfBlockedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := room.NewTurns(1)
		for range 10 {
			pass := turns.Pass()
			pass.Take(t.Context()) // and never ends
		}
		began := time.Now()
		pass := turns.Pass()
		pass.Take(t.Context())
		pass.End()
		if waited := time.Since(began); waited > 10*time.Millisecond {
			t.Errorf("it waited %v for its turn", waited)
		}
		time.Sleep(time.Second) // of the bubble's clock: the timers end
	})
}
