package store

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
)

// retryPause is the pause between two tries.
const retryPause = 50 * time.Millisecond

// Retry calls try, which changes nothing, until try is answered, fails for good, or ctx ends,
// for at most twice a try's time. It returns the error of the last try that had its full time:
// Unavailable if a later try may succeed.
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
func Pause(ctx context.Context) bool { return Sleep(ctx, retryPause) }

// Sleep waits for a time, and returns false when ctx ends before it is over.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Outcome decides the outcome of a change, given its answer and error. It returns nil if the
// change was made, the error if not, and refused if the change's conditions did not hold. If
// the answer does not say that the change was made, Outcome calls applied, which looks in etcd:
// perhaps no answer came, or the transaction was sent twice and its own first copy refused the
// second. applied recognizes the change, for example by its nonce. It returns false if it could
// not read etcd.
func Outcome(answer Answer, err error, applied func() bool, refused error) error {
	switch {
	case err == nil && answer.Succeeded, applied():
		return nil
	case err != nil:
		return err
	}
	return refused
}
