package timeid_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator/timeid"
)

// TestInterleaved runs calls in the middle of others. A call that reads the clock or asks for a
// random number has read the generator's words, and is about to move them. At that point
// another call comes in between, up to three deep.
func TestInterleaved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		cfg, clock := config(draw("bits", 3), time.Millisecond)
		cfg.Sequence, cfg.Rollback = timeid.Sequence(draw("sequence", 3)), timeid.Rollback(draw("rollback", 3))
		cfg.MaxAhead, cfg.RandomBelow = 5*time.Millisecond, 1
		cfg.Window.Until = at + 30
		var g *timeid.Generator
		issued := make(map[int64]bool)
		used, depth := int64(-1), 0 // used is the start of the worker's next owner
		take := func(id int64) {
			p, err := cfg.Layout.Decompose(id)
			if issued[id] || err != nil || p.Worker != cfg.Worker || p.Time < cfg.Window.From ||
				used >= 0 && p.Time >= used {
				t.Fatalf("ID %d, %+v (%v), was issued: %v; used until %d", id, p, err, issued[id], used)
			}
			issued[id] = true
		}
		act := func() {
			depth++
			defer func() { depth-- }()
			switch draw("act", 12) {
			case 0, 1, 2, 3:
				if id, done := g.TryNext(); done {
					take(id)
				}
			case 4, 5, 6:
				if id, err := g.Next(t.Context()); err == nil {
					take(id)
				}
			case 7:
				runs, _ := g.NextN(t.Context(), int64(1+draw("n", 9)), nil)
				for _, r := range runs {
					for k := range r.Count {
						take(r.First + k*r.Stride)
					}
				}
			case 8, 9:
				clock.set(clock.now() + int64(draw("by", 7)-2))
			case 10:
				w := g.Window()
				gap := int64(draw("gap", 4))
				if draw("gap at once", 2) == 0 {
					gap = 0
				}
				_ = g.Extend(timeid.Window{From: w.Until + gap, Until: w.Until + gap + 3})
			case 11:
				if draw("close", 4) == 0 {
					if end := g.Close(); used >= 0 && end != used {
						t.Fatalf("used until %d, and then %d", used, end)
					} else {
						used = end
					}
				}
			}
		}
		between := func() {
			if depth > 0 && depth < 4 && draw("between", 4) == 0 {
				act()
			}
		}
		cfg.Clock = func() int64 {
			ms := clock.now()
			between()
			return ms
		}
		cfg.Rand = func(uint64) uint64 {
			between()
			return 0
		}
		g = newRapidGenerator(t, cfg)
		for range 40 {
			act()
		}
		end := g.Close()
		for id := range issued {
			if p, _ := cfg.Layout.Decompose(id); p.Time >= end {
				t.Fatalf("%+v was issued, and the end is %d", p, end)
			}
		}
	})
}

func newRapidGenerator(t *rapid.T, cfg timeid.Config) *timeid.Generator {
	g, err := timeid.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// interrupted returns a generator of one ID. do runs in the middle of the next call, at its nth
// reading of the clock: before the second reading the call has read the generator's words.
func interrupted(t *testing.T, cfg timeid.Config, nth int, do func(g *timeid.Generator)) *timeid.Generator {
	t.Helper()
	clock, left := cfg.Clock, 0
	var g *timeid.Generator
	cfg.Clock = func() int64 {
		ms := clock()
		if left--; left == 0 {
			do(g)
		}
		return ms
	}
	g = newGenerator(t, cfg)
	if _, err := g.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	left = nth
	return g
}

// TestLate checks a caller that read the clock before another one issued an ID of a later tick.
// It gets an ID, and counts neither a rollback nor a full tick.
func TestLate(t *testing.T) {
	for _, rollback := range []timeid.Rollback{timeid.Wait, timeid.Offset, timeid.Fail} {
		for _, later := range []int64{0, 1, 10} {
			for nth := 1; nth <= 2; nth++ {
				cfg, clock := config(2, time.Millisecond)
				cfg.Rollback = rollback
				g := interrupted(t, cfg, nth, func(g *timeid.Generator) {
					clock.set(clock.now() + later)
					if _, err := g.Next(t.Context()); err != nil {
						t.Error(err)
					}
				})
				clock.set(at + 5) // so that the call looks again
				id, err := g.Next(t.Context())
				p, _ := cfg.Layout.Decompose(id)
				if err != nil || p.Time != at+5+later || g.Stats() != (timeid.Stats{}) {
					t.Errorf("%v, %d ms later, at read %d: %+v, %v, %+v", rollback, later, nth, p, err, g.Stats())
				}
			}
		}
	}
}

// TestCloseInCall checks that a call during which the generator is closed gets no ID.
func TestCloseInCall(t *testing.T) {
	for _, test := range []struct {
		by  int64 // the call is in the tick of the last ID, or in a later one
		nth int
	}{{0, 1}, {1, 1}, {1, 2}} {
		cfg, clock := config(2, time.Millisecond)
		g := interrupted(t, cfg, test.nth, func(g *timeid.Generator) {
			if used := g.Close(); used != at+1 {
				t.Errorf("used until %d", used)
			}
		})
		clock.set(at + test.by)
		if id, err := g.Next(t.Context()); err != timeid.ErrClosed {
			t.Errorf("%+v: %d, %v", test, id, err)
		}
	}
}

// TestLook checks that the wall clock is read each ms, whatever the unit.
func TestLook(t *testing.T) {
	for _, unit := range []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second} {
		cfg, _ := config(12, unit)
		now := time.Now().UnixMilli()
		cfg.Clock, cfg.Window = nil, timeid.Window{From: now - 5000, Until: now + 60_000}
		g := newGenerator(t, cfg)
		if _, err := g.Next(t.Context()); err != nil || g.Trusted() > time.Millisecond {
			t.Errorf("unit %v: %v without a look at the wall clock (%v)", unit, g.Trusted(), err)
		}
	}
}
