package allocator

import (
	"context"
	"time"
)

// A Gate returns nil if IDs of a segment may be issued at this moment. Otherwise
// newest is the room's part of the newest known layout. If newest outdates the
// segment, the chain replaces the segment by a fresh one. If not, the caller gets
// the error, and the chain keeps the segment until the gate opens again.
//
// A chain calls the gate after it took an ID and before it hands the ID out. So a
// process that was paused in between issues no ID that is no longer allowed. The
// end of a segment (Until) is checked at the same places. The gate is called often,
// and concurrently.
type Gate func(s Segment) (newest Part, err error)

// Elapsed returns the time between two readings of a clock: the
// larger difference of the monotonic and of the wall clock. The first does not
// run while a machine is suspended, the second may be set back.
func Elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// Gated reports whether the chain has a gate.
func (c *Chain) Gated() bool { return c.gate != nil }

// admits asks the gate, if there is one, whether IDs of seg may be issued now.
// False without an error means that the chain gave up the segment for a newer one.
func (c *Chain) admits(seg Segment) (bool, error) {
	if c.gate == nil || seg.Count == 0 {
		return true, nil
	}
	if !seg.Until.IsZero() && seg.ended(c.now()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mu.stock.drop(endedAt(c.now()))
		return false, nil
	}
	newest, err := c.gate(seg)
	switch {
	case err == nil:
		return true, nil
	case !newest.Outdates(seg):
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.bounds.renew(newest)
	c.mu.stock.drop(c.mu.bounds.outdated)
	return false, nil
}

// nextNGated is NextN for a chain with a gate. It may have waited between the
// first IDs and the last, so it asks for all of them again at the end. If the gate
// has closed for some meanwhile, it begins anew.
func (c *Chain) nextNGated(ctx context.Context, n int64, dst []Run) ([]Run, error) {
	for {
		runs, from, err := c.takeRuns(ctx, n)
		admitted := err == nil
		for i := 0; i < len(from)-1 && err == nil; i++ {
			var ok bool
			ok, err = c.admits(from[i])
			admitted = admitted && ok
		}
		if err != nil {
			return dst, err
		}
		if admitted {
			return append(dst, runs...), nil
		}
	}
}

// takeRuns takes n IDs, each of which may be issued when it is taken, and returns
// their segments, too.
func (c *Chain) takeRuns(ctx context.Context, n int64) (runs []Run, from []Segment, err error) {
	if c.gated.Load().remaining() < n {
		if err := c.wait(ctx, n, n); err != nil {
			return nil, nil, err
		}
	}
	for n > 0 {
		l := c.gated.Load()
		first, got, err := c.takeN(l, n)
		if err != nil {
			return nil, nil, err
		}
		if got > 0 {
			runs, from = l.appendRuns(runs, first, got), append(from, l.seg)
		}
		if n -= got; n > 0 {
			if err := c.wait(ctx, n, n); err != nil {
				return nil, nil, err
			}
		}
	}
	return runs, from, nil
}
