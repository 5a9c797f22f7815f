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

// Outcome says what became of a change whose answer and error were returned: nil if it was
// made, else the error, or refused where its conditions did not hold. If the answer does
// not say that it was made, applied looks in etcd: no answer may have come, or the
// transaction was sent twice and its own first copy refused the second. applied tells this
// change from every other, by its nonce say. It returns false where it could not look.
func Outcome(answer Answer, err error, applied func() bool, refused error) error {
	switch {
	case err == nil && answer.Succeeded, applied():
		return nil
	case err != nil:
		return err
	}
	return refused
}
