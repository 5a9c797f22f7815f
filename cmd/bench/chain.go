package main

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/embedded"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// cluster is an etcd in this process, with a layout of two rooms and a tag.
type cluster struct {
	dir      string
	etcd     *embedded.Server
	endpoint string
}

const (
	tag      = "bench"
	otherTag = "other"
)

func startCluster(ctx context.Context) (*cluster, error) {
	dir, err := os.MkdirTemp("", "march-bench-")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, endpoint: "unix://" + filepath.Join(dir, "c")}
	c.etcd, err = embedded.Start(ctx, embedded.Config{Dir: filepath.Join(dir, "data"), Client: c.endpoint,
		Peer: "unix://" + filepath.Join(dir, "p")})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	l, _, err := c.ledger()
	if err != nil {
		c.close()
		return nil, err
	}
	defer func() { _ = l.Close() }()
	own := admin.New(l, admin.DefaultConfig())
	layout, err := allocator.EqualLayout(1000, []allocator.Room{"a", "b"})
	if err == nil {
		_, err = own.Init(ctx, layout, "bench")
	}
	if err == nil {
		// No service issues 200 million IDs per second for long, as this benchmark does. A step
		// must last for some time at that rate; otherwise each refill is a race against etcd.
		settings := record.DefaultTag()
		settings.MaxStep = 100_000_000_000
		_, err = own.CreateTag(ctx, tag, settings, "bench")
	}
	if err == nil {
		_, err = own.CreateTag(ctx, otherTag, record.DefaultTag(), "bench")
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *cluster) ledger() (*ledger.Ledger, store.Store, error) {
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{c.endpoint}})
	if err != nil {
		return nil, nil, err
	}
	l, err := ledger.New(etcd, ledger.DefaultConfig())
	return l, etcd, err
}

func (c *cluster) close() {
	c.etcd.Close()
	_ = os.RemoveAll(c.dir)
}

// chain is a chain of room a over the real ledger, with its own refiller.
type chain struct {
	*allocator.Chain
	store store.Store
	stop  func()
}

func (c *cluster) chain(ctx context.Context, now func() time.Time) (*chain, error) {
	l, etcd, err := c.ledger()
	if err != nil {
		return nil, err
	}
	instance, err := l.Join(ctx, ledger.Registration{Room: "a", Name: "bench", Address: "none"})
	if err != nil {
		return nil, err
	}
	source, settings, err := instance.Source(ctx, tag)
	if err != nil {
		return nil, err
	}
	refiller, err := allocator.NewRefiller(allocator.DefaultRefillerConfig(now, rand.Float64))
	if err != nil {
		return nil, err
	}
	ch, err := allocator.NewChain(allocator.ChainConfig{Tag: tag, Source: source, Refiller: refiller,
		Settings: settings.Chain()})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	var refilling sync.WaitGroup
	refilling.Go(func() { _ = refiller.Run(running) })
	return &chain{Chain: ch, store: etcd, stop: func() {
		cancel()
		refilling.Wait()
		ch.Close()
		_ = l.Close()
	}}, nil
}

// counter is the yardstick, alone in its cache lines.
type counter struct {
	_ [128]byte
	n atomic.Int64
	_ [128]byte
}

// perSecond measures how often per second the body of loop runs on n goroutines. loop runs its
// body in rounds of 1,000 until stop is set.
func perSecond(d time.Duration, n int, loop func(stop *atomic.Bool) int64) float64 {
	var stop atomic.Bool
	var total atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	for range n {
		group.Go(func() { total.Add(loop(&stop)) })
	}
	time.Sleep(d)
	stop.Store(true)
	group.Wait()
	return float64(total.Load()) / time.Since(start).Seconds()
}

// The functions that make loops are not inlined: in a large function the compiler inlines less
// than in a caller's own loop.

//go:noinline
func addLoop(c *counter) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		var sum int64
		for !stop.Load() {
			for range 1000 {
				sum += c.n.Add(1)
			}
			done += 1000
		}
		sink.Store(sum)
		return done
	}
}

var sink atomic.Int64

// failure keeps the first error of a loop. Its set must not be inlined into the loop: then
// every round would allocate the error.
type failure struct{ first atomic.Pointer[error] }

//go:noinline
func (f *failure) set(err error) { f.first.CompareAndSwap(nil, &err) }

func (f *failure) get() error {
	if err := f.first.Load(); err != nil {
		return *err
	}
	return nil
}

