package client

import (
	"context"
	"math"
	"time"

	"github.com/march-id/march/allocator"
)

const (
	// lookEvery is how often the keeper checks every tag: timers alone are not
	// enough, because they stop while a machine is suspended.
	lookEvery = time.Second
	// renewPart: a segment is replaced when a third of its time to live is left.
	// With the default of ten minutes that is longer than the reserve.
	renewPart = 3
	// renewPause is the least time between two replacements of one tag.
	renewPause = 100 * time.Millisecond
	// followMost is the longest pause between two attempts to replace segments of
	// an old layout while the room's instances lag behind.
	followMost = time.Minute
	// dropUnused is how long a tag without a handle may be unused before it is dropped
	// from memory; dropUnknown is the same for a tag of which nothing was ever leased.
	dropUnused  = 30 * time.Minute
	dropUnknown = time.Minute
)

// keeping is what the keeper remembers of a tag.
type keeping struct {
	unused     time.Duration
	renewAt    time.Time // the earliest time of the next replacement
	version    int64     // of the layout to which the tag is moved,
	followAt   time.Time // the next attempt,
	followWait time.Duration
}

// keep looks after all tags until ctx ends: it drops segments that have ended,
// replaces those that will end soon, follows the layout, and measures rates.
func (c *Client) keep(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.poke:
		}
		c.setWakeAt(time.Time{})
		now := time.Now()
		wakeAt := now.Add(lookEvery)
		for _, t := range c.tags() {
			if at := t.tend(now, *c.newest.Load()); !at.IsZero() && at.Before(wakeAt) {
				wakeAt = at
			}
			c.dropIfUnused(t)
		}
		for _, w := range c.workers() {
			if at := w.tend(c.newest.Load().Version); !at.IsZero() && at.Before(wakeAt) {
				wakeAt = at
			}
		}
		c.setWakeAt(wakeAt)
		timer.Reset(time.Until(wakeAt))
	}
}

// keeperLooksBefore makes sure that the keeper looks at that time at the latest.
func (c *Client) keeperLooksBefore(at time.Time) {
	if !at.IsZero() && c.wakesAfter(at) {
		c.wakeKeeper()
	}
}

// setWakeAt notes when the keeper looks next; the zero time stands for a look under way.
func (c *Client) setWakeAt(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.wakeAt = at
}

// wakesAfter reports whether the keeper might look only after a time. A look under way may have
// passed the tag already.
func (c *Client) wakesAfter(at time.Time) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.wakeAt.IsZero() || c.mu.wakeAt.After(at)
}

func (c *Client) wakeKeeper() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// dropIfUnused drops a tag that was unused for long.
func (c *Client) dropIfUnused(t *Tag) {
	switch d := t.timed.Load(); {
	case d != nil:
		c.dropIfUnusedFor(t, dropUnused)
	case t.keeping.unused < dropUnknown:
	case t.chain.Status().Refills == 0:
		c.dropIfUnusedFor(t, dropUnknown)
	default:
		c.dropIfUnusedFor(t, dropUnused)
	}
}

func (c *Client) dropIfUnusedFor(t *Tag, after time.Duration) {
	if d := t.timed.Load(); d != nil {
		// Do this before the tag is dropped, so that a new Tag of the same name never
		// issues beside it.
		if c.isKept(t) || !d.worker.detachUnused(d, after) {
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.kept && t.timed.Load() == nil && t.chain.CloseUnused(after) {
		delete(c.mu.tags, string(t.name))
	}
}

// isKept reports whether the program has a handle.
func (c *Client) isKept(t *Tag) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return t.kept
}

// tend looks after a tag and returns when to do so again, or the zero time.
func (t *Tag) tend(now time.Time, newest allocator.Part) (again time.Time) {
	until, ttl := t.lastLease()
	unusedAfter := ttl
	if ttl == 0 {
		unusedAfter = math.MaxInt64
	}
	unused := t.chain.Observe()
	t.keeping.unused = unused
	end := t.chain.Expire(unusedAfter)
	if t.chain.Outdated(newest) {
		t.followLayout(now, newest)
	}
	again = end
	if until.After(now) && (again.IsZero() || until.Before(again)) {
		again = until // the chain may not have the segment yet
	}
	if end.IsZero() || unused >= unusedAfter { // unused: let it end
		return again
	}
	renewAt := end.Add(-ttl / renewPart)
	if renewAt.Before(t.keeping.renewAt) {
		renewAt = t.keeping.renewAt
	}
	if !renewAt.After(now) {
		t.chain.Replace(allocator.Part{}, now.Add(ttl/renewPart))
		renewAt = now.Add(max(end.Sub(now)/2, renewPause))
		t.keeping.renewAt = renewAt
	}
	if renewAt.Before(again) {
		again = renewAt
	}
	return again
}

// followLayout asks for a segment that newest does not outdate, at once. While the leased
// segments are still outdated, it asks again after growing pauses.
func (t *Tag) followLayout(now time.Time, newest allocator.Part) {
	k := &t.keeping
	if k.version != newest.Version {
		k.version, k.followAt, k.followWait = newest.Version, now, lookEvery
	}
	if !now.Before(k.followAt) {
		t.chain.Replace(newest, time.Time{})
		k.followAt = now.Add(k.followWait)
		k.followWait = min(2*k.followWait, followMost)
	}
}
