package timeid_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator/timeid"
)

// fakeClock is a clock that a test moves. Its pace says how it moves while a caller pauses.
type fakeClock struct {
	mu   sync.Mutex
	ms   int64
	pace func(ms, pause int64) int64 // returns the new time; nil moves by the pause
}

func (c *fakeClock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ms
}

func (c *fakeClock) set(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ms = ms
}

func (c *fakeClock) pause(ctx context.Context, d time.Duration, _ int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pace == nil {
		c.ms += d.Milliseconds()
	} else {
		c.ms = c.pace(c.ms, d.Milliseconds())
	}
	return ctx.Err()
}

// slow is a generator in its plainest form: a lock, a tick, a sequence. It does what Generator
// must do for one caller at a time.
type slow struct {
	mu     sync.Mutex
	cfg    timeid.Config
	clock  *fakeClock
	window timeid.Window

	issued   bool  // in this window
	tick     int64 // of the last ID
	sequence int64 // of the last ID
	ahead    int64 // ticks
}

// answer is the outcome of a try.
type answer string

const (
	ok     answer = "ok"
	full   answer = "full"
	behind answer = "behind"
	over   answer = "over"
	ended  answer = "ended"
	shut   answer = "closed"
)

func (s *slow) unit() int64 { return s.cfg.Layout.Unit.Milliseconds() }

// first returns the first whole tick of the window, and end the one after the last.
func (s *slow) first() (tick int64) {
	for tick = (s.window.From - s.cfg.Layout.Epoch) / s.unit(); s.cfg.Layout.Epoch+
		tick*s.unit() < s.window.From; tick++ {
	}
	return tick
}

func (s *slow) end() int64 { return (s.window.Until - s.cfg.Layout.Epoch) / s.unit() }

// highest returns the tick below which the clock went back.
func (s *slow) highest() int64 {
	if s.issued {
		return s.tick
	}
	return s.first()
}

// start returns the first sequence of a tick. again says that the previous tick was full.
func (s *slow) start(again bool) int64 {
	largest := s.cfg.Layout.PerTick() - 1
	switch {
	case s.cfg.Sequence == timeid.Random:
		return int64(s.cfg.Rand(uint64(s.cfg.RandomBelow)))
	case s.cfg.Sequence == timeid.Reset || again:
		return 0
	case !s.issued || s.sequence >= s.cfg.CarryTo:
		return min(1, largest)
	}
	return min(s.sequence+1, largest)
}

// try issues the next ID at the clock's time if it can.
func (s *slow) try(waited bool) (timeid.Parts, answer) {
	l := s.cfg.Layout
	now := s.clock.now()
	if now < l.Epoch {
		return timeid.Parts{}, behind
	}
	tick := (now - l.Epoch) / s.unit()
	if now >= l.End() {
		return timeid.Parts{}, ended
	}
	if tick >= s.highest() {
		s.ahead = 0
	} else if tick+s.ahead < s.highest() {
		distance := s.highest() - tick
		if s.cfg.Rollback != timeid.Offset || time.Duration(distance) > s.cfg.MaxAhead/l.Unit {
			return timeid.Parts{}, behind
		}
		s.ahead = distance
	}
	var next, sequence int64
	switch {
	case !s.issued:
		next, sequence = max(tick, s.first()), s.start(false)
	case tick > s.tick:
		next, sequence = tick, s.start(waited)
	case s.sequence+1 < l.PerTick():
		next, sequence = s.tick, s.sequence+1
	case s.tick+1 <= tick+s.ahead:
		next, sequence = s.tick+1, s.start(true)
	default:
		return timeid.Parts{}, full
	}
	if next >= s.end() || next*s.unit() >= l.End()-l.Epoch {
		return timeid.Parts{}, over
	}
	s.issued, s.tick, s.sequence = true, next, sequence
	return timeid.Parts{Time: l.Epoch + next*s.unit(), Worker: s.cfg.Worker, Sequence: sequence}, ok
}

// next waits as the policies say.
func (s *slow) next(ctx context.Context) (timeid.Parts, answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var slept int64
	waited := false
	for {
		p, a := s.try(waited)
		var pause int64
		switch a {
		case full:
			waited = true
			pause = s.unit() - (s.clock.now()-s.cfg.Layout.Epoch)%s.unit()
			if slept >= s.unit()+s.cfg.MaxWait.Milliseconds() {
				return p, a
			}
		case behind:
			waited = false
			pause = s.cfg.Layout.Epoch + s.highest()*s.unit() - s.clock.now()
			if s.cfg.Rollback != timeid.Wait || slept+pause > s.cfg.MaxWait.Milliseconds() ||
				slept >= s.cfg.MaxWait.Milliseconds() {
				return p, a
			}
		default:
			return p, a
		}
		_ = s.clock.pause(ctx, time.Duration(pause)*time.Millisecond, 0)
		slept += pause
	}
}

// extend is Generator.Extend for an allowed window.
func (s *slow) extend(w timeid.Window) {
	if w.From > s.window.Until {
		s.window.From, s.issued = w.From, false
	}
	s.window.Until = w.Until
}

// used is the result of Generator.Close.
func (s *slow) used() int64 {
	if !s.issued {
		return s.window.From
	}
	return s.cfg.Layout.Epoch + (s.tick+1)*s.unit()
}

// answerOf returns the answer that an error stands for.
func answerOf(t interface{ Fatalf(string, ...any) }, err error, window timeid.Window) answer {
	var (
		windowError *timeid.WindowError
		overflow    *timeid.OverflowError
		rollback    *timeid.RollbackError
		end         *timeid.EndError
	)
	switch {
	case err == nil:
		return ok
	case errors.As(err, &windowError):
		if windowError.Window != window {
			t.Fatalf("%v; want the window %v", err, window)
		}
		if windowError.Early {
			return behind
		}
		return over
	case errors.As(err, &overflow):
		return full
	case errors.As(err, &rollback):
		return behind
	case errors.As(err, &end):
		return ended
	case errors.Is(err, timeid.ErrClosed):
		return shut
	}
	t.Fatalf("%v", err)
	return ""
}

func newGenerator(t testing.TB, cfg timeid.Config) *timeid.Generator {
	t.Helper()
	g, err := timeid.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
