package allocator

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
