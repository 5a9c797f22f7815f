package timeid_test

import (
	"context"
	"errors"
	"flag"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "2000"); err != nil { // a default: the command line is parsed later
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// at is the first time of the tests' clocks.
const at = 1_800_000_000_000

// config is a configuration of worker 5 with a window of an hour, and its clock.
func config(s int, unit time.Duration) (timeid.Config, *fakeClock) {
	clock := &fakeClock{ms: at}
	return timeid.Config{
		Layout: timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: s, Unit: unit, Epoch: timeid.EpochCosId},
		Worker: 5, Window: timeid.Window{From: at, Until: at + time.Hour.Milliseconds()},
		Clock: clock.now, Pause: clock.pause,
	}, clock
}

// pairs issues n IDs and returns their ticks after at, and sequences.
func pairs(t *testing.T, g *timeid.Generator, l timeid.Layout, n int) (all [][2]int64) {
	t.Helper()
	for range n {
		id, err := g.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Decompose(id)
		if err != nil || p.Worker != 5 {
			t.Fatal(p, err)
		}
		all = append(all, [2]int64{(p.Time - at) / l.Unit.Milliseconds(), p.Sequence})
	}
	return all
}

func wantPairs(t *testing.T, got [][2]int64, want ...[2]int64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("ticks and sequences %v, want %v", got, want)
	}
}

func TestReset(t *testing.T) {
	cfg, clock := config(2, time.Millisecond)
	g := newGenerator(t, cfg)
	wantPairs(t, pairs(t, g, cfg.Layout, 6), [2]int64{0, 0}, [2]int64{0, 1}, [2]int64{0, 2}, [2]int64{0, 3},
		[2]int64{1, 0}, [2]int64{1, 1})
	clock.set(at + 7)
	wantPairs(t, pairs(t, g, cfg.Layout, 2), [2]int64{7, 0}, [2]int64{7, 1})
	if s := g.Stats(); s.Overflows != 1 || s.OverflowWait != time.Millisecond || s.Rollbacks != 0 {
		t.Errorf("%+v", s)
	}
}

// TestCarry checks CosId's rule: the first ID has sequence 1; a new tick goes on, or begins at
// 1 from the threshold 2^(s-1)-1 on; after a full tick, at 0.
func TestCarry(t *testing.T) {
	cfg, clock := config(3, time.Millisecond)
	cfg.Sequence = timeid.Carry
	g := newGenerator(t, cfg)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{0, 1})
	clock.set(at + 1)
	wantPairs(t, pairs(t, g, cfg.Layout, 2), [2]int64{1, 2}, [2]int64{1, 3})
	clock.set(at + 2) // 3 is the threshold
	wantPairs(t, pairs(t, g, cfg.Layout, 8), [2]int64{2, 1}, [2]int64{2, 2}, [2]int64{2, 3}, [2]int64{2, 4},
		[2]int64{2, 5}, [2]int64{2, 6}, [2]int64{2, 7}, [2]int64{3, 0})
	cfg.CarryTo = 6
	g = newGenerator(t, cfg)
	pairs(t, g, cfg.Layout, 5)
	clock.set(at + 10)
	wantPairs(t, pairs(t, g, cfg.Layout, 2), [2]int64{10, 6}, [2]int64{10, 7})
	clock.set(at + 11) // full, but no call waited for this tick
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{11, 1})
}

// TestCarryIsEven checks that one ID per tick spreads evenly over id mod n. With Reset it would
// not.
func TestCarryIsEven(t *testing.T) {
	for sequence, want := range map[timeid.Sequence]int{timeid.Carry: 16, timeid.Reset: 1} {
		cfg, clock := config(12, time.Millisecond)
		cfg.Sequence = sequence
		g := newGenerator(t, cfg)
		shards := make(map[int64]int)
		for range 2047 * 4 {
			id, err := g.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			shards[id%16]++
			clock.set(clock.now() + 1)
		}
		if len(shards) != want {
			t.Errorf("%v: %d of 16 shards used, want %d: %v", sequence, len(shards), want, shards)
		}
		for shard, n := range shards {
			if want == 16 && (n < 508 || n > 512) {
				t.Errorf("%v: shard %d has %d of %d IDs", sequence, shard, n, 2047*4)
			}
		}
	}
}

