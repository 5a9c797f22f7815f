package timeid

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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

// Sequence is the policy for the first sequence of a tick.
type Sequence uint8

const (
	// Reset starts each tick at 0. It is the zero value.
	Reset Sequence = iota
	// Carry goes on from tick to tick, so that id mod n is even at low rates, too. A new tick
	// starts one above the last ID's sequence, or at 1 if the last tick had reached
	// Config.CarryTo; after a full tick it starts at 0. So the very first ID has sequence 1,
	// and a tick has at least half of the sequence. (CosId, AbstractSnowflakeId.java,
	// generate.)
	Carry
	// Random starts each tick at a random number below Config.RandomBelow, also after
	// a full tick. (Leaf, SnowflakeIDGenImpl.java.)
	Random
)

// String returns the policy as ParseSequence reads it.
func (s Sequence) String() string {
	switch s {
	case Reset:
		return "reset"
	case Carry:
		return "carry"
	case Random:
		return "random"
	}
	return fmt.Sprintf("sequence-%d", uint8(s))
}

// Rollback is the policy for a clock that is behind the tick of the last ID.
type Rollback uint8

const (
	// Wait waits for the clock, for Config.MaxWait in all. It is the zero value.
	Wait Rollback = iota
	// Offset goes on in the last tick. When the tick's sequence is full, it goes on in the next
	// tick as soon as the clock has advanced by one tick, too. So it runs ahead of the clock by
	// as much as the clock went back, at most Config.MaxAhead.
	Offset
	// Fail refuses at once.
	Fail
)

// String returns the policy as ParseRollback reads it.
func (r Rollback) String() string {
	switch r {
	case Wait:
		return "wait"
	case Offset:
		return "offset"
	case Fail:
		return "fail"
	}
	return fmt.Sprintf("rollback-%d", uint8(r))
}

// MarshalText writes the policy as String does.
func (s Sequence) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads it as ParseSequence does.
func (s *Sequence) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSequence(string(text))
	return err
}

// MarshalText writes the policy as String does.
func (r Rollback) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads it as ParseRollback does.
func (r *Rollback) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRollback(string(text))
	return err
}

// ParseBits reads the widths of time, worker and sequence: "41/10/12". It checks
// the form and that each is a number up to 63; Layout.Validate checks the rest.
// Its error is Invalid.
func ParseBits(s string) (timeBits, workerBits, sequenceBits int, err error) {
	var n [3]int
	fields := strings.Split(s, "/")
	ok := len(fields) == len(n)
	for i := 0; ok && i < len(n); i++ {
		n[i], ok = parseWidth(fields[i])
	}
	if !ok {
		return 0, 0, 0, allocator.Errorf(allocator.Invalid,
			"bits: %q; allowed: time/worker/sequence such as 41/10/12, up to %d together", short(s), MaxBits)
	}
	return n[0], n[1], n[2], nil
}

// parseWidth reads a width without a sign and without leading zeros.
func parseWidth(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 8)
	return int(n), err == nil && n <= MaxBits && strconv.FormatUint(n, 10) == s
}

// ParseUnit reads a layout's unit: 1ms, 10ms or 1s. Its error is Invalid.
func ParseUnit(s string) (time.Duration, error) {
	for _, unit := range units {
		if s == unit.String() {
			return unit, nil
		}
	}
	return 0, allocator.Errorf(allocator.Invalid, "unit: %q; allowed: 1ms, 10ms, 1s", short(s))
}

// ParseEpoch reads an epoch, a time of RFC 3339 or a number of Unix ms, and
// returns it in Unix ms. Its error is Invalid.
func ParseEpoch(s string) (int64, error) {
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		var t time.Time
		if t, err = time.Parse(time.RFC3339Nano, s); err == nil {
			ms = t.UnixMilli()
			if t.Nanosecond()%int(time.Millisecond) != 0 {
				err = strconv.ErrSyntax
			}
		}
	}
	if err != nil || ms < 0 || ms > LatestEpoch {
		return 0, allocator.Errorf(allocator.Invalid,
			"epoch: %q; allowed: a time such as 2019-12-24T16:00:00Z, in whole ms, or Unix ms from 0 to %d",
			short(s), int64(LatestEpoch))
	}
	return ms, nil
}

// ParseOrder reads worker-middle or worker-last. Its error is Invalid.
func ParseOrder(s string) (Order, error) { return parseName("order", s, WorkerMiddle, WorkerLast) }

// ParseSequence reads reset, carry or random. Its error is Invalid.
func ParseSequence(s string) (Sequence, error) { return parseName("sequence", s, Reset, Carry, Random) }

// ParseRollback reads wait, offset or fail. Its error is Invalid.
func ParseRollback(s string) (Rollback, error) { return parseName("rollback", s, Wait, Offset, Fail) }

// parseName returns the value whose String is s.
func parseName[T interface {
	~uint8
	String() string
}](field, s string, values ...T) (T, error) {
	names := make([]string, len(values))
	for i, v := range values {
		if names[i] = v.String(); s == names[i] {
			return v, nil
		}
	}
	return 0, allocator.Errorf(allocator.Invalid, "%s: %q; allowed: %s", field, short(s), strings.Join(names, ", "))
}

// short bounds how much of its input an error repeats.
func short(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}
