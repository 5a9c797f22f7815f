package ledgertest

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Far is a store that is some way off: half of the way lies before what is asked, and half after it.
type Far struct {
	store.Store
	Away time.Duration
}

func (s *Far) half(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return allocator.Errorf(allocator.Unavailable, "far: %w", ctx.Err())
	case <-time.After(s.Away / 2):
		return nil
	}
}

// Txn implements store.Store.
func (s *Far) Txn(ctx context.Context, txn store.Txn) (answer store.Answer, err error) {
	if err := s.half(ctx); err != nil {
		return answer, err
	}
	if answer, err = s.Store.Txn(context.WithoutCancel(ctx), txn); err == nil {
		err = s.half(ctx)
	}
	return answer, err
}

// Status implements store.Store.
func (s *Far) Status(ctx context.Context) (status store.Status, err error) {
	if err := s.half(ctx); err != nil {
		return status, err
	}
	if status, err = s.Store.Status(ctx); err == nil {
		err = s.half(ctx)
	}
	return status, err
}

// Watch implements store.Store.
func (s *Far) Watch(ctx context.Context, intervals []store.Interval, from int64) <-chan store.Change {
	type sent struct {
		store.Change
		at time.Time
	}
	way, out := make(chan sent, 1000), make(chan store.Change)
	go func() {
		defer close(way)
		if s.half(ctx) != nil {
			return
		}
		for change := range s.Store.Watch(ctx, intervals, from) {
			way <- sent{change, time.Now()}
		}
	}()
	go func() {
		defer close(out)
		for change := range way {
			time.Sleep(time.Until(change.at.Add(s.Away / 2)))
			select {
			case out <- change.Change:
			case <-ctx.Done():
				for range way { // which ends with ctx
				}
				return
			}
		}
	}()
	return out
}
