package worker

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// Config says how an instance leases workers.
type Config struct {
	// Reserve is how long etcd may be away at any moment without a window ending, once the
	// process has run that long: a window lasts at most twice as long. 1 s to 10 min; default
	// 10 min.
	Reserve time.Duration
	// PinnedWindow bounds the windows of pinned workers: after a crash the next process with
	// the number waits that long at most. 3 s to twice Reserve; default 30 s.
	PinnedWindow time.Duration
	// CallerWorkers is how many workers of the slice, the last ones, callers' processes may
	// have at most. It never exceeds half of the slice, which is the default (0). Negative for
	// none.
	CallerWorkers int64

	// Now is the wall clock of generators and heartbeats; windows follow it. nil is the
	// ledger's clock.
	Now func() time.Time
	// Elapsed returns how long the process has run. nil counts from New, by the monotonic
	// clock.
	Elapsed func() time.Duration
	// Rand returns a random number below n, with n above 0. nil is math/rand/v2.
	Rand func(n int64) int64
	// AgreeClock is an operator's consent to this process's clock, until the process ends,
	// however far the clock is ahead.
	AgreeClock bool
	// Logger; nil logs nothing.
	Logger hclog.Logger
	// Span begins a span of a request to etcd for a worker of some bits, and returns the
	// function that ends it. nil makes none.
	Span func(ctx context.Context, operation string, bits int) (context.Context, func(error))
}

// Defaults and bounds of Config.
const (
	DefaultReserve      = record.LongestWindow / 2
	DefaultPinnedWindow = 30 * time.Second
	// Shortest is the shortest window, unless three ticks are longer. It is short because a
	// process that crashes again and again uses up a window each time, but not so short that
	// the first renewal is due at once.
	Shortest = 3 * time.Second
)

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Reserve: DefaultReserve, PinnedWindow: DefaultPinnedWindow}
}

// Validate checks each field's range. Its error is Invalid.
func (c Config) Validate() error {
	switch {
	case c.Reserve < time.Second || c.Reserve > DefaultReserve:
		return allocator.Errorf(allocator.Invalid, "reserve: %v; allowed: 1s to %v", c.Reserve, DefaultReserve)
	case c.PinnedWindow < Shortest || c.PinnedWindow > 2*DefaultReserve:
		return allocator.Errorf(allocator.Invalid, "worker-window: %v; allowed: %v to %v", c.PinnedWindow,
			Shortest, 2*DefaultReserve)
	}
	return nil
}

func (c Config) withDefaults(i Instance) Config {
	if c.Now == nil {
		c.Now = i.Now
	}
	if c.Elapsed == nil {
		began := time.Now()
		c.Elapsed = func() time.Duration { return time.Since(began) }
	}
	if c.Rand == nil {
		c.Rand = rand.Int64N
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Span == nil {
		c.Span = func(ctx context.Context, _ string, _ int) (context.Context, func(error)) {
			return ctx, func(error) {}
		}
	}
	return c
}

// Request describes a wanted worker.
type Request struct {
	Bits int           // the width: 0 to timeid.MaxBits-1
	Tick time.Duration // the longest unit of the tags to be issued: 1 ms to 1 s
	Pin  Pin           // the zero value for any worker
	// Caller marks a worker for a caller's process. Its window is never given back, as the
	// caller may issue until its end.
	Caller bool
	// Age is how long the caller's process has run. Its window grows with that, and with the
	// age of this process, so that callers that crash again and again use up little time.
	Age time.Duration
	// Longest bounds a caller's windows, down to Shortest; 0 is no bound.
	Longest time.Duration
	// By is the caller, and bounds what it may hold.
	By allocator.Holder
}

// Validate checks each field's range. Its error is Invalid.
func (r Request) Validate() error {
	switch {
	case r.Bits < 0 || r.Bits >= timeid.MaxBits:
		return allocator.Errorf(allocator.Invalid, "worker bits: %d; allowed: 0 to %d", r.Bits, timeid.MaxBits-1)
	case r.Tick < time.Millisecond || r.Tick > time.Second:
		return allocator.Errorf(allocator.Invalid, "tick: %v; allowed: 1ms to 1s", r.Tick)
	case r.Pin.set && r.Caller:
		return allocator.Errorf(allocator.Invalid, "pin: given for a caller's worker; allowed: none")
	case r.Age < 0:
		return allocator.Errorf(allocator.Invalid, "age: %v; allowed: 0s or more", r.Age)
	}
	return nil
}

// Pin chooses a worker by number, counted from 0 at the lower end of the room's slice. The zero
// value chooses none.
type Pin struct {
	set    bool
	number int64
}

// PinTo returns the pin of a number, which must not be negative.
func PinTo(number int64) Pin { return Pin{set: true, number: number} }

// Number returns the pinned number, and whether there is one.
func (p Pin) Number() (int64, bool) { return p.number, p.set }

// ParsePin reads the value of `march room --worker`: auto, a number, or ordinal (the digits
// after the last dash of the host's name). Its error is Invalid.
func ParsePin(text, host string) (Pin, error) {
	digits := text
	switch text {
	case "auto":
		return Pin{}, nil
	case "ordinal":
		digits = host[strings.LastIndex(host, "-")+1:]
		if !strings.Contains(host, "-") {
			digits = ""
		}
	}
	n, err := strconv.ParseUint(digits, 10, 62)
	switch {
	case err != nil && text == "ordinal":
		return Pin{}, allocator.Errorf(allocator.Invalid,
			"worker: ordinal of host %q; allowed: a host name that ends in a dash and digits, such as march-3", host)
	case err != nil:
		return Pin{}, allocator.Errorf(allocator.Invalid,
			"worker: %q; allowed: auto, ordinal, or a number from 0", text)
	}
	return PinTo(int64(n)), nil
}

// ParseCallers reads the value of `march room --client-workers`, half or a number, and returns
// it as Config.CallerWorkers. Its error is Invalid.
func ParseCallers(text string) (int64, error) {
	if text == "half" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, timeid.MaxBits-1)
	switch {
	case err != nil:
		return 0, allocator.Errorf(allocator.Invalid, "client-workers: %q; allowed: half, or a number from 0", text)
	case n == 0:
		return -1, nil
	}
	return int64(n), nil
}

// Instance has the methods of *ledger.Instance that this package needs: the process that
// leases, and the transactions of a window. After an error of these methods it is unknown
// whether something was written. False without an error means that the call's Footing was out
// of date, so that another one is due.
type Instance interface {
	Room() allocator.Room
	Name() allocator.Instance
	Incarnation() string
	Now() time.Time
	EtcdTime(ctx context.Context) (at time.Time, unsure time.Duration, err error)
	Layout() (record.Layout, <-chan struct{})
	Footing(ctx context.Context) (ledger.Footing, error)
	ReadWorkers(ctx context.Context, f ledger.Footing, bits int, slice allocator.Range,
		workers, heartbeats int64) (n ledger.Numbers, ok bool, err error)
	PutWorker(ctx context.Context, f ledger.Footing, n record.Number, w record.Worker, goes bool) (done bool, err error)
	HoldsWorker(id record.WorkerID) bool
	ReleaseWorker(id record.WorkerID)
}
