package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/room"
)

const (
	timeTag   = "timed"
	timeTag12 = "timed12" // as in Snowflake
)

// timeTagOf returns a tag with some bits of sequence, and workers for both rooms.
func timeTagOf(timeBits, workerBits, sequenceBits int) record.TimeTag {
	return record.NewTimeTag(timeid.Layout{
		TimeBits: timeBits, WorkerBits: workerBits, SequenceBits: sequenceBits, Unit: time.Millisecond,
		Epoch: timeid.EpochCosId,
	})
}

// createTimeTags creates the tags of time-ordered IDs.
func (c *cluster) createTimeTags(ctx context.Context) error {
	l, _, err := c.ledger()
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	for name, tag := range map[allocator.Tag]record.TimeTag{
		timeTag: timeTagOf(39, 2, wideBits), timeTag12: timeTagOf(41, 10, snowflakeBits),
	} {
		settings := record.DefaultTag()
		settings.Time = &tag
		if _, err := admin.New(l, admin.DefaultConfig()).CreateTag(ctx, name, settings, "bench"); err != nil {
			return err
		}
	}
	return nil
}

// timed has the tags of time-ordered IDs of an instance of room a, over a real etcd.
type timed struct {
	*room.Windows
	wide    *room.TimeTag
	ledger  *ledger.Ledger
	store   store.Store
	cluster *cluster
}

// startTimed starts an etcd and an instance. A nil now is the computer's clock, a nil age the
// age of the process.
func startTimed(ctx context.Context, now func() time.Time, age func() time.Duration) (_ *timed, err error) {
	c, err := startCluster(ctx)
	if err != nil {
		return nil, err
	}
	t := &timed{cluster: c}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if err := c.createTimeTags(ctx); err != nil {
		return nil, err
	}
	if t.ledger, t.store, err = c.ledger(); err != nil {
		return nil, err
	}
	instance, err := t.ledger.Join(ctx, ledger.Registration{Room: "a", Name: "bench", Address: "none"})
	if err != nil {
		return nil, err
	}
	cfg := worker.DefaultConfig()
	cfg.Now, cfg.Elapsed = now, age
	workers, err := worker.New(instance, cfg)
	if err != nil {
		return nil, err
	}
	of := room.WindowsConfig{Workers: workers}
	if now != nil {
		of.Clock = func() int64 { return now().UnixMilli() }
	}
	t.Windows = room.NewWindows(of)
	t.wide = t.Add(timeTag, timeTagOf(39, 2, wideBits), nil)
	err = t.wide.Warm(ctx)
	return t, err
}

func (t *timed) close() {
	if t.ledger != nil {
		_ = t.ledger.Close()
	}
	t.cluster.close()
}

// tagRows measures a tag of time-ordered IDs in a room's process, while its worker's window is
// renewed as often as possible: an instance that always counts as young renews each 1.5 s.
func tagRows(ctx context.Context, b *bench) error {
	t, err := startTimed(ctx, nil, func() time.Duration { return 0 })
	if err != nil {
		return err
	}
	defer t.close()
	running, stop := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() { t.Run(running) })
	defer renewing.Wait()
	defer stop()
	tail := b.add(row{what: "time tag's Next p99.99, windows renewed from etcd, vs Add with one clock read",
		unit: "ns", goal: 2, atMost: true})
	allocs := b.add(row{what: "allocations per time tag's Next", atMost: true})
	renewed := b.add(row{what: "writes to etcd in each of those rounds", unit: "writes"})
	var failed failure
	for range b.rounds {
		before, err := revision(ctx, t.store)
		if err != nil {
			return err
		}
		var add counter
		tail.yard = append(tail.yard, latencies(2*b.unit, func() { sink.Store(time.Now().UnixMilli() + add.n.Add(1)) }))
		tail.measured = append(tail.measured, latencies(2*b.unit, func() {
			if _, err := t.wide.Next(ctx); err != nil {
				failed.set(err)
			}
		}))
		allocs.measured = append(allocs.measured, testing.AllocsPerRun(100_000, func() { _, _ = t.wide.Next(ctx) }))
		after, err := revision(ctx, t.store)
		if err != nil {
			return err
		}
		renewed.measured = append(renewed.measured, float64(after-before))
	}
	return failed.get()
}

