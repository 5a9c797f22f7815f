package allocator

import (
	"context"
	"time"
)

// Update replaces the settings. They take effect at the next refill, which is
// requested at once if the chain now holds too few IDs. Its error is Invalid.
func (c *Chain) Update(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s != c.mu.pace.settings {
		c.mu.pace.settings = s
		c.requestIfNeeded(c.now())
	}
	return nil
}

// Observe measures the rate, and refills if the chain holds too little. The owner of
// the chain calls it every few seconds, because a chain that is hardly used does not
// measure itself. It returns how long no ID was issued.
func (c *Chain) Observe() (unused time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.settle(now, false)
	return c.unused(now)
}

// Warm leases the first segment ahead of the first caller, and returns when it
// is there. Its errors are Next's.
func (c *Chain) Warm(ctx context.Context) error { return c.wait(ctx, 1, 1) }

// WarmN is Warm for n IDs, 1 to 2^40: it returns when the chain holds so many. Another
// caller may take them first. It also asks the gate, if there is one. Its errors are
// Next's and Invalid.
func (c *Chain) WarmN(ctx context.Context, n int64) error {
	if err := checkCount(n); err != nil {
		return err
	}
	if err := c.wait(ctx, n, n); err != nil || c.gate == nil {
		return err
	}
	if held := c.Segments(); len(held) > 0 {
		if _, err := c.gate(held[0]); err != nil {
			return err
		}
	}
	return nil
}

// Close drops all held segments. Waiting callers and all later callers get
// ErrClosed.
func (c *Chain) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close()
}

// CloseKept is Close, and returns the segments that were held instead of dropping them: the next to be issued first.
// An ID is taken by a caller or in them, and never both.
func (c *Chain) CloseKept() (kept []Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.closed {
		c.mu.stock.putBack()
		kept, c.mu.stock.tail, c.mu.stock.tailHeld = c.mu.stock.tail, nil, 0
	}
	c.close()
	return kept
}

// Seed gives a chain that has leased nothing yet segments to begin with, each above the one before. IDs from the limit
// on are dropped. The bound of what it holds was that of the process that leased them.
func (c *Chain) Seed(segments []Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, seg := range segments {
		if seg = c.mu.bounds.cut(seg); seg.Count > 0 && seg.First > c.mu.stock.last {
			c.mu.stock.last = seg.Last()
			c.mu.stock.add(seg)
		}
	}
	c.mu.most = c.mu.stock.held()
}

// CloseUnused closes the chain if no ID was issued for idleAfter, and reports
// whether it did.
func (c *Chain) CloseUnused(idleAfter time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unused(c.now()) < idleAfter {
		return false
	}
	c.close()
	return true
}

// Cold reports whether no ID was issued for idleAfter, or none was ever leased and no
// caller waits for one. A prescaled chain is not cold: an operator expects callers.
func (c *Chain) Cold(idleAfter time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if s := c.mu.pace.settings; s.Prescale > 0 && now.Before(s.PrescaleUntil) {
		return false
	}
	return c.unused(now) >= idleAfter || c.mu.stock.last < 0 && c.mu.callers.wanted == 0
}

// unused returns how long no ID was seen to have been issued, and no caller waited for one. The caller holds the lock.
func (c *Chain) unused(now time.Time) time.Duration {
	if issued := c.mu.stock.issued(); issued != c.mu.seen || c.mu.callers.wanted > 0 {
		c.mu.seen, c.mu.used = issued, now
	}
	return now.Sub(c.mu.used)
}

func (c *Chain) close() {
	if c.mu.closed {
		return
	}
	c.mu.stock.drop(func(Segment) bool { return true })
	c.mu.closed = true
	c.mu.callers.wake()
}
