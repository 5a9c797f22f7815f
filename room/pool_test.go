package room

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// A caller waits for a worker that another call is taking for no longer than its deadline.
func TestOpenHeedsTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(nil, 10)
		unlock := p.lock() // etcd does not answer the call that has it
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := p.open(ctx, &TimeTag{name: "event"}, nil)
		if allocator.KindOf(err) != allocator.Unavailable || !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		unlock()
		gone := &TimeTag{name: "event", gone: true}
		if err := p.open(t.Context(), gone, nil); !errors.Is(err, error(timeid.ErrClosed)) {
			t.Errorf("afterwards: %v", err)
		}
	})
}
