package allocator

import "slices"

// Outdated reports whether the chain holds a segment that part outdates.
func (c *Chain) Outdated(part Part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holdsAny(part.Outdates)
}

// Renew replaces the held segments that part outdates. The chain first leases a
// fresh segment with as many IDs as it holds, and then drops the old ones. So no
// caller waits, and the time of the next refill does not change. If a lease
// under way brings an outdated segment, that is dropped when it arrives. Renewed reports
// when all this is done.
func (c *Chain) Renew(part Part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setNewest(part)
	c.requestIfNeeded(c.now())
}

// RenewIfKept is Renew for a chain with segments that part all keeps, so that nothing
// is leased or dropped. It returns false, and does nothing, if part outdates a held
// segment.
func (c *Chain) RenewIfKept(part Part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holdsAny(part.Outdates) {
		return false
	}
	c.setNewest(part)
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
	return c.mu.part.Version >= part.Version && !c.holdsAny(c.mu.part.Outdates)
}

// setNewest stores part if it is the newest. The caller holds the lock.
func (c *Chain) setNewest(part Part) {
	if part.Version > c.mu.part.Version {
		c.mu.part = part
	}
}

// Skip replaces the held segments that begin below least, as Renew does: it leases
// first, then drops the old ones. The source's next segment must lie
// at or above least.
func (c *Chain) Skip(least int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.least = max(c.mu.least, least)
	c.requestIfNeeded(c.now())
}

// Unskip lowers to least what Skip demands of the segments to come.
func (c *Chain) Unskip(least int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.least = min(c.mu.least, least)
}

// Limit drops all held IDs from limit on, at once, and cuts later leases there.
// Raising the limit again does not bring these IDs back.
func (c *Chain) Limit(limit int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.limit != limit {
		c.mu.limit = limit
		c.mu.failed = nil // the failure may be due to the old limit
	}
	if !c.holdsAny(func(s Segment) bool { return s.Last() >= limit }) {
		c.requestIfNeeded(c.now())
		return
	}
	c.putBack()
	kept := c.mu.tail[:0]
	for _, s := range c.mu.tail {
		below := s.below(limit)
		c.mu.tailHeld -= s.Count - below.Count
		c.mu.dropped += s.Count - below.Count
		if below.Count > 0 {
			kept = append(kept, below)
		}
	}
	if c.mu.tail = kept; len(kept) == 0 {
		c.mu.tail = nil // let the array go
	}
	c.promote(c.now())
}

// Limited returns the limit that was set last, 0 for none.
func (c *Chain) Limited() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.limit
}

// renewing reports whether the chain holds a segment that must be replaced. The
// caller holds the lock.
func (c *Chain) renewing() bool { return c.holdsAny(c.outdated) }

// holdsAny reports whether match is true for a held segment. The caller holds the
// lock.
func (c *Chain) holdsAny(match func(Segment) bool) bool {
	l := c.front()
	return l.remaining() > 0 && match(l.seg) || slices.ContainsFunc(c.mu.tail, match)
}

// outdated reports whether seg must be replaced.
func (c *Chain) outdated(seg Segment) bool {
	return c.mu.part.Outdates(seg) || seg.First < c.mu.least
}
