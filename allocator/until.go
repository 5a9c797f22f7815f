package allocator

import (
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

// fading is which segments the next one is to replace: those that part outdates,
// and those that end at until or before.
type fading struct {
	part  Part
	until time.Time
}

func (f *fading) selects(s Segment) bool {
	return f.part.Outdates(s) || !s.Until.IsZero() && !f.until.IsZero() && s.ended(f.until)
}

// Replace leases one segment as if the chain did not hold the segments that part
// outdates and those that end at until or before. When the new segment is there, it
// drops them, unless the new one is no better itself. Renew insists; Replace does
// not, as its source may be a room that has not heard of the newest layout yet. So the
// caller checks later whether to ask again.
func (c *Chain) Replace(part Part, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.rarely()
	if r.fading == nil {
		r.fading = &fading{}
	}
	if part.Version > r.fading.part.Version {
		r.fading.part = part
	}
	if r.fading.until.Before(until) {
		r.fading.until = until
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
	c.look(now, false)
	c.dropEnded(now)
	if c.held() == 0 && c.mu.wanted == 0 && c.since(now) >= idleAfter {
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
	f := c.mu.rare.replaces()
	return f != nil && c.holdsAny(f.selects)
}

// replaced drops what seg, which was leased and accepted, replaces, and ends what
// such a segment ends. The caller holds the lock.
func (c *Chain) replaced(seg Segment) {
	if f := c.mu.rare.replaces(); f != nil && !f.selects(seg) {
		c.drop(f.selects)
	}
	if !c.unordered {
		c.mu.rare = nil
		return
	}
	r := c.rarely()
	r.recent = append(r.recent, seg)
	*r = rare{recent: r.recent[max(0, len(r.recent)-recentSegments):]}
}
