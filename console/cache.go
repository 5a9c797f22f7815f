package console

import (
	"context"
	"sync"
	"time"
)

// cache keeps a value and reads it again and again while callers ask for it. While no
// caller asks, it reads nothing. It must be made by newCache.
type cache[T any] struct {
	// asked wakes run. One element is enough however many callers ask: a read serves all of them.
	asked chan struct{}
	mu    struct {
		sync.Mutex
		last    time.Time     // when a caller asked last
		seen    T             // its zero value before the first read
		at      time.Time     // when it was read; zero before the first read
		err     error         // of the last read
		changed chan struct{} // closed when a read ends
	}
}

// cacheReadsFor is how long a cache goes on reading after the last request. It is longer
// than the interval at which a page asks again, so that a page which is open finds a
// fresh value each time.
const cacheReadsFor = 10 * time.Second

// newCache returns an empty cache, which needs a run.
func newCache[T any]() *cache[T] {
	c := &cache[T]{asked: make(chan struct{}, 1)}
	c.mu.changed = make(chan struct{})
	return c
}

// run reads the value with read until ctx ends. read gets the previous value. It
// also returns how long to wait before the next read.
//
// The value is read here and not in get, because a read serves many callers: it must not
// end with the request of one of them.
func (c *cache[T]) run(ctx context.Context, read func(ctx context.Context,
	before T) (now T, pause time.Duration, err error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.asked:
		}
		for c.wanted() && ctx.Err() == nil {
			now, pause, err := read(ctx, c.before())
			c.store(now, err)
			timer.Reset(pause)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
	}
}

// wanted reports whether a caller asked lately.
func (c *cache[T]) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.mu.last) < cacheReadsFor
}

// before returns the last value that was read, without waiting for another or asking for one.
func (c *cache[T]) before() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.seen
}

// store keeps what a read returned, and wakes the callers that wait for it. After a read that
// failed the value before it stays: callers get it with the error, and decide.
func (c *cache[T]) store(now T, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err = err; err == nil {
		c.mu.seen, c.mu.at = now, time.Now()
	}
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

// get returns the last value, the time at which it was read, and the error of a
// later read that failed. If the value is older than age, get waits for the next
// read, for within at most. The time is zero if no read has succeeded yet.
func (c *cache[T]) get(ctx context.Context, age, within time.Duration) (seen T, at time.Time, err error) {
	if changed := c.ask(age); changed != nil {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.seen, c.mu.at, c.mu.err
}

// ask wakes run. If the value is older than age, it returns a channel that is closed when the
// next read ends, or else nil.
func (c *cache[T]) ask(age time.Duration) (changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.last = time.Now()
	select {
	case c.asked <- struct{}{}:
	default:
	}
	if time.Since(c.mu.at) <= age {
		return nil
	}
	return c.mu.changed
}
