package allocator

import "time"

// Status is the state of a chain at one moment.
type Status struct {
	Tag     Tag
	Issued  int64         // IDs handed out since the chain was made
	Held    int64         // IDs in memory
	Excess  int64         // those beyond the bound of the last lease: callers waited for more than they took
	Dropped int64         // IDs that were leased and will never be issued
	Last    int64         // the last ID that was leased, -1 before any
	Target  int64         // how many IDs the chain aims to hold; its next step
	Peak    float64       // the recent peak rate, IDs per second
	Lasts   time.Duration // how long Held lasts at Peak; 0 when nothing is held, LongestReserve at most
	Refills int64         // segments leased
	Waits   int64         // callers that found too few IDs, or a chain that was behind, and waited
	Version int64         // the oldest layout under which anything held was leased; 0 when nothing is held
	Used    time.Time     // when IDs were last seen to have been issued
	Failure error         // of the last refill if it failed for this tag alone
}

// Status returns the chain's state.
func (c *Chain) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	held := &c.mu.stock
	s := Status{
		Tag: c.tag, Issued: held.issued(), Held: held.held(), Dropped: held.dropped, Last: held.last,
		Target: c.mu.pace.target(now), Peak: c.mu.pace.peak,
		Refills: c.mu.refills, Waits: c.mu.callers.times, Version: held.version(),
		Used: now.Add(c.mu.used.Sub(now)),
	}
	if c.mu.failed != nil {
		s.Failure = c.mu.failed.error
	}
	s.Excess = max(s.Held-c.mu.most, 0)
	s.Lasts = lasts(s.Held, s.Peak)
	return s
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

// Segments returns the held segments, the next to be issued first.
func (c *Chain) Segments() []Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.stock.segments()
}
