package allocator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

func TestObserveAndCloseUnused(t *testing.T) {
	virtual(t, func(w *world) {
		c, _ := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 10)
		next := c.Segments()[0]
		time.Sleep(10 * time.Minute)
		if unused := c.Observe(); unused != 0 { // seen just now
			w.Errorf("unused for %v", unused)
		}
		time.Sleep(29 * time.Minute)
		if unused := c.Observe(); unused != 29*time.Minute || c.CloseUnused(30*time.Minute) {
			w.Errorf("unused for %v; closed early", unused)
		}
		leases := c.Status().Refills
		c.Expire(time.Hour) // a client looks so, too
		if _, ok := c.TryNext(); ok {
			w.Error("a chain without a caller keeps its link")
		}
		if id, err := c.Next(w.Context()); err != nil || id != next.First || c.Status().Refills != leases {
			w.Errorf("after a pause %d, %v; it held %d", id, err, next.First)
		}
		time.Sleep(29 * time.Minute)
		if c.CloseUnused(30 * time.Minute) {
			w.Error("closed in use")
		}
		time.Sleep(30 * time.Minute)
		if !c.CloseUnused(30 * time.Minute) {
			w.Error("not closed")
		}
		if _, err := c.Next(w.Context()); !errors.Is(err, allocator.ErrClosed) {
			w.Errorf("%v", err)
		}
	})
}

// A chain is cold if it leased nothing, or if no caller took an ID for a while.
func TestCold(t *testing.T) {
	virtual(t, func(w *world) {
		c, _ := w.chain(settings(1000, 1_000_000, time.Minute))
		if !c.Cold(time.Minute) {
			w.Error("it leased nothing, and is not cold")
		}
		w.take(c, 10)
		if c.Cold(time.Minute) {
			w.Error("cold, in use")
		}
		time.Sleep(time.Minute)
		if !c.Cold(time.Minute) {
			w.Error("not cold after a minute")
		}
		if _, ok := c.TryNext(); !ok || c.Cold(time.Minute) {
			w.Error("cold, or closed")
		}
		time.Sleep(time.Hour)
		prescaled := settings(1000, 1_000_000, time.Minute)
		prescaled.Prescale, prescaled.PrescaleUntil = 5000, time.Now().Add(time.Hour)
		if err := c.Update(prescaled); err != nil {
			w.Fatal(err)
		}
		if c.Cold(time.Minute) {
			w.Error("cold, and prescaled")
		}
		time.Sleep(time.Hour)
		if !c.Cold(time.Minute) {
			w.Error("not cold after the prescale")
		}
	})
}

// A chain with a waiting caller is in use.
func TestCloseUnusedSparesWaiters(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.fault(hang)
		time.Sleep(time.Hour)
		done := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			_, err := c.Next(ctx)
			done <- err
		}()
		time.Sleep(time.Millisecond)
		if c.Cold(time.Minute) || c.CloseUnused(time.Minute) {
			w.Error("closed under a caller")
		}
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
	})
}

func TestWarmAndStatus(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		if s := c.Status(); s.Tag != "order" || s.Held != 0 || s.Lasts != 0 || s.Target != 1000 || s.Version != 0 {
			w.Errorf("cold: %+v", s)
		}
		c.Observe()
		if err := c.Update(settings(1000, 1_000_000, time.Hour)); err != nil {
			w.Error(err)
		}
		time.Sleep(time.Minute)
		if m.leases() > 0 {
			w.Error("an unused chain leases")
		}
		if err := c.Warm(w.Context()); err != nil {
			w.Error(err)
		}
		if s := c.Status(); s.Held != 1000 || s.Issued != 0 || s.Lasts != allocator.LongestReserve ||
			s.Version != 1 || s.Refills != 1 {
			w.Errorf("warm: %+v", s)
		}
		for _, bad := range []allocator.Settings{{}, settings(0, 1, time.Minute), settings(2, 1, time.Minute),
			settings(1, 1<<41, time.Minute),
			settings(1, 2, time.Millisecond), settings(1, 2, 8*24*time.Hour),
			{MinStep: 1, MaxStep: 2, Reserve: time.Minute, Prescale: 3}} {
			if err := c.Update(bad); !errors.Is(err, allocator.Invalid) {
				w.Errorf("%+v: %v, want invalid", bad, err)
			}
			if _, err := allocator.NewChain(allocator.ChainConfig{Settings: bad}); !errors.Is(err, allocator.Invalid) {
				w.Errorf("%+v: %v, want invalid", bad, err)
			}
		}
		if err := allocator.DefaultSettings().Validate(); err != nil {
			w.Error(err)
		}
	})
}

func TestStatusLast(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		if s := c.Status(); s.Last != -1 {
			w.Errorf("last %d before any was leased", s.Last)
		}
		w.take(c, 1)
		if s := c.Status(); s.Last != m.nextID()-1 {
			w.Errorf("last %d, the source goes on at %d", s.Last, m.nextID())
		}
	})
}
