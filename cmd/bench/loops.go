package main

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
)

// counter is a yardstick, alone in its cache lines.
type counter struct {
	_ [128]byte
	n atomic.Int64
	_ [128]byte
}

// A loop makes a thousand IDs and returns their sum. The functions that make loops are not inlined: in a large
// function the compiler inlines less than in a caller's own loop. Each source of IDs has a loop of its own, as
// TryNext is inlined only where its type is known.
type loop func() (sum int64, err error)

// perSecond measures for a unit how many IDs a second a loop makes on some goroutines.
func (p *part) perSecond(goroutines int, body loop) float64 {
	return p.during(p.unit, goroutines, body)
}

func (p *part) during(d time.Duration, goroutines int, body loop) float64 {
	var stop atomic.Bool
	var total atomic.Int64
	var group errgroup.Group
	start := time.Now()
	for range goroutines {
		group.Go(func() error {
			var done, all int64
			for ; !stop.Load(); done += 1000 {
				sum, err := body()
				if err != nil {
					return err
				}
				all += sum
			}
			total.Add(done)
			sink.Store(all)
			return nil
		})
	}
	time.Sleep(d)
	stop.Store(true)
	p.check(group.Wait())
	return float64(total.Load()) / time.Since(start).Seconds()
}

// sink keeps results in use.
var sink atomic.Int64

//go:noinline
func addLoop(c *counter) loop {
	return func() (sum int64, _ error) {
		for range 1000 {
			sum += c.n.Add(1)
		}
		return sum, nil
	}
}

// chainLoop calls Next the way its documentation shows: TryNext is part of the loop, and Next is
// called when TryNext finds no ID.
//
//go:noinline
func chainLoop(ctx context.Context, c *allocator.Chain) loop {
	return func() (sum int64, err error) {
		for range 1000 {
			id, ok := c.TryNext()
			if !ok {
				if id, err = c.Next(ctx); err != nil {
					return 0, err
				}
			}
			sum += id
		}
		return sum, nil
	}
}

// clientLoop is chainLoop for a client's tag.
//
//go:noinline
func clientLoop(ctx context.Context, t *client.Tag) loop {
	return func() (sum int64, err error) {
		for range 1000 {
			id, ok := t.TryNext()
			if !ok {
				if id, err = t.Next(ctx); err != nil {
					return 0, err
				}
			}
			sum += id
		}
		return sum, nil
	}
}

// timeLoop is chainLoop for a generator of time-ordered IDs.
//
//go:noinline
func timeLoop(ctx context.Context, g *timeid.Generator) loop {
	return func() (sum int64, err error) {
		for range 1000 {
			id, ok := g.TryNext()
			if !ok {
				if id, err = g.Next(ctx); err != nil {
					return 0, err
				}
			}
			sum += id
		}
		return sum, nil
	}
}

// callLoop calls next without a pause. Whatever next calls is not inlined.
//
//go:noinline
func callLoop(next func() (int64, error)) loop {
	return func() (sum int64, _ error) {
		for range 1000 {
			id, err := next()
			if err != nil {
				return 0, err
			}
			sum += id
		}
		return sum, nil
	}
}

// clockAndSwap does the least that a generator with a clock must do for an ID: it reads the
// clock once, and compares and swaps once.
func clockAndSwap() func() (int64, error) {
	var c counter
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

// tail measures single calls of op for two units, and returns the 99.99th percentile, in nanoseconds.
func (p *part) tail(op func()) func() float64 {
	return func() float64 {
		h := hdrhistogram.New(1, int64(time.Minute), 3)
		for start, last := time.Now(), time.Now(); last.Sub(start) < 2*p.unit; {
			op()
			now := time.Now()
			_ = h.RecordValue(int64(now.Sub(last)))
			last = now
		}
		return float64(h.ValueAtQuantile(99.99))
	}
}

// allocations returns a row of the allocations of a call.
func allocations(what string, op func()) *row {
	return &row{what: "allocations per " + what, atMost: true, march: func() float64 {
		return testing.AllocsPerRun(100_000, op)
	}}
}