func TestRandom(t *testing.T) {
	cfg, clock := config(12, time.Millisecond)
	cfg.Sequence = timeid.Random
	var asked []uint64
	cfg.Rand = func(n uint64) uint64 {
		asked = append(asked, n)
		return n - 1 - uint64(len(asked))
	}
	g := newGenerator(t, cfg)
	wantPairs(t, pairs(t, g, cfg.Layout, 2), [2]int64{0, 98}, [2]int64{0, 99})
	pairs(t, g, cfg.Layout, 4096-100)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{1, 97}) // after overflow, too
	clock.set(at + 2)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{2, 96})
	if !slices.Equal(asked, []uint64{100, 100, 100}) {
		t.Errorf("asked for numbers below %v", asked)
	}
	cfg.Rand, cfg.RandomBelow = nil, 7
	g = newGenerator(t, cfg)
	if p := pairs(t, g, cfg.Layout, 1); p[0][1] < 0 || p[0][1] > 6 {
		t.Errorf("sequence %v, want below 7", p)
	}
}

func TestRollbackWait(t *testing.T) {
	cfg, clock := config(12, time.Millisecond)
	g := newGenerator(t, cfg)
	pairs(t, g, cfg.Layout, 1)
	clock.set(at - 500)
	if _, done := g.TryNext(); done {
		t.Error("TryNext issued while the clock was behind")
	}
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{0, 1}) // the pause moved the clock
	clock.set(at - 501)
	_, err := g.Next(t.Context())
	var back *timeid.RollbackError
	if !errors.As(err, &back) || *back != (timeid.RollbackError{Policy: timeid.Wait, Now: at - 501, Last: at,
		Allowed: 500 * time.Millisecond}) ||
		!errors.Is(err, allocator.Unavailable) || allocator.KindOf(err) != allocator.Unavailable {
		t.Fatalf("%#v", err)
	}
	const text = "the clock went back: it is at 2027-01-15T07:59:59.499Z, 501 ms behind the last ID's " +
		"2027-01-15T08:00:00.000Z; allowed (wait): 500ms; retry when the clock has caught up"
	if err.Error() != text {
		t.Errorf("%v, want %s", err, text)
	}
	if n := g.Stats().Rollbacks; n != 1 { // of one ID
		t.Errorf("%d rollbacks", n)
	}
	clock.set(at - 100)
	clock.pace = paces[1] // frozen
	if _, err = g.Next(t.Context()); !errors.As(err, &back) {
		t.Errorf("with a clock that stands still: %v", err)
	}
}

func TestRollbackFail(t *testing.T) {
	cfg, clock := config(12, 10*time.Millisecond)
	cfg.Rollback = timeid.Fail
	g := newGenerator(t, cfg)
	clock.set(at + 20)
	pairs(t, g, cfg.Layout, 1)
	clock.set(at + 19)
	_, err := g.Next(t.Context())
	var back *timeid.RollbackError
	if !errors.As(err, &back) || back.Last != at+20 || back.Allowed != 0 {
		t.Fatalf("%v", err)
	}
	clock.set(at + 29)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{2, 1})
}

