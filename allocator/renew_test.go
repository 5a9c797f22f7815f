package allocator_test

import (
	"context"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// late leases at once, under the current layout, and answers a second later.
var late fault = func(_ context.Context, m *memory, n int64) (allocator.Segment, error) {
	seg, err := m.lease(n)
	time.Sleep(time.Second)
	return seg, err
}

func TestRenew(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 10)
		time.Sleep(time.Second)
		if c.Renewed(part(2)) {
			w.Error("renewed before Renew")
		}
		m.latency = 50 * time.Millisecond
		m.setVersion(2)
		border := m.nextID()
		c.Renew(part(2))
		for range 100 { // callers do not wait, and get old IDs until the chain is renewed
			start := time.Now()
			renewed := c.Renewed(part(2))
			id, err := c.Next(w.Context())
			if err != nil || time.Since(start) != 0 || renewed && id < border {
				w.Fatalf("renewed %t: %d after %v, %v; the new begin at %d", renewed, id,
					time.Since(start), err, border)
			}
			time.Sleep(time.Millisecond)
		}
		if s := c.Status(); !c.Renewed(part(2)) || s.Version != 2 || s.Waits != 1 {
			w.Errorf("%+v after Renew", s)
		}
		dropped := c.Status().Dropped
		c.Renew(part(2))
		c.Renew(part(1))
		time.Sleep(time.Second)
		if !c.Renewed(part(2)) || !c.Renewed(part(1)) || c.Status().Dropped != dropped {
			w.Errorf("the chain dropped fresh IDs: %+v, %d before", c.Status(), dropped)
		}
		w.balance(c, m)
	})
}

// A chain that is renewed leases as many IDs as it drops, so its next refill stays due
// when it was. Otherwise a layout that renews 100,000 chains at once would make each of
// them lease a second time within moments.
func TestRenewLeasesOnce(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, 10*time.Minute))
		steady := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				w.take(c, 10)
				c.Observe()
			}
		}
		const period = 581 * time.Second // of refills: 31 of 32 reserves
		refilled := func() {
			for was := c.Status().Refills; c.Status().Refills == was; {
				steady(time.Second)
			}
		}
		steady(period)
		refilled()
		for version, waited := range []time.Duration{time.Minute, period / 2, period - time.Minute} {
			steady(waited)
			before := c.Status()
			part := part(int64(version + 2))
			m.setVersion(part.Version)
			c.Renew(part)
			steady(30 * time.Second)
			after := c.Status()
			if !c.Renewed(part) || after.Refills != before.Refills+1 || after.Held > before.Held {
				w.Errorf("%v after a refill: %+v, and 30 s after it was renewed %+v, want one refill",
					waited, before, after)
			}
			refilled()
		}
		w.balance(c, m)
	})
}

// A renewed chain leases no more than a chain aims to hold now: two targets.
func TestRenewLeasesNoMoreThanItNeeds(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		s := settings(1000, 1_000_000, time.Minute)
		s.Prescale, s.PrescaleUntil = 500_000, time.Now().Add(time.Minute)
		if err := c.Update(s); err != nil {
			w.Fatal(err)
		}
		w.take(c, 1)
		time.Sleep(time.Hour)
		m.setVersion(2)
		c.Renew(part(2))
		time.Sleep(time.Second)
		if s := c.Status(); !c.Renewed(part(2)) || s.Held > 2*s.Target {
			w.Errorf("%+v holds more than two targets", s)
		}
		w.balance(c, m)
	})
}

// A chain drops a segment that was leased under the old layout and arrives after Renew.
func TestRenewWithALeaseUnderWay(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 1)
		time.Sleep(time.Second)
		m.fault(nil, late)
		w.take(c, c.Status().Held) // asks for more
		time.Sleep(500 * time.Millisecond)
		m.setVersion(2)
		border := m.nextID()
		c.Renew(part(2))
		id, err := c.Next(w.Context())
		if err != nil || id < border || !c.Renewed(part(2)) {
			w.Errorf("%d, %v; the new begin at %d", id, err, border)
		}
		if s := c.Status(); s.Dropped != 1000 {
			w.Errorf("%+v", s)
		}
		w.balance(c, m)
	})
}

func TestRenewWhileAway(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 1)
		time.Sleep(time.Second)
		m.fault(away)
		m.setVersion(2)
		c.Renew(part(2))
		time.Sleep(time.Hour)
		if c.Renewed(part(2)) {
			w.Error("renewed from a store that is away")
		}
		w.take(c, 100)
		m.fault(nil)
		time.Sleep(time.Second)
		if !c.Renewed(part(2)) || c.Status().Version != 2 {
			w.Errorf("not renewed a second after the store's return: %+v", c.Status())
		}
		w.balance(c, m)
	})
}

// A source may answer under an older layout than before, for example if two instances
// of a room answer in turn. No old segment hides behind a new one.
func TestRenewWithVersionsOutOfOrder(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		m.setVersion(2)
		w.take(c, 1) // version 2 at the head
		time.Sleep(time.Second)
		m.setVersion(1)
		w.take(c, 500)
		time.Sleep(time.Second) // version 1 behind it
		if s := c.Status(); s.Version != 1 || s.Refills < 2 {
			t.Fatalf("%+v, want both versions", s)
		}
		m.setVersion(2)
		m.latency = time.Second
		c.Renew(part(2))
		if c.Renewed(part(2)) {
			w.Error("renewed with an old segment in the tail")
		}
		head := c.Status().Held
		time.Sleep(2 * time.Second)
		if s := c.Status(); !c.Renewed(part(2)) || s.Version != 2 || s.Dropped >= head {
			w.Errorf("%+v: held %d before, of which some were new", s, head)
		}
		w.balance(c, m)
	})
}

func TestSkip(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 10)
		time.Sleep(time.Second)
		m.skip(1_000_000 - m.nextID())
		m.latency = 50 * time.Millisecond
		c.Skip(1_000_000)
		start := time.Now()
		if id, err := c.Next(w.Context()); err != nil || id > 10_000 || time.Since(start) != 0 {
			w.Errorf("%d, %v after %v", id, err, time.Since(start))
		}
		time.Sleep(time.Second)
		if id, err := c.Next(w.Context()); err != nil || id < 1_000_000 {
			w.Errorf("%d, %v after the skip", id, err)
		}
		w.balance(c, m)
	})
}
