package allocator

import (
	"context"
	"slices"
	"time"
	"unique"
)

// Status is the state of a chain at one moment.
type Status struct {
	Tag     Tag
	Issued  int64         // IDs handed out since the chain was made
	Held    int64         // IDs in memory
	Dropped int64         // IDs that were leased and will never be issued
	Last    int64         // the last ID that was leased, -1 before any
	Target  int64         // how many IDs the chain aims to hold; its next step
	Peak    float64       // the recent peak rate, IDs per second
	Lasts   time.Duration // how long Held lasts at Peak; 0 when nothing is held, LongestReserve at most
	Refills int64         // segments leased
	Waits   int64         // callers that found nothing and waited
	Version int64         // the oldest layout under which anything held was leased; 0 when nothing is held
	Used    time.Time     // when IDs were last seen to have been issued
	Failure error         // of the last refill if it failed for this tag alone
}

// Status returns the chain's state.
func (c *Chain) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	s := Status{
		Tag: c.tag, Issued: c.issued(), Held: c.held(), Dropped: c.mu.dropped, Last: c.mu.last,
		Target: c.mu.pace.target(c.settings(), now), Peak: c.mu.pace.peak,
		Refills: c.mu.refills, Waits: c.mu.waits, Version: c.version(),
		Used: now.Add(-c.since(now)), Failure: c.mu.rare.failed(),
	}
	s.Lasts = lasts(s.Held, s.Peak)
	return s
}

// Issued returns how many IDs were taken so far. Status has that number, too, but
// costs more.
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

// version returns the oldest layout of the held segments, 0 if there are none. It
// need not be the first segment's: a client's source may ask one instance of a room
// and then another with an older layout. The caller holds the lock.
func (c *Chain) version() int64 {
	var oldest int64
	c.holdsAny(func(s Segment) bool {
		if oldest == 0 || s.Version < oldest {
			oldest = s.Version
		}
		return false
	})
	return oldest
}

// Outdated reports whether the chain holds a segment that part outdates.
func (c *Chain) Outdated(part Part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holdsAny(part.Outdates)
}

// Segments returns the held segments, the next to be issued first.
func (c *Chain) Segments() []Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := make([]Segment, 0, 1+len(c.mu.tail))
	l := c.front()
	if _, rest := l.seg.Split(l.taken()); rest.Count > 0 {
		held = append(held, rest)
	}
	return append(held, c.mu.tail...)
}

// Update replaces the settings. They take effect at the next refill, which is
// requested at once if the chain now holds too few IDs. Its error is Invalid.
func (c *Chain) Update(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if settings := unique.Make(s); settings != c.mu.settings {
		c.mu.settings = settings
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
	c.look(now, false)
	c.promote(now)
	return c.since(now)
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

// Renew replaces the held segments that part outdates. The chain first leases a
// fresh segment with as many IDs as it holds, and then drops the old ones. So no
// caller waits, and the time of the next refill does not change. An outdated
// segment whose lease is under way is dropped when it arrives. Renewed reports when
// all this is done.
func (c *Chain) Renew(part Part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setNewest(part)
	c.requestIfNeeded(c.now())
}

// RenewIfKept is Renew for a chain whose segments part all keeps, so that nothing
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

// Limit drops all held IDs from limit on, at once, and cuts later leases there.
// Raising the limit again does not bring these IDs back.
func (c *Chain) Limit(limit int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.limit != limit {
		c.mu.limit = limit
		c.mu.rare.forgive() // the failure may be due to the old limit
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

// Close drops all held segments. Waiting callers and all later callers get
// ErrClosed.
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

// Cold reports whether no ID was issued for idleAfter, or none was ever leased and no
// caller waits for one. A prescaled chain is not cold: an operator expects callers.
func (c *Chain) Cold(idleAfter time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.settings(); s.Prescale > 0 && c.now().Before(s.PrescaleUntil) {
		return false
	}
	return c.unused() >= idleAfter || c.mu.refills == 0 && c.mu.wanted == 0
}

// unused returns how long no ID was issued. The caller holds the lock.
func (c *Chain) unused() time.Duration {
	now := c.now()
	c.look(now, c.mu.wanted > 0)
	return c.since(now)
}

// look updates the time of the last use, if IDs were issued since its last call or
// inUse is true. The caller holds the lock.
func (c *Chain) look(now time.Time, inUse bool) {
	if issued := c.issued(); issued != c.mu.seen || inUse {
		c.mu.seen, c.mu.used = issued, c.refiller.instant(now)
	}
}

// since returns how long before now IDs were last seen to have been issued. The
// caller holds the lock.
func (c *Chain) since(now time.Time) time.Duration { return c.refiller.instant(now).sub(c.mu.used) }

func (c *Chain) close() {
	if c.mu.closed {
		return
	}
	c.drop(func(Segment) bool { return true })
	c.mu.closed = true
	c.wake()
}
