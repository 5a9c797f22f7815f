package allocator

import "time"

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
		Target: c.mu.pace.target(c.mu.settings, now), Peak: c.mu.pace.peak,
		Refills: c.mu.refills, Waits: c.mu.waits, Version: c.version(),
		Used: now.Add(-c.since(now)),
	}
	if c.mu.failed != nil {
		s.Failure = c.mu.failed.error
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
