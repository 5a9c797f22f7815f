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
	// maxCounts is of how many plans a console counts or keeps the costs: each count
	// reads all tags.
	maxCounts = 8
	// countIdle is for how long a count goes on when no caller waits for it any more.
	countIdle = 3 * time.Second
	// countKept is for how long the costs of a plan are kept, from when they were
	// counted. Tags change all the time, also while they are read: costs are no older
	// than an operator takes to read them and to apply the plan.
	countKept = time.Minute
)

// counts are the costs of plans that are being counted, or were of late. A count goes
// on while callers wait for it, or come back for it. Its zero value is ready.
type counts struct {
	work sync.WaitGroup // the counts under way
	mu   struct {
		sync.Mutex
		all     []*count // up to maxCounts
		stopped bool
	}
}

// count is what a plan costs, or how far that is.
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

// readTags counts what a plan costs, and notes in the count how far it is.
type readTags func(context.Context, *count) (costs, error)

// get returns the count of a plan that has an id. If there is none, it returns one of
// that plan that is under way, or ended just now: between two calls a caller may have
// been to another console. Else, and where the id is empty, read begins one. get waits until the count is over, or for within at most.
// Its errors are those of read, Unavailable where as many plans as may be are being
// counted or the console stops, and ctx's.
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
		c.drop(n) // the next caller has it counted again
		if !errors.Is(n.err, context.Canceled) {
			return n, n.err
		}
		// It was cancelled just when this caller came.
	}
}

// enter returns a count with one caller more that waits.
func (c *counts) enter(ctx context.Context, id, plan string, read readTags) (*count, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.stopped {
		return nil, allocator.Errorf(allocator.Unavailable, "this console is stopping")
	}
	c.tidy()
	n := c.find(id, plan)
	if n == nil {
		if err := c.makeRoom(); err != nil {
			return nil, err
		}
		n = c.begin(ctx, plan, read)
	}
	n.waiting++
	n.idle.Stop()
	return n, nil
}

// find returns the count to wait for, nil where one has to begin.
func (c *counts) find(id, plan string) (found *count) {
	if id == "" {
		return nil
	}
	for _, n := range c.mu.all {
		if n.plan == plan && n.id == id {
			return n
		}
		if n.plan == plan && (!n.over() || time.Since(n.ended) < countIdle) {
			found = n
		}
	}
	return found
}

// begin begins a count. It outlives the call of ctx.
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

// leave takes a caller that waited away.
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

// tidy drops the counts that ended long ago, and those that were cancelled as no
// caller waited. It keeps those that failed: the caller that comes back is told.
func (c *counts) tidy() {
	c.mu.all = slices.DeleteFunc(c.mu.all, func(n *count) bool {
		return n.over() && (time.Since(n.ended) > countKept || errors.Is(n.err, context.Canceled))
	})
}

// makeRoom drops the costs that were counted first, if there are too many. Its error
// is Unavailable: nothing may be dropped.
func (c *counts) makeRoom() error {
	if len(c.mu.all) < maxCounts {
		return nil
	}
	first := -1
	for i, n := range c.mu.all {
		if n.over() && (first < 0 || n.ended.Before(c.mu.all[first].ended)) {
			first = i
		}
	}
	if first < 0 {
		return allocator.Errorf(allocator.Unavailable, "the costs of %d plans are being counted: try again when one of them has ended", maxCounts)
	}
	c.mu.all = slices.Delete(c.mu.all, first, first+1)
	return nil
}

// stop ends all counts. No other one begins.
func (c *counts) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stopped = true
	for _, n := range c.mu.all {
		n.idle.Stop()
		n.cancel()
	}
}
