package sim_test

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// timeTroubles are troubles only of clusters with time-ordered IDs; disasters are troubles of
// all.
func timeTroubles() []trouble {
	return []trouble{
		{"wall clock set", func(w *world, d dice) {
			if p := w.victim(d, w.timers); p != nil {
				p.timed.clock.change(w.log1("--- the clock of %s is set, ahead by %v", p.id, w.skew(d)), 1, 0)
			}
		}},
		{"wall clock that jumps each millisecond", func(w *world, d dice) {
			if p := w.victim(d, w.timers); p != nil {
				jitter := w.log1("--- the clock of %s jumps by up to %v", p.id,
					d.between(time.Millisecond, 500*time.Millisecond))
				p.timed.clock.change(w.skew(d), 1, jitter.Milliseconds())
			}
		}},
		{"wall clock that stands still", wrongSpeed(0)},
		{"wall clock of double speed", wrongSpeed(2)},
		{"pause", func(w *world, d dice) {
			if p := w.victim(d, w.timers); p != nil {
				p.link.pause(w.log1("--- %s is paused for %v", p.id, d.between(2*time.Second, 15*time.Second)))
			}
		}},
		{"restart at once", func(w *world, d dice) {
			if p := w.victim(d, w.timers); p != nil {
				w.log("--- %s crashes, and starts again", p.id)
				p.crash()
			}
		}},
		{"all machines asleep", func(w *world, d dice) {
			asleep := w.log1("--- %s sleep for %v", "all machines", d.between(time.Second, 25*time.Minute))
			w.slept.Add(int64(asleep))
		}},
		{"recover while a worker is taken", (*world).recoverWhileTaken},
	}
}

// recoverWhileTaken makes an instance take a worker and lose the answer. The instance is cut
// off, and a recover goes on without it. No window of the new epoch begins before not_before,
// not even the one that the instance finds in etcd.
func (w *world) recoverWhileTaken(d dice) {
	lane := w.lane()
	p := w.victim(d, w.timers)
	if p == nil || !p.runs() || !w.sound() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = p.timed.tags.Load().Close(ctx) // gives the worker back
	p.link.loses.Store(true)
	p.timed.anew()
	w.log("--- %s is to take a worker, and to hear of no answer", p.id)
	on := w.until(func() bool { return p.link.lost.Load() || !p.runs() || ctx.Err() != nil }, lane)
	if !on || !p.link.lost.Load() || !p.runs() || !w.sound() {
		p.link.loses.Store(false)
		return
	}
	w.log("--- %s is cut off until a recover has gone on without it", p.id)
	p.link.stall(time.Hour)
	w.leaveOutNext(&leftOut{p, false})
	w.halt(d)
	w.recoverSoon()
	w.until(w.sound, lane)
	w.leaveOutNext(nil)
	p.link.loses.Store(false)
	p.link.stall(d.between(0, 3*time.Second))
	w.count("recovers while a worker was taken", 1)
}

// wrongSpeed makes a clock run at another speed for a while. If clocks are to be right, the
// while is short enough.
func wrongSpeed(speed int64) func(w *world, d dice) {
	return func(w *world, d dice) {
		p := w.victim(d, w.timers)
		if p == nil {
			return
		}
		most := 3 * time.Second
		if w.wild {
			most = 20 * time.Second
		}
		clock, lane, back := p.timed.clock, w.lane(), w.skew(d)
		during := w.log1(fmt.Sprintf("--- the clock of %%s has speed %d for %%v", speed), p.id,
			d.between(100*time.Millisecond, most))
		clock.runs(speed)
		w.actors.Go(func() {
			w.sleep(w.heal, during, lane)
			if !w.healed.Load() {
				clock.change(back, 1, 0)
			}
		})
	}
}

// timeTrouble brings these troubles until all heals.
func (w *world) timeTrouble(lane int) {
	d := w.dice("trouble of times")
	some := slices.DeleteFunc(timeTroubles(), func(t trouble) bool { return t.name != *with && !d.chance(2) })
	for len(some) > 0 && w.sleep(w.heal, d.between(100*time.Millisecond, 5*time.Second), lane) {
		t := pick(d, some)
		if i := slices.IndexFunc(some, func(t trouble) bool { return t.name == *with }); i >= 0 && d.chance(2) {
			t = some[i]
		}
		w.count("trouble: "+t.name, 1)
		t.bring(w, d)
	}
}

// pause makes the process of a link do nothing for a while, as SIGSTOP does: it receives and
// sends nothing, and answers no caller.
func (l *link) pause(d time.Duration) {
	l.stall(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.paused = time.Now().Add(d)
}

// paused reports whether the process of a link is paused.
func (l *link) paused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.mu.paused) && !l.w.healed.Load()
}

// withTimes reports whether every seed has time-ordered IDs.
func withTimes() bool {
	return *with == timeTags || slices.ContainsFunc(timeTroubles(), func(t trouble) bool { return t.name == *with })
}
