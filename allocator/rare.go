package allocator

import "time"

// rare is what most chains have nothing of at most times: a failure, a wish, the
// memory of an unordered chain. A room may hold a million chains that are idle, so
// it is made for those that need it. The nil pointer is nothing of it. It is
// guarded by the chain's lock.
type rare struct {
	failure error     // of the last refill, other than Unavailable; nil after a success
	retry   time.Time // no refill before, while there is a failure
	fading  *fading   // what the next segment is to replace; nil for nothing
	recent  []Segment // the last that were leased, where the chain is unordered
}

// recentSegments is how many segments an unordered chain remembers.
const recentSegments = 16

// rarely returns c's, made if need be. The caller holds the lock.
func (c *Chain) rarely() *rare {
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

// failing returns the error of the last refill until it is time for another.
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

// replaces returns what the next segment is to replace, nil for nothing.
func (r *rare) replaces() *fading {
	if r == nil {
		return nil
	}
	return r.fading
}

// leased returns the last segments that were leased, where the chain is unordered.
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
