package allocator

import (
	"slices"
	"time"
)

// ended reports whether the segment's IDs may not be issued any longer: by the
// monotonic or by the wall clock, whichever is first.
func (s Segment) ended(now time.Time) bool {
	return !s.Until.IsZero() && Elapsed(s.Until, now) >= 0
}

// meets reports whether s and o have the same range and boundary and an ID in
// common. For two layouts it returns false: the comparison would cost more, and
// uniqueness does not rest on it.
func (s Segment) meets(o Segment) bool {
	// If two segments of one range overlap, the larger first ID is in both.
	return s.Boundary == o.Boundary && s.Range == o.Range && s.First <= o.Last() && o.First <= s.Last()
}

// fading are the segments that the next one replaces: those that part outdates, and
// those that end at until or before.
type fading struct {
	part  Part
	until time.Time
}

func (f *fading) selects(s Segment) bool {
	return f.part.Outdates(s) || !s.Until.IsZero() && !f.until.IsZero() && s.ended(f.until)
}

// Replace leases one segment as if the chain did not hold the segments that part
// outdates and those that end at until or before. When the new segment is there, it
// drops them, unless the new one is outdated, too. Unlike Renew, Replace then does not
// try again by itself, because its source may be a room that does not know the newest
// layout yet. The caller checks later whether to call it again.
func (c *Chain) Replace(part Part, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.fading == nil {
		c.mu.fading = &fading{}
	}
	if part.Version > c.mu.fading.part.Version {
		c.mu.fading.part = part
	}
	if c.mu.fading.until.Before(until) {
		c.mu.fading.until = until
	}
	c.requestIfNeeded(c.now())
}

// Expire drops the segments that have ended. It returns when the next held segment
// ends, or the zero time if none has an end. A chain that was unused for idleAfter
// and then holds nothing leases nothing before its next caller.
func (c *Chain) Expire(idleAfter time.Duration) (next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.look(now, false)
	c.dropEnded(now)
	if c.held() == 0 && c.mu.wanted == 0 && c.since(now) >= idleAfter {
		c.mu.asleep = true
	}
	c.settle(now)
	if l := c.front(); l.remaining() > 0 {
		next = l.seg.Until
	}
	for _, s := range c.mu.tail {
		if next.IsZero() || !s.Until.IsZero() && s.Until.Before(next) {
			next = s.Until
		}
	}
	return next
}

// dropEnded drops the segments that have ended. The caller holds the lock.
func (c *Chain) dropEnded(now time.Time) {
	c.drop(func(s Segment) bool { return s.ended(now) })
}

// replacing reports whether the chain holds a segment that the next one replaces.
// The caller holds the lock.
func (c *Chain) replacing() bool {
	f := c.mu.fading
	return f != nil && c.holdsAny(f.selects)
}

// replaced drops the segments that seg replaces, and ends the replacement. seg was
// leased and accepted. The caller holds the lock.
func (c *Chain) replaced(seg Segment) {
	if f := c.mu.fading; f != nil && !f.selects(seg) {
		c.drop(f.selects)
	}
	c.mu.failed, c.mu.fading = nil, nil
	if c.unordered {
		c.mu.recent = append(c.mu.recent, seg)
		c.mu.recent = slices.Delete(c.mu.recent, 0, max(0, len(c.mu.recent)-recentSegments))
	}
}

// recentSegments is how many segments an unordered chain remembers.
const recentSegments = 16