func TestRollbackOffset(t *testing.T) {
	cfg, clock := config(1, time.Millisecond)
	cfg.Rollback, cfg.MaxAhead = timeid.Offset, 10*time.Millisecond
	g := newGenerator(t, cfg)
	clock.set(at + 20)
	pairs(t, g, cfg.Layout, 1)
	clock.set(at + 10)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{20, 1})
	if s := g.Stats(); s.Ahead != 10*time.Millisecond || s.Rollbacks != 1 {
		t.Errorf("%+v", s)
	}
	// The tick is full: IDs of the next one come as the clock advances.
	wantPairs(t, pairs(t, g, cfg.Layout, 4), [2]int64{21, 0}, [2]int64{21, 1}, [2]int64{22, 0}, [2]int64{22, 1})
	if clock.now() != at+12 {
		t.Errorf("the clock is at %d", clock.now()-at)
	}
	clock.set(at + 11)
	_, err := g.Next(t.Context())
	var back *timeid.RollbackError
	if !errors.As(err, &back) || back.Now != at+11 || back.Last != at+22 || back.Allowed != 10*time.Millisecond {
		t.Fatalf("11 ms ahead: %v", err)
	}
	clock.set(at + 23)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{23, 0})
	if ahead := g.Stats().Ahead; ahead != 0 {
		t.Errorf("%v ahead of a clock that has caught up", ahead)
	}
	// No ID is past the window.
	end := cfg.Window.Until
	clock.set(end - 1)
	pairs(t, g, cfg.Layout, 1)
	clock.set(end - 5)
	pairs(t, g, cfg.Layout, 1)
	clock.set(end - 4)
	_, err = g.Next(t.Context())
	var window *timeid.WindowError
	if !errors.As(err, &window) || window.Early || window.Window != cfg.Window {
		t.Errorf("at the window's end: %v", err)
	}
}

// TestFrozen checks that a clock that stands still ends a call after one tick and MaxWait.
func TestFrozen(t *testing.T) {
	cfg, clock := config(1, 10*time.Millisecond)
	clock.pace = paces[1]
	g := newGenerator(t, cfg)
	pairs(t, g, cfg.Layout, 2)
	_, err := g.Next(t.Context())
	var overflow *timeid.OverflowError
	if !errors.As(err, &overflow) || *overflow != (timeid.OverflowError{Now: at, PerTick: 2,
		Waited: 510 * time.Millisecond}) || allocator.KindOf(err) != allocator.Unavailable {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the caller left"))
	if _, err = g.Next(ctx); allocator.KindOf(err) != allocator.Unavailable ||
		err.Error() != "no time-ordered ID before the caller's deadline: the caller left" {
		t.Errorf("%v", err)
	}
	if n := g.Stats().Overflows; n != 2 {
		t.Errorf("%d overflows", n)
	}
}

func TestRuns(t *testing.T) {
	cfg, _ := config(2, time.Millisecond)
	g := newGenerator(t, cfg)
	first := func(tick int64) int64 { return (at-timeid.EpochCosId+tick)<<12 | 5<<2 }
	runs, err := g.NextN(t.Context(), 9, nil)
	if want := []allocator.Run{{First: first(0), Count: 4, Stride: 1}, {First: first(1), Count: 4, Stride: 1},
		{First: first(2), Count: 1, Stride: 1}}; err != nil || !slices.Equal(runs, want) {
		t.Errorf("%v, %v; want %v", runs, err, want)
	}
	// Worker last: one run over all ticks, with a stride.
	cfg, _ = config(2, time.Millisecond)
	cfg.Layout.Order = timeid.WorkerLast
	g = newGenerator(t, cfg)
	runs, err = g.NextN(t.Context(), 9, nil)
	if want := []allocator.Run{{First: (at-timeid.EpochCosId)<<12 | 5, Count: 9, Stride: 1024}}; err != nil ||
		!slices.Equal(runs, want) {
		t.Errorf("%v, %v; want %v", runs, err, want)
	}
	for _, n := range []int64{-1, 0, 4001} {
		_, err := g.NextN(t.Context(), n, nil)
		wantInvalid(t, err, "count", "1 to 4000")
	}
}

func TestConfig(t *testing.T) {
	for _, test := range []struct {
		field  string
		change func(c *timeid.Config)
	}{
		{"unit", func(c *timeid.Config) { c.Layout = timeid.Layout{} }},
		{"worker", func(c *timeid.Config) { c.Worker = 1024 }},
		{"worker", func(c *timeid.Config) { c.Worker = -1 }},
		{"window", func(c *timeid.Config) { c.Window.From = timeid.EpochCosId - 1 }}, // an epoch in the future
		{"window", func(c *timeid.Config) { c.Window.Until = c.Window.From }},
		{"sequence", func(c *timeid.Config) { c.Sequence = 3 }},
		{"carry to", func(c *timeid.Config) { c.CarryTo = 4096 }},
		{"carry to", func(c *timeid.Config) { c.CarryTo = -1 }},
		{"random below", func(c *timeid.Config) { c.RandomBelow = 4097 }},
		{"rollback", func(c *timeid.Config) { c.Rollback = 3 }},
		{"max wait", func(c *timeid.Config) { c.MaxWait = -1 }},
		{"max wait", func(c *timeid.Config) { c.MaxWait = time.Minute + 1 }},
		{"max ahead", func(c *timeid.Config) { c.MaxAhead = 2 * time.Hour }},
	} {
		cfg, _ := config(12, time.Millisecond)
		test.change(&cfg)
		_, err := timeid.New(cfg)
		wantInvalid(t, err, test.field)
	}
}

// TestComputersClock uses the computer's clock, which synctest replaces.
func TestComputersClock(t *testing.T) {
	for _, unit := range []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(300*time.Microsecond + 7*time.Millisecond) // to the middle of a tick
			start := time.Now()
			cfg := timeid.Config{Layout: preset(t, "cosid").Layout,
				Window: timeid.Window{From: start.UnixMilli() - 1000, Until: start.UnixMilli() + 10_000}}
			cfg.Layout.Unit, cfg.Layout.Epoch, cfg.Layout.SequenceBits = unit, 0, 3
			cfg.Layout.TimeBits = 50
			g := newGenerator(t, cfg)
			for range 8 * 5 {
				id, err := g.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p, _ := cfg.Layout.Decompose(id)
				if lag := time.Now().UnixMilli() - p.Time; lag < 0 || lag >= unit.Milliseconds() {
					t.Fatalf("the ID is of %d ms ago", lag)
				}
			}
			if s := g.Stats(); s.Overflows != 4 || time.Since(start) > 4*unit {
				t.Errorf("%+v in %v", s, time.Since(start))
			}
			time.Sleep(time.Until(start.Add(11 * time.Second)))
			var window *timeid.WindowError
			if _, err := g.Next(t.Context()); !errors.As(err, &window) {
				t.Errorf("%v", err)
			}
			if err := g.Extend(timeid.Window{From: start.UnixMilli() + 20_000,
				Until: start.UnixMilli() + 30_000}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := g.Next(ctx); !errors.As(err, &window) || !window.Early {
				t.Errorf("%v", err)
			}
		})
	}
}

