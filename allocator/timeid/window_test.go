package timeid_test

import (
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

func TestWindow(t *testing.T) {
	cfg, clock := config(2, 10*time.Millisecond)
	cfg.Window = timeid.Window{From: at + 1, Until: at + 39} // of whole ticks, 10 to 30
	g := newGenerator(t, cfg)
	clock.set(at - 1000)
	_, err := g.Next(t.Context())
	var window *timeid.WindowError
	if !errors.As(err, &window) || *window != (timeid.WindowError{Worker: 5, Now: at - 1000, Window: cfg.Window,
		Early: true, First: at + 10}) || allocator.KindOf(err) != allocator.Unavailable {
		t.Fatalf("%v", err)
	}
	clock.set(at + 5)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{1, 0}) // after a wait
	clock.set(at + 29)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{2, 0})
	clock.set(at + 30)
	_, err = g.Next(t.Context())
	const text = "the clock is at 2027-01-15T08:00:00.030Z, and the window of worker 5, " +
		"2027-01-15T08:00:00.001Z to 2027-01-15T08:00:00.039Z, has no tick left: retry once it is extended"
	if !errors.As(err, &window) || window.Early || err.Error() != text {
		t.Fatalf("%v", err)
	}
	if err := g.Extend(timeid.Window{From: at + 39, Until: at + 60}); err != nil {
		t.Fatal(err)
	}
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{3, 0})
	wantInvalid(t, g.Extend(timeid.Window{From: at, Until: at + 59}), "window", "until 2027-01-15T08:00:00.059Z")
	wantInvalid(t, g.Extend(timeid.Window{From: at + 60, Until: at + 60}), "window")
	wantInvalid(t, g.Extend(timeid.Window{From: at + 61, Until: at + 79}), "window", "no whole tick of 10ms")
	// After a gap comes another window; nothing of the gap is issued.
	if err := g.Extend(timeid.Window{From: at + 100, Until: at + 200}); err != nil {
		t.Fatal(err)
	}
	clock.set(at + 59)
	wantPairs(t, pairs(t, g, cfg.Layout, 1), [2]int64{10, 0})
	if used := g.Close(); used != at+110 || g.Close() != used {
		t.Errorf("used until %d", used-at)
	}
	if _, err := g.Next(t.Context()); !errors.Is(err, timeid.ErrClosed) ||
		allocator.KindOf(err) != allocator.Unavailable {
		t.Errorf("%v", err)
	}
	if _, done := g.TryNext(); done {
		t.Error("TryNext issued after Close")
	}
}

// TestEnd checks a layout whose time bits end while the generator runs, and before its start.
func TestEnd(t *testing.T) {
	p := preset(t, "uid-generator")
	end := p.Layout.End()
	clock := &fakeClock{ms: end - 1}
	cfg := timeid.Config{Layout: p.Layout, Worker: 5, Window: timeid.Window{From: end - 3000, Until: end + 5000},
		Clock: clock.now, Pause: clock.pause}
	g := newGenerator(t, cfg)
	id, err := g.Next(t.Context())
	if want := int64(1<<63 - 1<<35 + 5<<13); id != want || err != nil {
		t.Errorf("%d, %v; want %d", id, err, want)
	}
	clock.set(end)
	_, err = g.Next(t.Context())
	var ended *timeid.EndError
	if !errors.As(err, &ended) || *ended != (timeid.EndError{Now: end, End: end, Bits: 28}) ||
		allocator.KindOf(err) != allocator.Exhausted ||
		err.Error() != "the 28 time bits were used up at 2024-11-20T13:24:16.000Z, "+
			"and the clock is at 2024-11-20T13:24:16.000Z; a layout with a newer epoch or more bits is needed" {
		t.Errorf("%v", err)
	}
	cfg.Window = timeid.Window{From: end, Until: end + 5000}
	if _, err = timeid.New(cfg); !errors.As(err, &ended) {
		t.Errorf("%v", err)
	}
	// The very last ID of the layout, of 63 bits.
	last := timeid.Layout{TimeBits: 62, SequenceBits: 1, Unit: time.Millisecond}
	clock.set(last.End() - 1)
	g = newGenerator(t, timeid.Config{Layout: last, Window: timeid.Window{From: last.End() - 2, Until: last.End()},
		Clock: clock.now, Pause: clock.pause})
	if runs, err := g.NextN(t.Context(), 2, nil); err != nil || len(runs) != 1 ||
		runs[0] != (allocator.Run{First: allocator.MaxID - 1, Count: 2, Stride: 1}) {
		t.Errorf("%v, %v", runs, err)
	}
	if _, err := g.Next(t.Context()); !errors.As(err, &ended) {
		t.Errorf("%v", err)
	}
}
