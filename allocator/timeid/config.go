package timeid

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
)

// Window is the time of a generator's worker, from From inclusive to Until exclusive, both Unix
// ms. A tick may be issued only if all of it lies in the window. The windows of two owners of a
// worker must not overlap: the caller answers for that, and uniqueness depends on it.
type Window struct{ From, Until int64 }

// Config is the configuration of a generator. Zero values of the fields from Sequence on mean
// the defaults.
type Config struct {
	Layout Layout
	Worker int64  // from 0, below 2^WorkerBits
	Window Window // the first; at least one whole tick, not before the epoch

	Sequence Sequence
	// CarryTo is the sequence from which on Carry begins the next tick at 1: 1 to
	// 2^SequenceBits-1. Default 2^(SequenceBits-1)-1, at least 1: CosId's.
	CarryTo int64
	// RandomBelow bounds the first sequence of Random: 1 to 2^SequenceBits. Default
	// 100, Leaf's, or 2^SequenceBits where that is less.
	RandomBelow int64

	Rollback Rollback
	// MaxWait bounds a call's wait for a clock that went back or, beyond one tick, that stands
	// still: up to a minute. Default 500 ms, CosId's: most steps of NTP are shorter, and most
	// callers' deadlines are longer.
	MaxWait time.Duration
	// MaxAhead bounds how far IDs may be ahead of the clock with Offset: up to an hour. Default
	// 10 s.
	MaxAhead time.Duration

	// Clock returns the present in Unix ms. It must be safe for concurrent use. nil is the
	// computer's clock. The generator reads that once for each ID, and compares it with the
	// wall clock at each tick, and at least each ms.
	Clock func() int64
	// Pause returns after about d of Clock's time, or with ctx's error. A waiting caller calls
	// it between two readings of the clock; look counts the readings from 0. nil yields the
	// processor for waits of up to a ms, and sleeps for longer ones.
	Pause func(ctx context.Context, d time.Duration, look int) error
	// Rand returns a random number below n, for Random. nil is math/rand/v2.
	Rand func(n uint64) uint64
}

// Defaults and bounds of Config.
const (
	DefaultMaxWait     = 500 * time.Millisecond
	DefaultMaxAhead    = 10 * time.Second
	DefaultRandomBelow = 100
	LongestWait        = time.Minute
	FurthestAhead      = time.Hour
)

// WithDefaults returns the configuration with the defaults filled in. The layout must be valid.
func (c Config) WithDefaults() Config {
	if c.CarryTo == 0 {
		c.CarryTo = max(c.Layout.PerTick()/2-1, 1)
	}
	if c.RandomBelow == 0 {
		c.RandomBelow = min(DefaultRandomBelow, c.Layout.PerTick())
	}
	if c.MaxWait == 0 {
		c.MaxWait = DefaultMaxWait
	}
	if c.MaxAhead == 0 {
		c.MaxAhead = DefaultMaxAhead
	}
	return c
}

// Validate checks the layout and every field's range. Its error is Invalid and
// names the field, or an *EndError where the window begins after the time bits are
// used up.
func (c Config) Validate() error {
	if err := c.Layout.Validate(); err != nil {
		return err
	}
	c = c.WithDefaults()
	largest := c.Layout.PerTick() - 1
	switch {
	case c.Worker < 0 || c.Worker >= c.Layout.Workers():
		return allocator.Errorf(allocator.Invalid, "worker: %d; allowed: 0 to %d (%d bits)", c.Worker,
			c.Layout.Workers()-1, c.Layout.WorkerBits)
	case c.Sequence > Random:
		return allocator.Errorf(allocator.Invalid, "sequence: %d; allowed: %v, %v, %v",
			uint8(c.Sequence), Reset, Carry, Random)
	case c.CarryTo < 1 || c.CarryTo > max(largest, 1):
		return allocator.Errorf(allocator.Invalid, "carry to: %d; allowed: 1 to %d", c.CarryTo, max(largest, 1))
	case c.RandomBelow < 1 || c.RandomBelow > largest+1:
		return allocator.Errorf(allocator.Invalid, "random below: %d; allowed: 1 to %d", c.RandomBelow, largest+1)
	case c.Rollback > Fail:
		return allocator.Errorf(allocator.Invalid, "rollback: %d; allowed: %v, %v, %v",
			uint8(c.Rollback), Wait, Offset, Fail)
	case c.MaxWait < 0 || c.MaxWait > LongestWait:
		return allocator.Errorf(allocator.Invalid, "max wait: %v; allowed: up to %v", c.MaxWait, LongestWait)
	case c.MaxAhead < 0 || c.MaxAhead > FurthestAhead:
		return allocator.Errorf(allocator.Invalid, "max ahead: %v; allowed: up to %v", c.MaxAhead, FurthestAhead)
	}
	return c.Layout.checkWindow(c.Window)
}

// checkWindow checks that a window begins at the epoch or later and before the
// layout's end, and has a whole tick in it.
func (l Layout) checkWindow(w Window) error {
	switch {
	case w.From < l.Epoch:
		return allocator.Errorf(allocator.Invalid, "window: from %s; allowed: from the epoch %s on",
			date(w.From), date(l.Epoch))
	case w.From >= l.End():
		return &EndError{Now: w.From, End: l.End(), Bits: l.TimeBits}
	}
	if from, until := l.ticks(w); from >= until {
		return allocator.Errorf(allocator.Invalid,
			"window: %s to %s has no whole tick of %v in it; allowed: at least one",
			date(w.From), date(w.Until), l.Unit)
	}
	return nil
}
