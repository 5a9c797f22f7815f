package sim_test

import (
	"sync"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
)

// wallClock is the wall clock of an instance's machine. It goes on at some speed from a time
// that it showed.
type wallClock struct {
	w  *world
	mu struct {
		sync.Mutex
		set    time.Time     // when it was last set, in the simulation's time
		ahead  time.Duration // of the right time, when it was set
		speed  int64         // 1; 0 if it stands still
		jitter int64         // it jumps by up to this many ms each ms
		wrong  bool          // it once showed a time further off than clocks may be
	}
}

func (w *world) wallClock(ahead time.Duration) *wallClock {
	c := &wallClock{w: w}
	c.mu.set, c.mu.ahead, c.mu.speed = time.Now(), ahead, 1
	return c
}

// rightTime is the time that a clock should show: the simulation's own, plus the time that all
// machines slept.
func (w *world) rightTime() time.Time { return time.Now().Add(time.Duration(w.slept.Load())) }

// now returns the clock's time.
func (c *wallClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	right := c.w.rightTime()
	ahead := c.off()
	if c.mu.jitter > 0 {
		ms := uint64(right.UnixMilli())                                                       //nolint:gosec // after 1970
		ahead += time.Duration(int64(ms*2654435761%1009)*c.mu.jitter/1009) * time.Millisecond //nolint:gosec // below 1009
	}
	if ahead.Abs() > record.MaxAhead {
		c.mu.wrong = true
	}
	return right.Add(ahead)
}

// off returns how far the clock is ahead. The caller holds the lock.
func (c *wallClock) off() time.Duration {
	return c.mu.ahead + time.Duration(c.mu.speed-1)*time.Since(c.mu.set)
}

// change sets the clock and its speed.
func (c *wallClock) change(ahead time.Duration, speed, jitter int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.set, c.mu.ahead, c.mu.speed, c.mu.jitter = time.Now(), ahead, speed, jitter
}

// runs changes the clock's speed from now on.
func (c *wallClock) runs(speed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ahead, c.mu.set, c.mu.speed = c.off(), time.Now(), speed
}

// wrong reports whether the clock ever showed a time further off than clocks may be.
func (c *wallClock) wrong() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.wrong
}
