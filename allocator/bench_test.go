package allocator_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// background makes a chain whose source refills in real time, as a room's chain
// does once it is warm: a segment has far more IDs than a round trip uses.
func background(b testing.TB, layout allocator.Layout) *allocator.Chain {
	b.Helper()
	refiller := newRefiller(b, allocator.DefaultRefillerConfig(time.Now, rand.Float64))
	m := newMemory(b, layout)
	m.latency = time.Millisecond
	chain := newChain(b, refiller, m, settings(50_000_000, 1_000_000_000, 10*time.Minute))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- refiller.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		<-done
	})
	if err := chain.Warm(ctx); err != nil {
		b.Fatal(err)
	}
	return chain
}

// share runs work(b.N/n) in n goroutines.
func share(b *testing.B, n int, work func(times int)) {
	b.Helper()
	var all sync.WaitGroup
	b.ResetTimer()
	for range n {
		all.Go(func() { work(b.N / n) })
	}
	all.Wait()
}

// BenchmarkIDs compares a chain with a bare atomic counter, the lower bound, in one run.
func BenchmarkIDs(b *testing.B) {
	ctx := context.Background()
	for _, goroutines := range []string{"1", "2"} {
		n := int(goroutines[0] - '0')
		b.Run("atomic/"+goroutines, func(b *testing.B) {
			counter := new(struct {
				_ [128]byte
				atomic.Int64
				_ [128]byte
			})
			share(b, n, func(times int) {
				var last int64
				for range times {
					last = counter.Add(1)
				}
				runtime.KeepAlive(last)
			})
		})
		for name, layout := range map[string]allocator.Layout{"strided": strided(), "dense": dense()} {
			b.Run("try/"+name+"/"+goroutines, func(b *testing.B) {
				chain := background(b, layout)
				b.ReportAllocs()
				share(b, n, func(times int) {
					var last int64
					for range times {
						id, ok := chain.TryNext()
						if !ok {
							var err error
							if id, err = chain.Next(ctx); err != nil {
								b.Error(err)
								return
							}
						}
						last = id
					}
					runtime.KeepAlive(last)
				})
			})
			b.Run("next/"+name+"/"+goroutines, func(b *testing.B) {
				chain := background(b, layout)
				b.ReportAllocs()
				share(b, n, func(times int) {
					var last int64
					for range times {
						id, err := chain.Next(ctx)
						if err != nil {
							b.Error(err)
							return
						}
						last = id
					}
					runtime.KeepAlive(last)
				})
			})
			b.Run("nextN1000/"+name+"/"+goroutines, func(b *testing.B) {
				chain := background(b, layout)
				b.ReportAllocs()
				share(b, n, func(times int) { // ns/op is for one ID
					var runs []allocator.Run
					var err error
					for ; times > 0; times -= 1000 {
						if runs, err = chain.NextN(ctx, int64(min(times, 1000)), runs[:0]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
