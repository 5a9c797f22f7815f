package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/sony/sonyflake/v2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

const (
	timeTag   = "timed"
	timeTag12 = "timed12" // as in Snowflake

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

// givenClock is a clock that is only a variable. A goroutine sets it each ms.
func (p *part) givenClock() (clock func() int64) {
	ms := new(counter)
	ms.n.Store(time.Now().UnixMilli())
	testcluster.Start(p, func(ctx context.Context) error {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case at := <-tick.C:
				ms.n.Store(at.UnixMilli())
			case <-ctx.Done():
				return nil
			}
		}
	})
	return ms.n.Load
}

// timeRows measures the generator of time-ordered IDs alone, and against those of two well-known packages with
// as many bits of sequence.
func timeRows(p *part) {
	given := p.givenClock()
	snowflake.NodeBits, snowflake.StepBits = 0, wideBits // the package's way to set them
	node := must(snowflake.NewNode(0))
	bwmarrin := func() (int64, error) { return node.Generate().Int64(), nil }
	sony := must(sonyflake.New(sonyflake.Settings{
		BitsSequence: wideBits, BitsMachineID: 1, TimeUnit: time.Millisecond,
		MachineID: func() (int, error) { return 0, nil },
	})).NextID
	// ours returns how many IDs per second a new generator issues.
	ours := func(goroutines, sequenceBits int, clock func() int64) func() float64 {
		return func() float64 {
			g := must(generator(sequenceBits, clock))
			defer g.Close()
			return p.perSecond(goroutines, timeLoop(p.ctx, g))
		}
	}
	other := func(goroutines int, next func() (int64, error)) func() float64 {
		return func() float64 { return p.perSecond(goroutines, callLoop(next)) }
	}
	limit := func() float64 { return 1000 << snowflakeBits } // per second
	each := func(rate func() float64) func() float64 { return func() float64 { return 1e9 / rate() } }
	g := must(generator(wideBits, nil))
	defer g.Close()
	p.measure(p.rounds,
		&row{what: "time IDs, 12 bits of sequence, clock given, vs the bits' limit", unit: "/s", goal: 0.99,
			yard: limit, march: ours(1, snowflakeBits, func() int64 { return time.Now().UnixMilli() })},
		&row{what: "the same, real clock", unit: "/s", goal: 0.95, yard: limit, march: ours(1, snowflakeBits, nil)},
		&row{what: "time IDs, 22 bits, clock given, 1 goroutine, vs bwmarrin/snowflake", unit: "/s", goal: 3,
			yard: other(1, bwmarrin), march: ours(1, wideBits, given)},
		&row{what: "the same, 2 goroutines", unit: "/s", goal: 3,
			yard: other(2, bwmarrin), march: ours(2, wideBits, given)},
		&row{what: "the same, real clock, 1 goroutine", unit: "/s",
			yard: other(1, bwmarrin), march: ours(1, wideBits, nil)},
		&row{what: "time IDs, 22 bits, clock given, 1 goroutine, vs sonyflake v2", unit: "/s", goal: 3,
			yard: other(1, sony), march: ours(1, wideBits, given)},
		&row{what: "the same, 2 goroutines", unit: "/s", goal: 3,
			yard: other(2, sony), march: ours(2, wideBits, given)},
		&row{what: "the same, real clock, 1 goroutine", unit: "/s",
			yard: other(1, sony), march: ours(1, wideBits, nil)},
		&row{what: "time per time ID, 22 bits, real clock, vs one clock read and one compare-and-swap", unit: "ns",
			goal: 1.2, atMost: true, yard: each(other(1, clockAndSwap())), march: each(ours(1, wideBits, nil))},
		allocations("time ID", func() { _ = must(g.Next(p.ctx)) }))
}

// timeTagOf returns a tag with some bits of sequence, and workers for both rooms.
func timeTagOf(timeBits, workerBits, sequenceBits int) record.TimeTag {
	return record.NewTimeTag(timeid.Layout{
		TimeBits: timeBits, WorkerBits: workerBits, SequenceBits: sequenceBits, Unit: time.Millisecond,
		Epoch: timeid.EpochCosId,
	})
}

var wide = timeTagOf(39, 2, wideBits)

// timeCluster is a cluster with the tags of time-ordered IDs.
func (p *part) timeCluster() *testcluster.Cluster {
	c := p.cluster()
	for name, time := range map[allocator.Tag]record.TimeTag{
		timeTag: wide, timeTag12: timeTagOf(41, 10, snowflakeBits),
	} {
		c.Tag(func(s *record.TagSettings) { s.Time = &time }, "bench", name)
	}
	return c
}

