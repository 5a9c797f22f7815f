package timeid

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/march-id/march/allocator"
)

// claim takes up to n words, as take does, and waits for them if the policies allow it.
func (g *Generator) claim(ctx context.Context, n uint64) (first, count uint64, err error) {
	var (
		from   int64         // the first reading of the clock, ms
		slept  time.Duration // the total sleep
		missed bool          // the tick was full
	)
	for look := 0; ; look++ {
		first, count, at, s := g.take(n, missed)
		if look == 0 {
			from = at.ms
		}
		var pause, limit time.Duration
		switch s {
		case taken:
			if missed {
				g.overflowNanos.Add(int64(max(time.Duration(at.ms-from)*time.Millisecond, 0)))
			}
			return first, count, nil
		case full:
			if !missed {
				missed = true
				g.overflows.Add(1)
			}
			pause, limit = g.untilNext(at.ms), g.cfg.Layout.Unit+g.cfg.MaxWait
		case behind:
			missed = false
			pause = g.lag(at.ms)
			if g.cfg.Rollback == Wait && slept+pause <= g.cfg.MaxWait {
				limit = g.cfg.MaxWait
			}
		}
		if limit == 0 || slept >= limit {
			return 0, 0, g.refusal(at.ms, s, slept)
		}
		d, err := g.pause(ctx, pause, look)
		if err != nil {
			return 0, 0, allocator.Errorf(allocator.Unavailable,
				"no time-ordered ID before the caller's deadline: %w", context.Cause(ctx))
		}
		slept += d
	}
}

// untilNext returns the time from ms to the next tick, at least 1 ms.
func (g *Generator) untilNext(ms int64) time.Duration {
	return time.Duration(g.unit-(ms-g.cfg.Layout.Epoch)%g.unit) * time.Millisecond
}

// lag returns how far ms is behind the last ID, or the window, up to two minutes: more than any
// wait.
func (g *Generator) lag(ms int64) time.Duration {
	const most = 2 * LongestWait
	last := g.startOf(g.top.Load())
	if ms < last-int64(most/time.Millisecond) {
		return most
	}
	return time.Duration(last-ms) * time.Millisecond
}

// refusal returns the error of a call that cannot go on.
func (g *Generator) refusal(ms int64, s state, slept time.Duration) error {
	window := g.Window()
	switch s {
	case full:
		return &OverflowError{Now: ms, PerTick: g.cfg.Layout.PerTick(), Waited: slept}
	case behind:
		if !g.issued() {
			return &WindowError{Worker: g.cfg.Worker, Now: ms, Window: window, Early: true,
				First: g.startOf(g.top.Load())}
		}
		return &RollbackError{Policy: g.cfg.Rollback, Now: ms, Last: g.startOf(g.top.Load()), Allowed: g.allowed()}
	case over:
		return &WindowError{Worker: g.cfg.Worker, Now: ms, Window: window}
	case ended:
		return &EndError{Now: ms, End: g.cfg.Layout.End(), Bits: g.cfg.Layout.TimeBits}
	}
	return ErrClosed
}

// yields is how often a caller yields before it sleeps. That takes a few ms, so that a clock
// that stands still does not keep a processor busy.
const yields = 1 << 14

// pause waits before the next reading of the clock, for at most d, and returns how long it
// slept.
func (g *Generator) pause(ctx context.Context, d time.Duration, look int) (slept time.Duration, err error) {
	if g.cfg.Pause != nil {
		return d, g.cfg.Pause(ctx, d, look)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	// A timer of less than a ms may take a whole ms, so the last ms is not slept through.
	if d <= time.Millisecond && look < yields {
		runtime.Gosched()
		return 0, nil
	}
	d = max(d-time.Millisecond, time.Millisecond)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return d, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// random returns Random's first sequence.
func (g *Generator) random() uint64 {
	if g.cfg.Rand != nil {
		return g.cfg.Rand(uint64(g.cfg.RandomBelow))
	}
	return rand.Uint64N(uint64(g.cfg.RandomBelow))
}

// Stats are counts of a generator since it was made.
type Stats struct {
	Overflows    int64         // calls that found a tick's sequence full and waited for a later tick
	OverflowWait time.Duration // their total wait, by the clock, in whole ms each
	Rollbacks    int64         // how often the clock was behind the last ID
	Ahead        time.Duration // with Offset: how far IDs may be ahead of the clock, at the last reading
}

// Stats returns the counts.
func (g *Generator) Stats() Stats {
	return Stats{
		Overflows: g.overflows.Load(), OverflowWait: time.Duration(g.overflowNanos.Load()),
		Rollbacks: g.rollbacks.Load(),
		Ahead:     time.Duration(g.ahead.Load()) * g.cfg.Layout.Unit,
	}
}

// Back returns by how much the clock is further behind the last ID, or the window's begin, than the policy allows.
// It is negative where the clock is not that far behind.
func (g *Generator) Back() time.Duration {
	last := g.startOf(g.top.Load())
	return time.Duration(last-g.now().ms)*time.Millisecond - g.allowed()
}

// allowed returns how far behind the policy lets the clock be.
func (g *Generator) allowed() time.Duration {
	switch g.cfg.Rollback {
	case Wait:
		return g.cfg.MaxWait
	case Offset:
		return g.cfg.MaxAhead
	}
	return 0
}
