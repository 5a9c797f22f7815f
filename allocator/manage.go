package allocator

import (
	"context"
	"slices"
	"time"
)

// Status is what a chain looks like at one moment.
type Status struct {
	Tag     Tag
	Issued  int64         // IDs handed out since the chain was made
	Held    int64         // IDs in memory
	Dropped int64         // IDs leased and never to be issued
	Last    int64         // the last ID that was leased, -1 before any
	Target  int64         // how many IDs the chain aims to hold; its next step
	Peak    float64       // the recent peak rate, IDs per second
	Lasts   time.Duration // how long Held lasts at Peak; 0 when nothing is held, LongestReserve at most
	Refills int64         // segments leased
	Waits   int64         // callers that found nothing and waited
	Version int64         // the oldest layout of what is held; 0 when nothing is held
	Used    time.Time     // when IDs were last seen to have been issued
	Failure error         // of the last refill if it failed for this tag alone
}

// Status returns the chain's state.
func (c *Chain) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Tag: c.tag, Issued: c.issued(), Held: c.held(), Dropped: c.mu.dropped, Last: c.mu.last,
		Target: c.mu.pace.target(c.mu.settings, c.now()), Peak: c.mu.pace.peak,
		Refills: c.mu.refills, Waits: c.mu.waits, Version: c.version(),
		Used: c.mu.used, Failure: c.mu.failure,
	}
	s.Lasts = lasts(s.Held, s.Peak)
	return s
}

// Issued returns how many IDs were taken so far: Status knows it too, and costs
// more.
func (c *Chain) Issued() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.issued()
}

func lasts(held int64, peak float64) time.Duration {
	if held == 0 {
		return 0
	}
	if seconds := float64(held) / peak; seconds < LongestReserve.Seconds() {
		return time.Duration(seconds * float64(time.Second))
	}
	return LongestReserve
}

// version returns the oldest layout of what is held, 0 when nothing is. It
// need not be the first segment's: a client's source may ask one instance of a
// room and then another that knows less. The caller holds the lock.
func (c *Chain) version() int64 {
	var oldest int64
	if l := c.front(); l.left() > 0 {
		oldest = l.seg.Version
	}
	for _, s := range c.mu.tail {
		if oldest == 0 || s.Version < oldest {
			oldest = s.Version
		}
	}
	return oldest
}

// Update replaces the settings. They take effect at the next refill, which is
// asked for at once where the chain now holds too little. Its error is Invalid.
func (c *Chain) Update(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s != c.mu.settings {
		c.mu.settings = s
		c.requestIfNeeded(c.now())
	}
	return nil
}

// Observe measures the rate and refills where the chain holds too little: for
// whoever keeps chains to call every few seconds, since a chain that is hardly
// used does not come to look at itself. It returns how long no ID was issued.
func (c *Chain) Observe() (unused time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if issued := c.issued(); issued != c.mu.seen {
		c.mu.seen, c.mu.used = issued, now
	}
	c.promote(now)
	return now.Sub(c.mu.used)
}

// Warm leases the first segment ahead of the first caller, and returns when it
// is there. Its errors are Next's.
func (c *Chain) Warm(ctx context.Context) error { return c.wait(ctx, 1, 1) }

// Renew replaces what is held under layouts older than version: the chain
// leases a fresh segment first, and drops the old when it has it, so that no
// caller waits. A segment of an older layout whose lease is under way is
// dropped when it arrives. Renewed tells when it is done.
func (c *Chain) Renew(version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.oldest = max(c.mu.oldest, version)
	c.requestIfNeeded(c.now())
}

// Renewed reports whether Renew(version) is done: every ID taken from now on
// is of this version or a later one.
func (c *Chain) Renewed(version int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closed || c.mu.oldest >= version && (!c.renewing() || mutant("renewed-early"))
}

// Skip replaces what is held in segments that begin below least, as Renew
// does: fresh first, then the old is dropped. The source's next segment must lie
// at or above least.
func (c *Chain) Skip(least int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.least = max(c.mu.least, least)
	c.requestIfNeeded(c.now())
}

// renewing reports whether something is held that is to be replaced. The
// caller holds the lock.
func (c *Chain) renewing() bool {
	l := c.front()
	return l.left() > 0 && c.outdated(l.seg) || slices.ContainsFunc(c.mu.tail, c.outdated)
}

// outdated reports whether seg is to be replaced.
func (c *Chain) outdated(seg Segment) bool {
	return seg.Version < c.mu.oldest || seg.First < c.mu.least
}

// Close drops what is held. Callers that wait are let go with ErrClosed, and
// so are all who come later.
func (c *Chain) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close()
}

// CloseUnused closes the chain if no ID was issued for idleAfter, and reports
// whether it did.
func (c *Chain) CloseUnused(idleAfter time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unused() < idleAfter {
		return false
	}
	c.close()
	return true
}

// Cold reports whether no ID was issued for idleAfter, or ever leased, and
// nobody waits for one. A chain that is prescaled is not: an operator expects its
// callers.
func (c *Chain) Cold(idleAfter time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.mu.settings; s.Prescale > 0 && c.now().Before(s.PrescaleUntil) {
		return false
	}
	return c.unused() >= idleAfter || c.mu.refills == 0 && c.mu.wanted == 0
}

// unused returns for how long no ID was issued. The caller holds the lock.
func (c *Chain) unused() time.Duration {
	now := c.now()
	if issued := c.issued(); issued != c.mu.seen || c.mu.wanted > 0 {
		c.mu.seen, c.mu.used = issued, now
	}
	return now.Sub(c.mu.used)
}

func (c *Chain) close() {
	if c.mu.closed {
		return
	}
	c.drop(func(Segment) bool { return true })
	c.mu.closed = true
	c.wake()
}
