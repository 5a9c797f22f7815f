package allocator

import (
	"slices"
	"time"
)

// ended reports whether the segment's IDs may not be issued any longer: by the
// monotonic or by the wall clock, whichever says so first.
func (s Segment) ended(now time.Time) bool {
	return !s.Until.IsZero() && Elapsed(s.Until, now) >= 0
}

// meets reports whether s and o have an ID in common and are of one range and
// boundary. Under two layouts it says false: that takes more than two
// comparisons, and uniqueness does not rest on it.
func (s Segment) meets(o Segment) bool {
	// Of two that begin in one range and overlap, the later first ID is in both.
	return s.Boundary == o.Boundary && s.Range == o.Range && s.First <= o.Last() && o.First <= s.Last()
}

// recentSegments is how many segments an unordered chain remembers.
const recentSegments = 16

// fading is which segments the next one is to replace: those of layouts before
// version, and those that end at until or before. The zero value selects none.
type fading struct {
	version int64
	until   time.Time
}

func (f fading) selects(s Segment) bool {
	return s.Version < f.version || !s.Until.IsZero() && !f.until.IsZero() && s.ended(f.until)
}

// Replace leases one segment as if what is held of layouts before version, and
// what ends at until or before, were not held; when the segment is there, that
// is dropped, unless the segment is no better itself. So it is a wish, where
// Renew is an order: for a source that cannot be held to it, as a room that has
// not heard of the newest layout yet. Whoever asks looks later whether to ask
// again.
func (c *Chain) Replace(version int64, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.fading.version = max(c.mu.fading.version, version)
	if c.mu.fading.until.Before(until) {
		c.mu.fading.until = until
	}
	c.requestIfNeeded(c.now())
}

// Expire drops what has reached its end and returns when the next of what is
// held will, the zero time where nothing has an end. A chain that was not used
// for idleAfter and then holds nothing leases nothing before its next caller.
func (c *Chain) Expire(idleAfter time.Duration) (next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if issued := c.issued(); issued != c.mu.seen {
		c.mu.seen, c.mu.used = issued, now
	}
	c.dropEnded(now)
	if c.held() == 0 && c.mu.wanted == 0 && now.Sub(c.mu.used) >= idleAfter {
		c.mu.asleep = true
	}
	c.promote(now)
	if l := c.front(); l.left() > 0 {
		next = l.seg.Until
	}
	for _, s := range c.mu.tail {
		if next.IsZero() || !s.Until.IsZero() && s.Until.Before(next) {
			next = s.Until
		}
	}
	return next
}

// dropEnded gives up what has reached its end. The caller holds the lock.
func (c *Chain) dropEnded(now time.Time) {
	c.drop(func(s Segment) bool { return s.ended(now) })
}

// replacing reports whether something is held that the next segment is to
// replace. The caller holds the lock.
func (c *Chain) replacing() bool {
	f, l := c.mu.fading, c.front()
	return f != fading{} && (l.left() > 0 && f.selects(l.seg) || slices.ContainsFunc(c.mu.tail, f.selects))
}

// replaced drops what seg replaces, and remembers seg. The caller holds the
// lock.
func (c *Chain) replaced(seg Segment) {
	if f := c.mu.fading; f != (fading{}) && !f.selects(seg) {
		c.drop(f.selects)
	}
	c.mu.fading = fading{}
	if c.unordered {
		c.mu.recent = append(c.mu.recent, seg)
		c.mu.recent = c.mu.recent[max(0, len(c.mu.recent)-recentSegments):]
	}
}
