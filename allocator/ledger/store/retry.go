package store

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
)

// retryPause is the pause between two tries.
const retryPause = 50 * time.Millisecond

// Retry calls try, which changes nothing, until it is answered, fails for good, or ctx
// ends, for at most two tries' time. Its error is that of the last try which had its time,
// Unavailable where a later one may succeed.
func Retry(ctx context.Context, timeout time.Duration, try func(context.Context) (Answer, error)) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	var reason error
	for {
		answer, err := try(ctx)
		if err == nil || allocator.KindOf(err) != allocator.Unavailable {
			return answer, err
		}
		if ctx.Err() == nil || reason == nil {
			reason = err
		}
		if !Pause(ctx) {
			return Answer{}, reason
		}
	}
}

// Pause waits a moment before another try, and returns false when ctx ends.
func Pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(retryPause):
		return true
	}
}
