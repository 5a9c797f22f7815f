package main

import (
	"context"
	"syscall"
	"time"

	"github.com/march-id/march/cmd/internal/load"
)

// metricsTurns is how many turns make a round.
const metricsTurns = 16

// metricsRows compares Next of a room that counts and times its calls with one that does not.
// Both run, in short turns (on, off, off, on), so that other work of the machine slows both.
func metricsRows(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	on, err := c.serve(ctx, "on", true, tag)
	if err != nil {
		return err
	}
	off, err := c.serve(ctx, "off", false, tag)
	if err != nil {
		_ = on.stop()
		return err
	}
	defer func() { _ = off.stop() }()
	calls := b.add(row{what: "gRPC Next with metrics vs without", unit: "/s", goal: 0.95})
	cpu := b.add(row{what: "CPU per gRPC Next with metrics vs without", unit: "us", goal: 1.05, atMost: true})
	for range max(b.rounds, 5) { // the difference is small
		var with, without turns
		for turn := range metricsTurns {
			to, sum := on, &with
			if turn%4 == 1 || turn%4 == 2 {
				to, sum = off, &without
			}
			if err := sum.add(ctx, load.Config{New: load.Unary(to.room, tag), Duration: b.unit / 4}); err != nil {
				_ = on.stop()
				return err
			}
		}
		calls.measured, calls.yard = append(calls.measured, with.rate()), append(calls.yard, without.rate())
		cpu.measured, cpu.yard = append(cpu.measured, with.cost()), append(cpu.yard, without.cost())
	}
	return on.stop()
}

// turns is the result of several turns of load.
type turns struct {
	calls int64
	time  time.Duration
	cpu   time.Duration
}

func (t *turns) add(ctx context.Context, cfg load.Config) error {
	before := cpuTime()
	r, err := measure(ctx, cfg)
	t.cpu += cpuTime() - before
	t.calls += r.Calls
	t.time += r.Elapsed
	return err
}

// rate returns calls per second of both sides, and cost the processor's microseconds per call.
func (t *turns) rate() float64 { return float64(t.calls) / t.time.Seconds() }
func (t *turns) cost() float64 { return float64(t.cpu.Microseconds()) / float64(t.calls) }

// cpuTime returns how long this process has used processors.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