// windows returns the wide tag of an instance of room a, over a real etcd. A nil now is the computer's clock, a
// nil age the age of the process.
func (p *part) windows(now func() time.Time, age func() time.Duration) (*room.Windows, *room.TimeTag, store.Store) {
	c := p.timeCluster()
	instance := must(c.Ledger().Join(p.ctx, ledger.Registration{Room: "a", Name: "bench", Address: "none"}))
	cfg := worker.DefaultConfig()
	cfg.Now, cfg.Elapsed = now, age
	of := room.WindowsConfig{Workers: must(worker.New(instance, cfg))}
	if now != nil {
		of.Clock = func() int64 { return now().UnixMilli() }
	}
	windows := room.NewWindows(of)
	t := windows.Add(timeTag, wide, nil)
	p.check(t.Warm(p.ctx))
	return windows, t, c.Open(p)
}

// tagRows measures a tag of time-ordered IDs in a room's process, while its worker's window is
// renewed as often as possible: an instance that always counts as young renews each 1.5 s.
func tagRows(p *part) {
	windows, t, etcd := p.windows(nil, func() time.Duration { return 0 })
	testcluster.Start(p, func(ctx context.Context) error {
		windows.Run(ctx)
		return nil
	})
	next := func() { _ = must(t.Next(p.ctx)) }
	var c counter
	before := p.revision(etcd)
	p.measure(p.rounds,
		&row{what: "time tag's Next p99.99, windows renewed from etcd, vs Add with one clock read", unit: "ns", goal: 2,
			atMost: true, yard: p.tail(func() { sink.Store(time.Now().UnixMilli() + c.n.Add(1)) }),
			march: p.tail(next)},
		allocations("time tag's Next", next),
		&row{what: "writes to etcd in each of those rounds", unit: "writes", march: func() float64 {
			now := p.revision(etcd)
			defer func() { before = now }()
			return float64(now - before)
		}})
}

// windowRows counts etcd's writes in six hours of an instance with one width, with the clock
// moved by hand: for an idle tag, and for one that issues without a pause.
func windowRows(p *part) {
	const warm, steady, step = time.Hour, 6 * time.Hour, 10 * time.Second
	for _, rate := range []int64{1, 1_000_000} {
		var elapsed atomic.Int64
		start := time.Now()
		age := func() time.Duration { return time.Duration(elapsed.Load()) }
		windows, t, etcd := p.windows(func() time.Time { return start.Add(age()) }, age)
		var first int64
		for at := time.Duration(0); at < warm+steady; at += step {
			if at == warm {
				first = p.revision(etcd)
			}
			_ = must(t.NextN(p.ctx, rate, nil))
			elapsed.Add(int64(step))
			windows.Look(p.ctx)
		}
		p.figure(row{
			what: fmt.Sprintf("etcd writes for windows per hour, instance and width, %s IDs each %v",
				number(float64(rate)), step), unit: "/h", goal: 13, atMost: true,
		}, float64(p.revision(etcd)-first)/steady.Hours())
	}
}

// timeClientRows measures IDs that a client issues in the caller's process.
func timeClientRows(p *part) {
	ids, calls := p.client(p.room(p.timeCluster(), "served", nil, timeTag).Address, timeTag)
	t := must(ids.Tag(timeTag))
	var rpcs float64
	p.measure(p.rounds,
		&row{what: "client, time per time ID, 22 bits, vs one clock read and one compare-and-swap", unit: "ns",
			goal: 1.2, atMost: true, yard: func() float64 { return 1e9 / p.perSecond(1, callLoop(clockAndSwap())) },
			march: func() float64 {
				before, start := calls.Load(), time.Now()
				rate := p.perSecond(1, callLoop(func() (int64, error) { return t.Next(p.ctx) }))
				rpcs = float64(calls.Load()-before) / time.Since(start).Seconds()
				return 1e9 / rate
			}},
		allocations("time ID of the client", func() { _ = must(t.Next(p.ctx)) }),
		&row{what: "its calls to the room for them", unit: "/s", goal: 10, atMost: true,
			march: func() float64 { return rpcs }})
}

// timeCallRows compares Next of a time tag over gRPC with Next of a counter of the same room,
// in short turns as metricsRows does.
func timeCallRows(p *part) {
	conns := p.conns(p.room(p.timeCluster(), "served", nil, tag, timeTag12).Address)
	r := &row{what: "gRPC Next of a time tag vs of a counter", unit: "/s", goal: 0.95}
	for range p.rounds {
		timed, counted := p.sides(load.Unary(conns, timeTag12), load.Unary(conns, tag))
		r.measured, r.yards = append(r.measured, timed.rate()), append(r.yards, counted.rate())
	}
	p.add(r)
}
