package timeid_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator/timeid"
)

// paces are what a clock may do while callers wait for it.
var paces = []func(ms, pause int64) int64{
	nil,
	func(ms, _ int64) int64 { return ms }, // frozen
	func(ms, pause int64) int64 { return ms + 2*pause },          // double speed
	func(ms, pause int64) int64 { return ms + (pause+1)/2 },      // half speed
	func(ms, pause int64) int64 { return ms + pause - 3*(ms%2) }, // jumps each ms
	func(ms, pause int64) int64 { return ms + 100*pause },
	func(ms, _ int64) int64 { return ms - 7 },
}

// small returns layouts with few bits of sequence, so that ticks overflow, and time
// bits that may end.
func small(t *rapid.T) timeid.Layout {
	l := randomLayout(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") })
	if rapid.Bool().Draw(t, "small") {
		l.SequenceBits = min(l.SequenceBits, rapid.IntRange(0, 4).Draw(t, "s"))
	}
	return l
}

// TestAgainstSlow compares a generator, call by call, with one that is obviously right, over
// random layouts, policies, windows and clocks.
func TestAgainstSlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := small(t)
		unit := l.Unit.Milliseconds()
		span := l.End() - l.Epoch
		draw := func(what string, from, to int64) int64 { return rapid.Int64Range(from, max(from, to)).Draw(t, what) }
		random := uint64(0)
		from := l.Epoch + draw("from", 0, min(span-unit, 1<<42))
		if rapid.Bool().Draw(t, "at the end") {
			from = l.End() - min(span, draw("before the end", 1, 50)*unit)
		}
		window := timeid.Window{From: from, Until: from + draw("window", 2, 40)*unit + draw("more", 0, unit-1)}
		cfg := timeid.Config{
			Layout: l, Worker: draw("worker", 0, l.Workers()-1), Window: window,
			Sequence: timeid.Sequence(draw("sequence", 0, 2)), CarryTo: draw("carry to", 1, l.PerTick()-1),
			RandomBelow: draw("random below", 1, l.PerTick()),
			Rollback:    timeid.Rollback(draw("rollback", 0, 2)),
			MaxWait:     time.Duration(draw("max wait", 1, 40)) * time.Millisecond,
			MaxAhead:    time.Duration(draw("max ahead", 1, 20)*unit) * time.Millisecond,
			Rand:        func(n uint64) uint64 { return random % n },
		}
		pace := paces[draw("pace", 0, int64(len(paces)-1))]
		clock := &fakeClock{ms: from + draw("now", -2*unit, 5*unit), pace: pace}
		mirror := &fakeClock{ms: clock.ms, pace: pace}
		want := &slow{cfg: cfg, clock: mirror, window: window}
		cfg.Clock, cfg.Pause = clock.now, clock.pause
		g, err := timeid.New(cfg)
		if err != nil {
			// This is allowed only if the window has no whole tick before the layout's end.
			if want.first() < want.end() && want.first()*unit < span {
				t.Fatal(err)
			}
			t.Skip("no tick in the window")
		}
		ctx := t.Context()
		last := int64(-1)
		check := func(id int64, p timeid.Parts) {
			if composed := slowCompose(l, p); !composed.IsInt64() || composed.Int64() != id {
				t.Fatalf("ID %d, want %v of %+v", id, composed, p)
			}
			if id <= last {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
		}
		next := func() {
			p, a := want.next(ctx)
			id, err := g.Next(ctx)
			if got := answerOf(t, err, want.window); got != a {
				t.Fatalf("Next: %v (%s), want %s", err, got, a)
			}
			if err == nil {
				check(id, p)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"next": func(*rapid.T) { next() },
			"burst": func(t *rapid.T) {
				for range rapid.IntRange(1, 50).Draw(t, "times") {
					next()
				}
			},
			"try": func(t *rapid.T) {
				p, a := want.try(false)
				if id, done := g.TryNext(); done != (a == ok) {
					t.Fatalf("TryNext: %v, want %s", done, a)
				} else if done {
					check(id, p)
				}
			},
			"run": func(t *rapid.T) {
				n := rapid.Int64Range(1, min(100, l.PerSecond())).Draw(t, "n")
				runs, err := g.NextN(ctx, n, nil)
				left := n
				for _, r := range runs {
					for k := range r.Count {
						p, a := want.next(ctx)
						if a != ok {
							t.Fatalf("NextN went on where %s", a)
						}
						check(r.First+k*r.Stride, p)
						left--
					}
				}
				if err != nil {
					if _, a := want.next(ctx); a != answerOf(t, err, want.window) {
						t.Fatalf("NextN: %v, want %s", err, a)
					}
				} else if left != 0 {
					t.Fatalf("NextN: %d IDs too few", left)
				}
			},
			"clock": func(t *rapid.T) {
				to := clock.now() + rapid.SampledFrom([]int64{1, -1, unit, -unit, 2, 5 * unit, -3 * unit,
					-30 * unit, 60 * unit}).Draw(t, "by")
				clock.set(to)
				mirror.set(to)
			},
			"window": func(t *rapid.T) {
				w := timeid.Window{From: want.window.Until + rapid.SampledFrom(
					[]int64{-unit, 0, 3 * unit, 7}).Draw(t, "gap")}
				w.Until = w.From + rapid.Int64Range(1, 30).Draw(t, "ticks")*unit
				err := g.Extend(w)
				later := slow{cfg: cfg, window: w}
				switch {
				case w.Until < want.window.Until,
					w.From > want.window.Until && (later.first() >= later.end() || later.first()*unit >= span):
					if err == nil {
						t.Fatalf("Extend to %v of %v", w, want.window)
					}
				case err != nil:
					t.Fatalf("Extend to %v: %v", w, err)
				default:
					want.extend(w)
				}
			},
			"": func(t *rapid.T) {
				if w := g.Window(); w != want.window {
					t.Fatalf("window %v, want %v", w, want.window)
				}
				if ahead := g.Stats().Ahead; ahead != time.Duration(want.ahead)*l.Unit {
					t.Fatalf("%v ahead, want %d ticks", ahead, want.ahead)
				}
			},
		})
		if used := g.Close(); used != want.used() || g.Close() != used {
			t.Fatalf("used until %d, want %d", used, want.used())
		}
		if _, err := g.Next(context.Background()); answerOf(t, err, want.window) != shut {
			t.Fatalf("after Close: %v", err)
		}
		if err := g.Extend(window); err != timeid.ErrClosed {
			t.Fatalf("Extend after Close: %v", err)
		}
	})
}
