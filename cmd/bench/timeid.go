package main

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/sony/sonyflake/v2"

	"github.com/march-id/march/allocator/timeid"
)

const (
	snowflakeBits = 12 // of sequence, as in Snowflake
	wideBits      = 22 // of sequence: so many that the generator is the limit and not the bits
)

// generator returns a generator of one worker, with some bits of sequence and a window of
// an hour. A nil clock is the computer's.
func generator(sequenceBits int, clock func() int64) (*timeid.Generator, error) {
	now := time.Now().UnixMilli()
	return timeid.New(timeid.Config{
		Layout: timeid.Layout{TimeBits: 41, SequenceBits: sequenceBits, Unit: time.Millisecond,
			Epoch: timeid.EpochCosId},
		Window: timeid.Window{From: now, Until: now + time.Hour.Milliseconds()}, Clock: clock,
	})
}

// givenClock is a clock that is only a variable. A goroutine sets it each ms until stop.
func givenClock() (clock func() int64, stop func()) {
	ms := new(counter)
	ms.n.Store(time.Now().UnixMilli())
	var setting sync.WaitGroup
	over := make(chan struct{})
	setting.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case at := <-tick.C:
				ms.n.Store(at.UnixMilli())
			case <-over:
				return
			}
		}
	})
	return ms.n.Load, func() {
		close(over)
		setting.Wait()
	}
}

// callLoop calls next without a pause.
//
//go:noinline
func callLoop(next func() (int64, error), failed *failure) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		var sum int64
		for !stop.Load() {
			for range 1000 {
				id, err := next()
				if err != nil {
					failed.set(err)
					return done
				}
				sum += id
			}
			done += 1000
		}
		sink.Store(sum)
		return done
	}
}

// timeLoop takes IDs of g as a caller in the same process does.
//
//go:noinline
func timeLoop(ctx context.Context, g *timeid.Generator, failed *failure) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		var sum int64
		for !stop.Load() {
			for range 1000 {
				id, ok := g.TryNext()
				if !ok {
					var err error
					if id, err = g.Next(ctx); err != nil {
						failed.set(err)
						return done
					}
				}
				sum += id
			}
			done += 1000
		}
		sink.Store(sum)
		return done
	}
}

// clockAndSwap does the least that a generator with a clock must do for an ID: it reads the
// clock once, and compares and swaps once.
func clockAndSwap(c *counter) func() (int64, error) {
	return func() (int64, error) {
		now := time.Now().UnixMilli()
		for {
			old := c.n.Load()
			next := max(old+1, now)
			if c.n.CompareAndSwap(old, next) {
				return next, nil
			}
		}
	}
}

// others returns the generators of two well-known packages, with as many bits of sequence as
// this project's.
func others() (bwmarrin, sony func() (int64, error), err error) {
	snowflake.NodeBits, snowflake.StepBits = 0, wideBits // the package's way to set them
	node, err := snowflake.NewNode(0)
	if err != nil {
		return nil, nil, err
	}
	flake, err := sonyflake.New(sonyflake.Settings{
		BitsSequence: wideBits, BitsMachineID: 1, TimeUnit: time.Millisecond,
		MachineID: func() (int, error) { return 0, nil },
	})
	if err != nil {
		return nil, nil, err
	}
	return func() (int64, error) { return node.Generate().Int64(), nil }, flake.NextID, nil
}

// timeRows measures the generator of time-ordered IDs alone.
func timeRows(ctx context.Context, b *bench) error {
	given, stop := givenClock()
	defer stop()
	bwmarrin, sony, err := others()
	if err != nil {
		return err
	}
	var failed failure
	// rate returns how many IDs per second a new generator issues.
	rate := func(goroutines, sequenceBits int, clock func() int64) float64 {
		g, err := generator(sequenceBits, clock)
		if err != nil {
			failed.set(err)
			return 0
		}
		defer g.Close()
		return perSecond(b.unit, goroutines, timeLoop(ctx, g, &failed))
	}

	const limit = 1000 << snowflakeBits // per second
	limited := b.add(row{what: "time IDs, 12 bits of sequence, clock given, vs the bits' limit",
		unit: "/s", goal: 0.99})
	computer := b.add(row{what: "the same, real clock", unit: "/s", goal: 0.95})
	vsBwmarrin := [2]*row{
		b.add(row{what: "time IDs, 22 bits, clock given, 1 goroutine, vs bwmarrin/snowflake", unit: "/s", goal: 3}),
		b.add(row{what: "the same, 2 goroutines", unit: "/s", goal: 3}),
	}
	clockBwmarrin := b.add(row{what: "the same, real clock, 1 goroutine", unit: "/s"})
	vsSony := [2]*row{
		b.add(row{what: "time IDs, 22 bits, clock given, 1 goroutine, vs sonyflake v2", unit: "/s", goal: 3}),
		b.add(row{what: "the same, 2 goroutines", unit: "/s", goal: 3}),
	}
	clockSony := b.add(row{what: "the same, real clock, 1 goroutine", unit: "/s"})
	swap := b.add(row{what: "time per time ID, 22 bits, real clock, vs one clock read and one compare-and-swap",
		unit: "ns", goal: 1.2, atMost: true})
	allocs := b.add(row{what: "allocations per time ID", atMost: true})
	for range b.rounds {
		limited.measured, limited.yard = append(limited.measured, rate(1, snowflakeBits, func() int64 {
			return time.Now().UnixMilli()
		})), append(limited.yard, limit)
		computer.measured, computer.yard = append(computer.measured, rate(1, snowflakeBits, nil)),
			append(computer.yard, limit)
		for i := range vsBwmarrin {
			ours := rate(i+1, wideBits, given)
			vsBwmarrin[i].measured, vsSony[i].measured = append(vsBwmarrin[i].measured, ours),
				append(vsSony[i].measured, ours)
			vsBwmarrin[i].yard = append(vsBwmarrin[i].yard, perSecond(b.unit, i+1, callLoop(bwmarrin, &failed)))
			vsSony[i].yard = append(vsSony[i].yard, perSecond(b.unit, i+1, callLoop(sony, &failed)))
		}
		var word counter
		swap.yard = append(swap.yard, 1e9/perSecond(b.unit, 1, callLoop(clockAndSwap(&word), &failed)))
		clocked := rate(1, wideBits, nil)
		swap.measured = append(swap.measured, 1e9/clocked)
		clockBwmarrin.measured = append(clockBwmarrin.measured, clocked)
		clockBwmarrin.yard = append(clockBwmarrin.yard, vsBwmarrin[0].yard[len(vsBwmarrin[0].yard)-1])
		clockSony.measured = append(clockSony.measured, clocked)
		clockSony.yard = append(clockSony.yard, vsSony[0].yard[len(vsSony[0].yard)-1])
		g, err := generator(wideBits, nil)
		if err != nil {
			return err
		}
		allocs.measured = append(allocs.measured, testing.AllocsPerRun(100_000, func() { _, _ = g.Next(ctx) }))
		g.Close()
	}
	return failed.get()
}
