package allocator

import "time"

// rare has the fields of a chain that are zero for most chains at most times: a
// failure, a replacement, the memory of an unordered chain. A room may hold a
// million idle chains, so rare is allocated only for chains that need it. A nil
// pointer stands for zero fields. It is guarded by the chain's lock.
type rare struct {
	failure error     // of the last refill, other than Unavailable; nil after a success
	retry   time.Time // no refill before, while there is a failure
	fading  *fading   // which segments the next one replaces; nil for none
	recent  []Segment // the last leased segments of an unordered chain
}

// recentSegments is how many segments an unordered chain remembers.
const recentSegments = 16

// ensureRare returns the chain's rare, and allocates it if it is nil. The caller holds
// the lock.
func (c *Chain) ensureRare() *rare {
	if c.mu.rare == nil {
		c.mu.rare = &rare{}
	}
	return c.mu.rare
}

// failed returns the error of the last refill.
func (r *rare) failed() error {
	if r == nil {
		return nil
	}
	return r.failure
}

// failing returns the error of the last refill until the next refill is due.
func (r *rare) failing(now time.Time) error {
	if r == nil || !now.Before(r.retry) {
		return nil
	}
	return r.failure
}

// forgive forgets the error of the last refill.
func (r *rare) forgive() {
	if r != nil {
		r.failure = nil
	}
}

// replaces returns which segments the next one replaces, nil for none.
func (r *rare) replaces() *fading {
	if r == nil {
		return nil
	}
	return r.fading
}

// leased returns the last leased segments of an unordered chain.
func (r *rare) leased() []Segment {
	if r == nil {
		return nil
	}
	return r.recent
}

// instant is a reading of a refiller's clock: nanoseconds since the refiller was
// made, plus 1, so that 0 is none. It follows the monotonic clock as time.Time does,
// in a third of the memory and without a pointer for the garbage collector.
type instant int64

// instant returns t, a reading of the refiller's clock, as an instant.
func (r *Refiller) instant(t time.Time) instant { return instant(t.Sub(r.made)) + 1 }

// sub returns the time from o to i.
func (i instant) sub(o instant) time.Duration { return time.Duration(i - o) }
