package console

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestCache: a cache reads while callers ask, and cacheReadsFor longer. A caller waits for a read only
// if the value is too old for it. After a read that fails, the value before it stays.
func TestCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := newCache[int]()
		const took, pause = time.Second, 4 * time.Second
		var reads atomic.Int32
		broken := errors.New("etcd is away")
		go c.run(ctx, func(_ context.Context, before int) (int, time.Duration, error) {
			time.Sleep(took)
			if reads.Add(1) == 2 {
				return 0, pause, broken
			}
			return before + 1, pause, nil
		})
		get := func(age, within time.Duration, want int, wantErr error) {
			t.Helper()
			if got, at, err := c.get(ctx, age, within); got != want || err != wantErr || at.IsZero() != (want == 0) {
				t.Errorf("got %d of %v, %v, want %d, %v", got, at, err, want, wantErr)
			}
		}
		time.Sleep(time.Minute)
		if n := reads.Load(); n > 0 {
			t.Errorf("%d reads before a caller asked", n)
		}
		get(time.Hour, took/2, 0, nil)
		get(time.Hour, took, 1, nil)
		get(time.Hour, 0, 1, nil)
		time.Sleep(time.Second)
		get(0, time.Minute, 1, broken)
		time.Sleep(time.Second)
		get(0, time.Minute, 2, nil)
		time.Sleep(time.Minute)
		if n := reads.Load(); n != 4 {
			t.Errorf("%d reads, want 4: one more after the last request, and none from %v after it on",
				n, cacheReadsFor)
		}
	})
}
