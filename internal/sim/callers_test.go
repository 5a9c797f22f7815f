package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/room"
)

// caller is a process of a caller that issues time-ordered IDs itself, with a worker that an
// instance lends to it. It issues until the end of its window, whatever becomes of the instance.
type caller struct {
	w      *world
	name   string
	clock  *wallClock
	began  time.Time
	lender *process // of loan; nil before the first
	loan   loan
	proof  string
	makers map[allocator.Tag]*timeid.Generator
}

// loan is a worker that an instance lent, with its window as it was then.
type loan struct {
	Worker int64
	Window timeid.Window
}

// callers keeps one such process running in a room: it ends now and then, and gives nothing back.
func (w *world) callers(in allocator.Room, lane int) {
	d, pace := w.dice("callers of "+string(in)), time.Second
	var c *caller
	for n := 1; w.sleep(w.end, d.between(time.Millisecond, pace), lane); {
		if c == nil || d.chance(40) {
			c = &caller{w: w, name: fmt.Sprintf("caller-%s#%d", in, n), clock: w.wallClock(w.skew(d)),
				began: time.Now()}
			n++
			pace = pick(d, []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second})
		}
		tag := pick(d, w.times)
		if c.clock.now().UnixMilli() > (c.loan.Window.From+c.loan.Window.Until)/2 || d.chance(20) {
			if err := c.ask(d, in, tag); err != nil {
				w.log("%-12s is lent nothing: %v", c.name, kind(err))
				w.count("workers of callers: "+kind(err), 1)
				if allocator.KindOf(err) != allocator.TooMany && !w.expected(err) {
					w.Errorf("%s: %v", c.name, err)
				}
			}
		}
		c.issue(d, tag)
	}
}

// ask asks an instance of a room for a window. Perhaps the caller never sees the answer.
func (c *caller) ask(d dice, in allocator.Room, tag timeTag) error {
	p := c.lender
	if p == nil || !p.runs() || d.chance(10) {
		p = pick(d, slices.DeleteFunc(slices.Clone(c.w.timers), func(s *slot) bool { return s.room != in })).running()
	}
	if p == nil || !p.runs() || p.link.paused() {
		return nil
	}
	ask := room.Ask{Nonce: strconv.FormatUint(d.Uint64(), 16), Age: time.Since(c.began)}
	if p == c.lender {
		ask.Held, ask.Proof = c.loan.Worker, c.proof
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.between(200*time.Millisecond, 2*time.Second))
	defer cancel()
	tags := p.timed.tags.Load()
	lent, err := tags.Lend(ctx, tags.get(ctx, tag), ask) // also without a worker for the instance
	if err != nil || d.chance(10) {                      // the answer is lost
		return err
	}
	loan := loan{lent.ID().Number, lent.Window()}
	if c.lender != p || c.loan.Worker != loan.Worker || loan.Window.From > c.loan.Window.Until {
		for _, g := range c.makers {
			g.Close()
		}
		c.makers = make(map[allocator.Tag]*timeid.Generator)
	}
	for _, g := range c.makers {
		if err := g.Extend(loan.Window); err != nil {
			return err
		}
	}
	c.w.count("workers of callers: lent or renewed", 1)
	c.lender, c.loan, c.proof = p, loan, ask.Nonce
	return nil
}

// issue issues an ID, if the window still lasts by the caller's clock.
func (c *caller) issue(d dice, tag timeTag) {
	if c.lender == nil {
		return
	}
	g := c.makers[tag.name]
	if g == nil {
		cfg := tag.settings.Config(c.loan.Worker, c.loan.Window)
		cfg.Clock = func() int64 { return c.clock.now().UnixMilli() }
		cfg.Rand = d.Uint64N
		var err error
		if g, err = timeid.New(cfg); err != nil {
			c.w.Errorf("%s: %v", c.name, err)
			return
		}
		c.makers[tag.name] = g
	}
	if id, ok := g.TryNext(); ok {
		c.w.count("time-ordered IDs of callers", 1)
		c.w.noteTimed(c.lender, tag, []allocator.Run{{First: id, Count: 1}}, 0)
	}
}