// The numbers of Wide are those of its narrow layout; with the worker they give its parts. Its
// IDs are no numbers.
func TestWide(t *testing.T) {
	const at = 1624425450192
	now := int64(at)
	g := newGenerator(t, timeid.Config{
		Layout: timeid.Wide, Worker: 1<<20 - 1, Sequence: timeid.Reset,
		Window: timeid.Window{From: at, Until: at + 1000}, Clock: func() int64 { return now },
	})
	for i := range int64(1<<16 + 2) {
		if i == 1<<16 {
			if id, ok := g.TryNext(); ok {
				t.Fatalf("ID %d in a full tick", id)
			}
			now++
		}
		id, ok := g.TryNext()
		want := timeid.Parts{Time: at + i>>16, Worker: 1<<20 - 1, Sequence: i & (1<<16 - 1)}
		if p := g.Parts(id); !ok || id != want.Time<<16|want.Sequence || p != want {
			t.Fatalf("number %d is %+v, want %+v", id, p, want)
		}
	}
	parts := timeid.Parts{Time: at, Worker: 1}
	if _, err := timeid.Wide.Compose(parts); err == nil {
		t.Error("an ID of 80 bits was composed")
	}
	if _, err := timeid.Wide.Decompose(1); err == nil {
		t.Error("a number was taken for an ID of 80 bits")
	}
	if err := timeid.Wide.Check(timeid.Parts{Time: 1 << 44}); err == nil {
		t.Error("a time of 45 bits was taken")
	}
	for _, change := range []func(*timeid.Layout){
		func(l *timeid.Layout) { l.Epoch = 1000 }, func(l *timeid.Layout) { l.Unit = time.Second },
		func(l *timeid.Layout) { l.Order = timeid.WorkerLast }, func(l *timeid.Layout) { l.TimeBits = 43 },
	} {
		l := timeid.Wide
		change(&l)
		wantInvalid(t, l.Validate(), "bits")
	}
}
