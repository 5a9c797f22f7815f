package allocator

import (
	"context"
	"slices"
	"time"
)

// Behind has the chain lease anew what lies too far behind, if the next ID that it would issue does, but only for its
// next caller, who waits for the lease. When that is there, the chain drops the segments that begin too far behind. If
// it fails, or takes longer than behindWait, the chain goes on with all that it holds until a lease succeeds. Without
// callers the chain keeps what it holds, and leases nothing.
//
// Too far is below least, and further than skew below the mark of the chain's own room, as far as others leased up to
// there: what the chain leased last without a gap is not ahead of what it holds. Behind returns below which ID is too
// far if the chain is behind, and 0 otherwise, as after Behind(0, 0, 0).
func (c *Chain) Behind(least, mark, skew int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.mu.stock.segments()
	if n := len(held) - 1; n >= 0 {
		own := mark <= c.mu.stock.last+1
		if !own && c.refiller.leasing(c) { // the lease under way may have raised the mark
			own, least = true, max(least, c.mu.bounds.lagging()) // what was demanded still is
		}
		if own {
			last := held[n]
			for _, seg := range slices.Backward(held[:n]) {
				whole, ok := seg.join(last)
				if !ok {
					break
				}
				last = whole
			}
			mark = min(mark, last.First)
		}
		if least = max(least, mark-skew); held[0].First < least {
			c.mu.stock.putBack() // settle puts no link at the front before a lease or goOn
			f := c.mu.bounds.fade()
			f.least, f.behind = least, true
			return least
		}
	}
	caughtUp(c)
	return 0
}

// caughtUp ends what Behind demanded. The caller holds the lock.
func caughtUp(c *Chain) {
	goOn(c)
	if f := c.mu.bounds.fading; f != nil {
		f.least, f.asked = 0, false
	}
}

// askToCatchUp notes that a caller of a chain that is behind asks for the lease. Where that will not come soon, or
// nothing lags any more, the chain goes on. The caller holds the lock.
func askToCatchUp(c *Chain, failed bool) {
	f := c.mu.bounds.fading
	switch {
	case !c.mu.stock.holds(below(f.least)):
		caughtUp(c)
	case failed:
		goOn(c)
	default:
		f.asked = true
		if c.refiller.failing() { // one lease is tried, and not each caller waits for one
			c.refiller.request(c, urgent)
			goOn(c)
		}
	}
}

// behind reports whether callers wait for a lease though IDs are held.
func (b *bounds) behind() bool { return b.fading != nil && b.fading.behind }

// lagging returns below which ID a segment begins that the next one replaces by Behind, 0 for none.
func (b *bounds) lagging() int64 {
	if b.fading == nil {
		return 0
	}
	return b.fading.least
}

// goOn has a chain that is behind issue what it holds. The caller holds the lock.
func goOn(c *Chain) {
	if c.mu.bounds.behind() {
		c.mu.bounds.fading.behind = false
		c.mu.callers.wake()
	}
}

// behindWait is how long a caller waits at most for the lease of a chain that is behind, or half of the time that it
// has.
const behindWait = time.Second

// patience returns when a caller of a chain that is behind does not wait any longer.
func patience(ctx context.Context) time.Time {
	now := time.Now()
	if deadline, is := ctx.Deadline(); is {
		return now.Add(min(behindWait, deadline.Sub(now)/2))
	}
	return now.Add(behindWait)
}

// below selects the segments that begin below an ID.
func below(least int64) func(Segment) bool { return func(s Segment) bool { return s.First < least } }
