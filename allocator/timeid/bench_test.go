package timeid_test

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator/timeid"
)

// alone is a word of the yardsticks, in cache lines of its own.
type alone struct {
	_ [128]byte
	atomic.Int64
	_ [128]byte
}

// locked is a usual generator, like those of well-known Go packages: a lock, the clock's tick,
// a sequence. Its clock is an argument, too.
type locked struct {
	mu       sync.Mutex
	clock    func() int64
	tick     int64
	sequence int64
	mask     int64
	shift    int
}

func (l *locked) next() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	if now == l.tick {
		if l.sequence = (l.sequence + 1) & l.mask; l.sequence == 0 {
			for now <= l.tick {
				now = l.clock()
			}
		}
	} else {
		l.sequence = 0
	}
	l.tick = now
	return now<<l.shift | l.sequence
}

// swap does the least that a generator with a clock must do: one reading of the clock, and one
// compare-and-swap that succeeds.
func swap(word *alone, now int64) int64 {
	for {
		old := word.Load()
		next := max(old+1, now)
		if word.CompareAndSwap(old, next) {
			return next
		}
	}
}

// rate returns how many times per second n goroutines together call op, in blocks of
// 1,000, for about d.
func rate(d time.Duration, n int, op func(times int)) float64 {
	var stop atomic.Bool
	var total atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	timer := time.AfterFunc(d, func() { stop.Store(true) })
	defer timer.Stop()
	for range n {
		group.Go(func() {
			done := int64(0)
			for ; !stop.Load(); done += 1000 {
				op(1000)
			}
			total.Add(done)
		})
	}
	group.Wait()
	return float64(total.Load()) / time.Since(start).Seconds()
}

// repeat makes an op from a call.
func repeat(call func() int64) func(int) {
	return func(times int) {
		var sum int64
		for range times {
			sum += call()
		}
		runtime.KeepAlive(sum)
	}
}

// compare reports the ratio of the rates of op and yard: the median over rounds that measure
// both in turn.
func compare(b *testing.B, goroutines int, op, yard func(times int)) {
	b.Helper()
	const rounds, unit = 7, 100 * time.Millisecond
	ratios, nanos, yards := make([]float64, rounds), make([]float64, rounds), make([]float64, rounds)
	for b.Loop() {
		for i := range rounds {
			mine, other := rate(unit, goroutines, op), rate(unit, goroutines, yard)
			ratios[i], nanos[i], yards[i] = mine/other, 1e9/mine, 1e9/other
		}
		slices.Sort(ratios)
		slices.Sort(nanos)
		slices.Sort(yards)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ratios[rounds/2], "times-yardstick's-rate")
	b.ReportMetric(nanos[rounds/2], "ns/ID")
	b.ReportMetric(yards[rounds/2], "yardstick-ns")
}

// benchGenerator is a generator with s bits of sequence and a window from now on.
func benchGenerator(b *testing.B, s int, clock func() int64) *timeid.Generator {
	b.Helper()
	now := time.Now().UnixMilli()
	return newGenerator(b, timeid.Config{
		Layout: timeid.Layout{TimeBits: 41, SequenceBits: s, Unit: time.Millisecond, Epoch: timeid.EpochCosId},
		Window: timeid.Window{From: now - 1000, Until: now + time.Hour.Milliseconds()}, Clock: clock,
	})
}

func nextOf(b *testing.B, g *timeid.Generator) func() int64 {
	ctx := b.Context()
	return func() int64 {
		id, err := g.Next(ctx)
		if err != nil {
			b.Error(err)
		}
		return id
	}
}

func wall() int64 { return time.Now().UnixMilli() }

// variable returns a clock that is a variable, which a goroutine sets each ms.
func variable(b *testing.B) func() int64 {
	b.Helper()
	ms := new(alone)
	ms.Store(wall())
	tick, stop := time.NewTicker(time.Millisecond), make(chan struct{})
	b.Cleanup(func() {
		tick.Stop()
		close(stop)
	})
	go func() {
		for {
			select {
			case <-tick.C:
				ms.Store(wall())
			case <-stop:
				return
			}
		}
	}()
	return ms.Load
}

// BenchmarkNext compares a generator of 22 bits of sequence with the least possible work and
// with a usual generator, in one run. "given" is a clock that is only a variable: it shows the
// cost of the generator itself.
func BenchmarkNext(b *testing.B) {
	for _, goroutines := range []int{1, 2} {
		name := string(rune('0' + goroutines))
		given := variable(b)
		b.Run("given/locked/"+name, func(b *testing.B) {
			l := &locked{clock: given, mask: 1<<22 - 1, shift: 22}
			compare(b, goroutines, repeat(nextOf(b, benchGenerator(b, 22, given))), repeat(l.next))
		})
		b.Run("given/swap/"+name, func(b *testing.B) {
			var word alone
			compare(b, goroutines, repeat(nextOf(b, benchGenerator(b, 22, given))), repeat(func() int64 {
				return swap(&word, given())
			}))
		})
		b.Run("computer/locked/"+name, func(b *testing.B) {
			l := &locked{clock: wall, mask: 1<<22 - 1, shift: 22}
			compare(b, goroutines, repeat(nextOf(b, benchGenerator(b, 22, nil))), repeat(l.next))
		})
		b.Run("computer/swap/"+name, func(b *testing.B) { // with the wall clock
			var word alone
			compare(b, goroutines, repeat(nextOf(b, benchGenerator(b, 22, nil))), repeat(func() int64 {
				return swap(&word, wall())
			}))
		})
		b.Run("computer/swap-monotonic/"+name, func(b *testing.B) { // with the cheapest clock there is
			var word alone
			base := time.Now()
			compare(b, goroutines, repeat(nextOf(b, benchGenerator(b, 22, nil))), repeat(func() int64 {
				return swap(&word, int64(time.Since(base)))
			}))
		})
	}
}

// BenchmarkLimit reports the rate of one worker with 12 bits of sequence as a share of the
// limit that the bits allow, 4.096 million per second.
func BenchmarkLimit(b *testing.B) {
	for name, clock := range map[string]func() int64{"given": wall, "computer": nil} {
		for _, goroutines := range []int{1, 2} {
			b.Run(name+"/"+string(rune('0'+goroutines)), func(b *testing.B) {
				g := benchGenerator(b, 12, clock)
				var shares []float64
				for b.Loop() {
					for range 5 {
						shares = append(shares, rate(200*time.Millisecond, goroutines, repeat(nextOf(b, g)))/4_096_000)
					}
				}
				slices.Sort(shares)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(shares[len(shares)/2], "of-the-limit")
			})
		}
	}
}
