package console

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
)

const (
	// maxCounts bounds the plans whose cost a console counts or keeps at once: each
	// count reads all tags.
	maxCounts = 8
	// countIdle is how long a count goes on when no caller waits for it any more.
	countIdle = 3 * time.Second
	// countKept is how long the cost of a plan is kept after it was counted. Tags
	// change all the time, so it is only as long as an operator needs to read the
	// cost and to apply the plan.
	countKept = time.Minute
)

// counts has the costs of plans that are being counted, or were counted recently. A
// count goes on while callers wait for it, or come back for it. The zero value is
// ready.
type counts struct {
	work sync.WaitGroup // the counts under way
	mu   struct {
		sync.Mutex
		all     []*count // up to maxCounts
		stopped bool
	}
}

// count is the cost of a plan, or the progress of counting it.
type count struct {
	id, plan   string
	began      time.Time
	read, tags atomic.Int64  // how many tags were read, and how many there are; 0 for unknown
	done       chan struct{} // closed when costs, err and ended are set
	costs      costs
	err        error
	ended      time.Time

	cancel  context.CancelFunc
	waiting int         // callers, under the lock of counts
	idle    *time.Timer // cancels the count; it runs while no caller waits
}

// over reports whether a count has ended.
func (n *count) over() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// readTags counts the cost of a plan, and stores its progress in the count.
type readTags func(context.Context, *count) (costs, error)

// get returns the count of a plan that has an id. If there is none, it returns a count of the same
// plan that is under way or has just ended: between two calls a caller may have been at another
// console. If the id is empty, it returns one that has just begun. Otherwise read begins one. get
// waits until the count is over, or for within at most. Its errors are those of read, ctx's, and
// Unavailable if maxCounts plans are being counted or the console stops.
func (c *counts) get(ctx context.Context, id, plan string, within time.Duration, read readTags) (*count, error) {
	waited := time.NewTimer(within)
	defer waited.Stop()
	for {
		n, err := c.enter(ctx, id, plan, read)
		if err != nil {
			return nil, err
		}
		select {
		case <-n.done:
		case <-waited.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.leave(n)
		if err != nil || !n.over() || n.err == nil {
			return n, err
		}
		c.drop(n) // the next caller starts a new count
		if !errors.Is(n.err, context.Canceled) {
			return n, n.err
		}
		// The count was cancelled just when this caller came.
	}
}

// enter returns a count and adds one waiting caller to it.
func (c *counts) enter(ctx context.Context, id, plan string, read readTags) (*count, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.stopped {
		return nil, allocator.Errorf(allocator.Unavailable, "this console is stopping")
	}
	// Failed counts are kept, so that a caller that comes back gets the error.
	c.mu.all = slices.DeleteFunc(c.mu.all, func(n *count) bool {
		return n.over() && (time.Since(n.ended) > countKept || errors.Is(n.err, context.Canceled))
	})
	n := c.find(id, plan)
	if n == nil {
		if len(c.mu.all) >= maxCounts {
			first := slices.IndexFunc(c.mu.all, (*count).over)
			if first < 0 {
				return nil, allocator.Errorf(allocator.Unavailable,
					"the costs of %d plans are being counted: try again when one of them has ended", maxCounts)
			}
			c.mu.all = slices.Delete(c.mu.all, first, first+1)
		}
		n = c.begin(ctx, plan, read)
	}
	n.waiting++
	n.idle.Stop()
	return n, nil
}

// find returns the count to wait for, or nil if a new one must begin. A caller without an id
// gets a count that is under way only if it has just begun: then it is as good as a new one,
// and a page that is loaded several times does not read all tags several times at once.
func (c *counts) find(id, plan string) (found *count) {
	for _, n := range c.mu.all {
		switch {
		case n.plan != plan:
		case id == "":
			if !n.over() && time.Since(n.began) < countIdle {
				found = n
			}
		case n.id == id:
			return n
		case !n.over() || time.Since(n.ended) < countIdle:
			found = n
		}
	}
	return found
}

// begin begins a count, which goes on after the call of ctx has ended.
func (c *counts) begin(ctx context.Context, plan string, read readTags) *count {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n := &count{id: ulid.Make().String(), plan: plan, began: time.Now(), done: make(chan struct{}), cancel: cancel}
	n.idle = time.AfterFunc(countIdle, cancel)
	c.mu.all = append(c.mu.all, n)
	c.work.Go(func() {
		defer cancel()
		if n.costs, n.err = read(ctx, n); n.err != nil && ctx.Err() != nil {
			n.err = ctx.Err()
		}
		n.ended = time.Now()
		close(n.done)
	})
	return n
}

// leave removes a waiting caller.
func (c *counts) leave(n *count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.waiting--; n.waiting == 0 && !n.over() {
		n.idle.Reset(countIdle)
	}
}

func (c *counts) drop(n *count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.all = slices.DeleteFunc(c.mu.all, func(of *count) bool { return of == n })
}

// stop ends all counts. No new count begins after it.
func (c *counts) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stopped = true
	for _, n := range c.mu.all {
		n.idle.Stop()
		n.cancel()
	}
}
