package timeid_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/race"
)

// wildClock is a clock that many goroutines read. It advances with each read, and sometimes
// jumps.
type wildClock struct {
	reads atomic.Int64
	start int64
	wild  func(reads int64) int64 // ms after start
}

func (c *wildClock) now() int64 { return c.start + c.wild(c.reads.Add(1)) }

var wildClocks = map[string]func(reads int64) int64{
	"steady": func(n int64) int64 { return n / 64 },
	"fast":   func(n int64) int64 { return n },
	"slow":   func(n int64) int64 { return n / 4096 },
	"jumps":  func(n int64) int64 { return n/64 - n*2654435761>>7%9 },
	"back":   func(n int64) int64 { return n/64 - n/5000%2*40 },
	"ahead":  func(n int64) int64 { return n/64 + n/5000%3*25 },
}

func yield(context.Context, time.Duration, int) error {
	runtime.Gosched()
	return nil
}

// TestConcurrent checks that many goroutines never get an ID twice, nor one outside the
// windows, whatever the clock does, and neither from the generators that follow.
func TestConcurrent(t *testing.T) {
	for name, wild := range wildClocks {
		for _, rollback := range []timeid.Rollback{timeid.Wait, timeid.Offset, timeid.Fail} {
			for _, sequence := range []timeid.Sequence{timeid.Reset, timeid.Carry, timeid.Random} {
				t.Run(name+" "+rollback.String()+" "+sequence.String(), func(t *testing.T) {
					t.Parallel()
					clock := &wildClock{start: at, wild: wild}
					order := timeid.Order(len(name) % 2)
					cfg, _ := config(5, time.Millisecond)
					cfg.Layout.Order, cfg.Rollback, cfg.Sequence, cfg.RandomBelow = order, rollback, sequence, 3
					cfg.MaxAhead, cfg.MaxWait = 100*time.Millisecond, time.Second
					cfg.Clock, cfg.Pause = clock.now, yield
					cfg.Window = timeid.Window{From: at - 50, Until: at + 20}
					all := make(map[int64]bool)
					for range 3 { // processes that have the worker one after the other
						used := owner(t, cfg, all)
						cfg.Window = timeid.Window{From: used, Until: used + 20}
					}
					if len(all) == 0 {
						t.Error("nothing was issued")
					}
				})
			}
		}
	}
}

// owner runs a generator with several goroutines until it is closed during their calls, and
// adds the issued IDs to all.
func owner(t *testing.T, cfg timeid.Config, all map[int64]bool) (used int64) {
	t.Helper()
	const goroutines, each = 8, 600
	g := newGenerator(t, cfg)
	var got [goroutines][]int64
	var group sync.WaitGroup
	var extended atomic.Int64
	extended.Store(cfg.Window.Until)
	for i := range goroutines {
		group.Go(func() {
			for k := range each {
				switch {
				case k%16 == 15:
					runs, _ := g.NextN(t.Context(), 1+int64(k%40), nil)
					for _, r := range runs {
						for j := range r.Count {
							got[i] = append(got[i], r.First+j*r.Stride)
						}
					}
				case k%2 == 0:
					if id, err := g.Next(t.Context()); err == nil {
						got[i] = append(got[i], id)
					} else {
						answerless(t, err)
					}
				default:
					if id, done := g.TryNext(); done {
						got[i] = append(got[i], id)
					}
				}
				if k%50 == i {
					w := g.Window()
					if next := (timeid.Window{From: w.Until + int64(k%3), Until: w.Until + 20}); g.Extend(next) == nil {
						extended.Store(max(extended.Load(), next.Until))
					}
				}
				if i == 0 && k == each-50 {
					g.Close()
				}
			}
		})
	}
	group.Wait()
	used = g.Close()
	for i := range got {
		last := int64(-1)
		for _, id := range got[i] {
			p, err := cfg.Layout.Decompose(id)
			if all[id] || err != nil || p.Worker != cfg.Worker {
				t.Fatalf("ID %d (%+v, %v): issued before: %v", id, p, err, all[id])
			}
			if all[id] = true; id <= last {
				t.Fatalf("one goroutine got %d after %d", id, last)
			}
			if last = id; p.Time < cfg.Window.From || p.Time >= used {
				t.Fatalf("ID %d of %d is outside of [%d, %d)", id, p.Time-at, cfg.Window.From-at, used-at)
			}
		}
	}
	return used
}

// answerless fails for an error that is not one of the package.
func answerless(t *testing.T, err error) {
	t.Helper()
	switch err.(type) {
	case *timeid.WindowError, *timeid.RollbackError, *timeid.OverflowError:
	default:
		if err != timeid.ErrClosed {
			t.Errorf("%v", err)
		}
	}
}

// TestConcurrentFail checks that a caller which read the clock before others did gets no error
// that the clock went back.
func TestConcurrentFail(t *testing.T) {
	clock := &wildClock{start: at, wild: wildClocks["steady"]}
	cfg, _ := config(12, time.Millisecond)
	cfg.Clock, cfg.Pause, cfg.Rollback = clock.now, yield, timeid.Fail
	g := newGenerator(t, cfg)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 2000 {
				if _, err := g.Next(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if s := g.Stats(); s.Rollbacks != 0 || s.Overflows != 0 {
		t.Errorf("%+v", s)
	}
}

// TestFew checks that goroutines waste few sequences: a tick that is full takes no more.
func TestFew(t *testing.T) {
	clock := &wildClock{start: at, wild: wildClocks["slow"]}
	cfg, _ := config(8, time.Millisecond)
	cfg.Clock, cfg.Pause = clock.now, yield
	g := newGenerator(t, cfg)
	var issued atomic.Int64
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 5000 {
				if _, err := g.Next(t.Context()); err == nil {
					issued.Add(1)
				}
			}
		})
	}
	group.Wait()
	id, err := g.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, _ := cfg.Layout.Decompose(id)
	if capacity := (p.Time-at)*256 + p.Sequence + 1; issued.Load() < capacity*97/100 {
		t.Errorf("%d IDs issued of %d", issued.Load(), capacity)
	}
}

func TestNoAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	now := time.Now().UnixMilli()
	ctx := t.Context()
	var fixed int64
	for name, clock := range map[string]func() int64{"computer's": nil, "given": func() int64 {
		fixed++
		return now + fixed/1000
	}} {
		g := newGenerator(t, timeid.Config{Layout: preset(t, "cosid").Layout,
			Window: timeid.Window{From: now, Until: now + time.Hour.Milliseconds()}, Clock: clock})
		if n := testing.AllocsPerRun(50_000, func() {
			if _, err := g.Next(ctx); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s clock: %v allocations per Next", name, n)
		}
		runs := make([]allocator.Run, 0, 8)
		if n := testing.AllocsPerRun(100, func() {
			var err error
			if runs, err = g.NextN(ctx, 1000, runs[:0]); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s clock: %v allocations per NextN", name, n)
		}
	}
}