// windowRows counts etcd's writes in six hours of an instance with one width, with the clock
// moved by hand: for an idle tag, and for one that issues without a pause.
func windowRows(ctx context.Context, b *bench) error {
	const warm, steady, step = time.Hour, 6 * time.Hour, 10 * time.Second
	for _, rate := range []int64{1, 1_000_000} {
		var elapsed atomic.Int64
		start := time.Now()
		age := func() time.Duration { return time.Duration(elapsed.Load()) }
		t, err := startTimed(ctx, func() time.Time { return start.Add(age()) }, age)
		if err != nil {
			return err
		}
		var first, last int64
		for at := time.Duration(0); at < warm+steady && err == nil; at += step {
			if at == warm {
				first, err = revision(ctx, t.store)
			}
			if err == nil {
				_, err = t.wide.NextN(ctx, rate, nil)
			}
			elapsed.Add(int64(step))
			t.Look(ctx)
		}
		if err == nil {
			last, err = revision(ctx, t.store)
		}
		t.close()
		if err != nil {
			return err
		}
		b.add(row{
			what: fmt.Sprintf("etcd writes for windows per hour, instance and width, %s IDs each %v",
				number(float64(rate)), step), unit: "/h",
			measured: []float64{float64(last-first) / steady.Hours()}, goal: 13, atMost: true,
		})
	}
	return nil
}

// serveTimeTags starts an etcd with the tags of time-ordered IDs, and a room with some tags
// in memory.
func serveTimeTags(ctx context.Context, warm ...allocator.Tag) (*cluster, *served, error) {
	c, err := startCluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := c.createTimeTags(ctx); err != nil {
		c.close()
		return nil, nil, err
	}
	s, err := c.serve(ctx, "served", true, warm...)
	if err != nil {
		c.close()
	}
	return c, s, err
}

// timeClientRows measures IDs that a client issues in the caller's process.
func timeClientRows(ctx context.Context, b *bench) error {
	c, s, err := serveTimeTags(ctx, timeTag)
	if err != nil {
		return err
	}
	defer c.close()
	var calls atomic.Int64
	ids, err := client.New(ctx, client.Options{
		Addresses: []string{s.address}, WarmTags: []string{timeTag},
		Dial: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			conn *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			calls.Add(1)
			return invoker(ctx, method, req, reply, conn, opts...)
		})},
	})
	if err == nil {
		err = b.timeClient(ctx, ids, &calls)
		ids.Close()
	}
	return errors.Join(err, s.stop())
}

func (b *bench) timeClient(ctx context.Context, ids *client.Client, calls *atomic.Int64) error {
	t, err := ids.Tag(timeTag)
	if err != nil {
		return err
	}
	swap := b.add(row{what: "client, time per time ID, 22 bits, vs one clock read and one compare-and-swap",
		unit: "ns", goal: 1.2, atMost: true})
	allocs := b.add(row{what: "allocations per time ID of the client", atMost: true})
	rpcs := b.add(row{what: "its calls to the room for them", unit: "/s", goal: 10, atMost: true})
	var failed failure
	for range b.rounds {
		var word counter
		swap.yard = append(swap.yard, 1e9/perSecond(b.unit, 1, callLoop(clockAndSwap(&word), &failed)))
		before, start := calls.Load(), time.Now()
		swap.measured = append(swap.measured, 1e9/perSecond(b.unit, 1, plainClientLoop(ctx, t, &failed)))
		rpcs.measured = append(rpcs.measured, float64(calls.Load()-before)/time.Since(start).Seconds())
		allocs.measured = append(allocs.measured, testing.AllocsPerRun(100_000, func() { _, _ = t.Next(ctx) }))
	}
	return failed.get()
}

// timeCallRows compares Next of a time tag over gRPC with Next of a counter of the same room,
// in short turns as metricsRows does.
func timeCallRows(ctx context.Context, b *bench) error {
	c, s, err := serveTimeTags(ctx, tag, timeTag12)
	if err != nil {
		return err
	}
	defer c.close()
	calls := b.add(row{what: "gRPC Next of a time tag vs of a counter", unit: "/s", goal: 0.95})
	for range b.rounds {
		var timed, counted turns
		for turn := range metricsTurns {
			of, sum := timeTag12, &timed
			if turn%4 == 1 || turn%4 == 2 {
				of, sum = tag, &counted
			}
			if err := sum.add(ctx, load.Config{New: load.Unary(s.room, of), Duration: b.unit / 4}); err != nil {
				return errors.Join(err, s.stop())
			}
		}
		calls.measured, calls.yard = append(calls.measured, timed.rate()), append(calls.yard, counted.rate())
	}
	return s.stop()
}