// nextLoop calls Next the way its documentation shows: TryNext is part of the loop, and Next is
// called when TryNext finds no ID.
//
//go:noinline
func nextLoop(ctx context.Context, c *allocator.Chain, failed *failure) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		var sum int64
		for !stop.Load() {
			for range 1000 {
				id, ok := c.TryNext()
				if !ok {
					var err error
					if id, err = c.Next(ctx); err != nil {
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

// plainLoop calls Next each time.
//
//go:noinline
func plainLoop(ctx context.Context, c *allocator.Chain, failed *failure) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		var sum int64
		for !stop.Load() {
			for range 1000 {
				id, err := c.Next(ctx)
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

//go:noinline
func batchLoop(ctx context.Context, c *allocator.Chain, failed *failure) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		runs := make([]allocator.Run, 0, 8)
		for !stop.Load() {
			var err error
			for range 100 {
				if runs, err = c.NextN(ctx, 1000, runs[:0]); err != nil {
					failed.set(err)
					return done
				}
			}
			done += 100_000
		}
		return done
	}
}

// latencies measures single calls of op and returns the 99.99th percentile, in
// nanoseconds.
func latencies(d time.Duration, op func()) float64 {
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	for start, last := time.Now(), time.Now(); last.Sub(start) < d; {
		op()
		now := time.Now()
		_ = h.RecordValue(int64(now.Sub(last)))
		last = now
	}
	return float64(h.ValueAtQuantile(99.99))
}

func chainRows(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	ch, err := c.chain(ctx, time.Now)
	if err != nil {
		return err
	}
	defer ch.stop()

	one := b.add(row{what: "chain Next, 1 goroutine, vs atomic.Int64.Add", unit: "/s", goal: 0.95})
	two := b.add(row{what: "chain Next, 2 goroutines, vs contended Add", unit: "/s", goal: 0.90})
	plain := b.add(row{what: "the same, Next not inlined, 1 goroutine", unit: "/s"})
	batch := b.add(row{what: "chain NextN(1000), IDs, vs Add", unit: "/s", goal: 100})
	tail := b.add(row{what: "chain Next p99.99, refilled from etcd, vs Add", unit: "ns", goal: 2, atMost: true})
	allocs := b.add(row{what: "allocations per chain Next", atMost: true})
	var failed failure
	perSecond(2*b.unit, 2, nextLoop(ctx, ch.Chain, &failed)) // let the step grow
	for range b.rounds {
		var add counter
		// Measure yardstick and figure in turn, so that both see the same machine.
		one.yard = append(one.yard, perSecond(b.unit, 1, addLoop(&add)))
		one.measured = append(one.measured, perSecond(b.unit, 1, nextLoop(ctx, ch.Chain, &failed)))
		two.yard = append(two.yard, perSecond(b.unit, 2, addLoop(&add)))
		two.measured = append(two.measured, perSecond(b.unit, 2, nextLoop(ctx, ch.Chain, &failed)))
		plain.measured = append(plain.measured, perSecond(b.unit, 1, plainLoop(ctx, ch.Chain, &failed)))
		batch.measured = append(batch.measured, perSecond(b.unit, 1, batchLoop(ctx, ch.Chain, &failed)))
		tail.yard = append(tail.yard, latencies(2*b.unit, func() { add.n.Add(1) }))
		tail.measured = append(tail.measured, latencies(2*b.unit, func() {
			if _, err := ch.Next(ctx); err != nil {
				failed.set(err)
			}
		}))
		allocs.measured = append(allocs.measured, testing.AllocsPerRun(100_000, func() { _, _ = ch.Next(ctx) }))
	}
	plain.yard, batch.yard = one.yard, one.yard
	return failed.get()
}

// writeRows counts etcd's writes for six hours of a steady 100,000 IDs/s on
// one tag, with the clock moved by hand.
func writeRows(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	var elapsed atomic.Int64
	start := time.Now()
	ch, err := c.chain(ctx, func() time.Time { return start.Add(time.Duration(elapsed.Load())) })
	if err != nil {
		return err
	}
	defer ch.stop()
	const rate, tick = 100_000, 10 * time.Second
	var first, ids int64
	var runs []allocator.Run
	for at := time.Duration(0); at < 7*time.Hour; at += tick {
		if at == time.Hour { // the steps are steady by now
			if first, err = revision(ctx, ch.store); err != nil {
				return err
			}
			ids = 0
		}
		n := int64(rate * tick / time.Second)
		for left := n; left > 0; left -= 1000 {
			if runs, err = ch.NextN(ctx, 1000, runs[:0]); err != nil {
				return err
			}
		}
		ids += n
		elapsed.Add(int64(tick))
		ch.Observe()
	}
	last, err := revision(ctx, ch.store)
	if err != nil {
		return err
	}
	b.add(row{what: "etcd writes per million IDs, steady 100,000/s",
		measured: []float64{float64(last-first) / float64(ids) * 1e6}, goal: 1, atMost: true})
	return nil
}

// revision returns etcd's revision: it grows by one with each write.
func revision(ctx context.Context, etcd store.Store) (int64, error) {
	answer, err := etcd.Txn(ctx, store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: "none"}}}}})
	return answer.Revision, err
}
