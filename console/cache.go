package console

import (
	"context"
	"sync"
	"time"
)

// cache keeps a value and reads it again and again while callers ask for it. While no
// caller asks, it reads nothing. It must be made by newCache.
type cache[T any] struct {
	asked chan struct{} // has an element after a caller asked
	mu    struct {
		sync.Mutex
		last    time.Time     // when a caller asked last
		seen    T             // its zero value before the first read
		at      time.Time     // when it was read; zero before the first read
		err     error         // of the last read
		changed chan struct{} // closed when a read ends
	}
}

// lookFor is how long a cache goes on reading after the last request. It is longer
// than the interval at which a page asks again.
const lookFor = 10 * time.Second

func newCache[T any]() *cache[T] {
	l := &cache[T]{asked: make(chan struct{}, 1)}
	l.mu.changed = make(chan struct{})
	return l
}

// run reads the value with look until ctx ends. look gets the previous value. It
// also returns how long to wait before the next read.
func (l *cache[T]) run(ctx context.Context, look func(ctx context.Context, before T) (now T, pause time.Duration, err error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.asked:
		}
		for l.wanted() && ctx.Err() == nil {
			now, pause, err := look(ctx, l.before())
			l.saw(now, err)
			timer.Reset(pause)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
	}
}

func (l *cache[T]) wanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.mu.last) < lookFor
}

func (l *cache[T]) before() T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.seen
}

func (l *cache[T]) saw(now T, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err = err; err == nil {
		l.mu.seen, l.mu.at = now, time.Now()
	}
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

// get returns the last value, the time at which it was read, and the error of a
// later read that failed. If the value is older than age, get waits for the next
// read, for within at most. The time is zero if no read has succeeded yet.
func (l *cache[T]) get(ctx context.Context, age, within time.Duration) (seen T, at time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.last = time.Now()
	select {
	case l.asked <- struct{}{}:
	default:
	}
	if time.Since(l.mu.at) > age {
		changed := l.mu.changed
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, within)
		select {
		case <-ctx.Done():
		case <-changed:
		}
		cancel()
		l.mu.Lock()
	}
	return l.mu.seen, l.mu.at, l.mu.err
}
