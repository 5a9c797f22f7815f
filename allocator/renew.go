package allocator

import (
	"slices"
	"time"
)

// bounds say which segments a chain may hold, and which it has to replace.
type bounds struct {
	part   Part    // the newest part: segments that it outdates are replaced, and no longer accepted
	least  int64   // segments that begin below this ID are treated likewise
	limit  int64   // no ID from limit on is issued; 0 for no limit
	fading *fading // which segments the next one replaces; nil for none
	recent *recent // of an unordered chain; nil for any other
}

// renew stores part if it is the newest.
func (b *bounds) renew(part Part) {
	if part.Version > b.part.Version {
		b.part = part
	}
}

// outdated reports whether seg must be replaced.
func (b *bounds) outdated(seg Segment) bool { return b.part.Outdates(seg) || seg.First < b.least }

// cut returns the IDs of seg below the limit, which may be none.
func (b *bounds) cut(seg Segment) Segment {
	if b.limit < 1 || seg.Count < 1 {
		return seg
	}
	return seg.below(b.limit)
}

// Outdated reports whether the chain holds a segment that part outdates.
func (c *Chain) Outdated(part Part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.stock.holds(part.Outdates)
}

// Renew replaces the held segments that part outdates. The chain first leases a
// fresh segment with as many IDs as it holds, and then drops the old ones. So no
// caller waits, and the time of the next refill does not change. If a lease
// under way brings an outdated segment, that is dropped when it arrives. Renewed reports
// when all this is done.
func (c *Chain) Renew(part Part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.bounds.renew(part)
	c.requestIfNeeded(c.now())
}

// RenewIfKept is Renew for a chain with segments that part all keeps, so that nothing
// is leased or dropped. It returns false, and does nothing, if part outdates a held
// segment.
func (c *Chain) RenewIfKept(part Part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.stock.holds(part.Outdates) {
		return false
	}
	c.mu.bounds.renew(part)
	return true
}

// Renewed reports whether Renew(part) is done: every ID taken from now on is of a
// segment that was leased under part's layout or a later one, or that part keeps.
func (c *Chain) Renewed(part Part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return true
	}
	newest := c.mu.bounds.part
	return newest.Version >= part.Version && !c.mu.stock.holds(newest.Outdates)
}

// Skip replaces the held segments that begin below least, as Renew does: it leases
// first, then drops the old ones. The source's next segment must lie
// at or above least.
func (c *Chain) Skip(least int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.bounds.least = max(c.mu.bounds.least, least)
	c.requestIfNeeded(c.now())
}

// Unskip lowers to least what Skip demands of the segments to come.
func (c *Chain) Unskip(least int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.bounds.least = min(c.mu.bounds.least, least)
}

// Limit drops all held IDs from limit on, at once, and cuts later leases there.
// Raising the limit again does not bring these IDs back.
func (c *Chain) Limit(limit int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.bounds.limit != limit {
		c.mu.bounds.limit = limit
		c.mu.failed = nil // the failure may be due to the old limit
	}
	if c.mu.stock.limit(limit) {
		c.settle(c.now(), true)
	} else {
		c.requestIfNeeded(c.now())
	}
}

// Limited returns the limit that was set last, 0 for none.
func (c *Chain) Limited() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.bounds.limit
}

// ended reports whether the segment's IDs may not be issued any longer: by the
// monotonic or by the wall clock, whichever is first.
func (s Segment) ended(now time.Time) bool {
	return !s.Until.IsZero() && Elapsed(s.Until, now) >= 0
}

// endedAt selects the segments that have ended.
func endedAt(now time.Time) func(Segment) bool {
	return func(s Segment) bool { return s.ended(now) }
}

// meets reports whether s and o have the same range and boundary and an ID in
// common. For two layouts it returns false: the comparison would cost more, and
// uniqueness does not rest on it.
func (s Segment) meets(o Segment) bool {
	// If two segments of one range overlap, the larger first ID is in both.
	return s.Boundary == o.Boundary && s.Range == o.Range && s.First <= o.Last() && o.First <= s.Last()
}

// fading are the segments that the next one replaces: those that part outdates, those that end at until or before, and
// by Behind those that begin below least.
type fading struct {
	part   Part
	until  time.Time
	least  int64
	behind bool // callers wait for that
	asked  bool // a caller did: the lease is made though none may wait any longer
}

// fade returns what the next segment replaces, for a change.
func (b *bounds) fade() *fading {
	if b.fading == nil {
		b.fading = &fading{}
	}
	return b.fading
}

// fades reports whether the next segment replaces s.
func (b *bounds) fades(s Segment) bool {
	f := b.fading
	return f != nil && (f.part.Outdates(s) || !s.Until.IsZero() && !f.until.IsZero() && s.ended(f.until))
}

// replaced reports whether the next segment takes the place of s.
func (b *bounds) replaced(s Segment) bool { return b.outdated(s) || b.fades(s) }

// Replace leases one segment as if the chain did not hold the segments that part
// outdates and those that end at until or before. When the new segment is there, it
// drops them, unless the new one is outdated, too. Unlike Renew, Replace then does not
// try again by itself, because its source may be a room that does not know the newest
// layout yet. The caller checks later whether to call it again.
func (c *Chain) Replace(part Part, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.mu.bounds.fade()
	if part.Version > f.part.Version {
		f.part = part
	}
	if f.until.Before(until) {
		f.until = until
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
	c.mu.stock.drop(endedAt(now))
	if unused := c.unused(now); c.mu.stock.held() == 0 && c.mu.callers.wanted == 0 && unused >= idleAfter {
		c.mu.asleep = true
	}
	c.settle(now, false)
	if l := c.mu.stock.front.Load(); l.remaining() > 0 {
		next = l.seg.Until
	}
	for _, s := range c.mu.stock.tail {
		if next.IsZero() || !s.Until.IsZero() && s.Until.Before(next) {
			next = s.Until
		}
	}
	return next
}

// recent are the last segments that an unordered chain leased. The source never leases an ID of them again.
type recent struct{ segments []Segment }

// recentSegments is how many segments an unordered chain remembers.
const recentSegments = 16

// meets reports whether s has an ID of a remembered segment.
func (r *recent) meets(s Segment) bool { return r != nil && slices.ContainsFunc(r.segments, s.meets) }

// add remembers s.
func (r *recent) add(s Segment) {
	if r != nil {
		r.segments = append(r.segments, s)
		r.segments = slices.Delete(r.segments, 0, max(0, len(r.segments)-recentSegments))
	}
}
