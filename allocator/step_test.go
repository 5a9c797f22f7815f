package allocator_test

import (
	"math"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// traffic takes IDs from a chain in virtual time and reads its status as a room does.
type traffic struct {
	*world
	chain *allocator.Chain
	m     *memory
	tick  time.Duration
	carry float64
	runs  []allocator.Run
	seen  func(s allocator.Status) // after each tick
}

func (w *world) traffic(s allocator.Settings, tick time.Duration) *traffic {
	m := newMemory(w, dense())
	m.maxStep, m.latency = s.MaxStep, 5*time.Millisecond
	return &traffic{world: w, chain: newChain(w, w.refiller, m, s), m: m, tick: tick}
}

// drive takes IDs for a while. rate is their rate at a time since the call.
func (d *traffic) drive(length time.Duration, rate func(at time.Duration) float64) {
	d.Helper()
	begin, observed := time.Now(), time.Now()
	for at := time.Duration(0); at < length; at = time.Since(begin) {
		d.carry += rate(at) * d.tick.Seconds()
		if n := int64(d.carry); n > 0 {
			d.carry -= float64(n)
			var err error
			if d.runs, err = d.chain.NextN(d.Context(), n, d.runs[:0]); err != nil {
				d.Fatalf("after %v: %v", at, err)
			}
		}
		if time.Since(observed) >= 5*time.Second {
			d.chain.Observe()
			observed = time.Now()
		}
		time.Sleep(d.tick)
		if d.seen != nil {
			d.seen(d.chain.Status())
		}
	}
}

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

func TestStepSteady(t *testing.T) {
	virtual(t, func(w *world) {
		d := w.traffic(allocator.DefaultSettings(), time.Second)
		d.drive(30*time.Minute, steady(10_000))
		waits, leases := d.chain.Status().Waits, d.m.leases()
		d.seen = func(s allocator.Status) {
			if float64(s.Held) < 10_000*600 || float64(s.Held) > 2*float64(s.Target) {
				w.Errorf("held %d, target %d", s.Held, s.Target)
			}
			if s.Lasts < 10*time.Minute {
				w.Errorf("lasts %v", s.Lasts)
			}
		}
		d.drive(24*time.Hour, steady(10_000))
		// One lease per 31/32 of a reserve is 149 a day.
		if n := d.m.leases() - leases; n < 140 || n > 155 || d.chain.Status().Waits != waits {
			w.Errorf("%d leases in a day, %d waits", n, d.chain.Status().Waits-waits)
		}
		w.balance(d.chain, d.m)
	})
}

func TestStepDayCurve(t *testing.T) {
	virtual(t, func(w *world) {
		d := w.traffic(allocator.DefaultSettings(), 500*time.Millisecond)
		day := func(at time.Duration) float64 { // 1,000 to 20,000 IDs/s
			return 10_500 - 9_500*math.Cos(2*math.Pi*at.Hours()/24)
		}
		begin := time.Now()
		d.drive(30*time.Minute, day)
		waits, leases, targets := d.chain.Status().Waits, d.m.leases(), int64(0)
		d.seen = func(s allocator.Status) {
			at := time.Since(begin)
			// The chain knows the rate one window late: two hundredths of growth.
			if need := day(at) * 600 * 0.98; float64(s.Held) < need {
				w.Errorf("at %v: held %d, want %.0f", at, s.Held, need)
			}
			targets = max(targets, s.Target)
			if float64(s.Held) > 2*float64(targets) || targets > 21_000*619 {
				w.Errorf("at %v: held %d, largest target %d", at, s.Held, targets)
			}
		}
		d.drive(24*time.Hour, func(at time.Duration) float64 { return day(at + 30*time.Minute) })
		if n := d.m.leases() - leases; n < 75 || n > 150 || d.chain.Status().Waits != waits {
			w.Errorf("%d leases in a day, %d waits", n, d.chain.Status().Waits-waits)
		}
		w.balance(d.chain, d.m)
	})
}

func TestStepSale(t *testing.T) {
	virtual(t, func(w *world) {
		d := w.traffic(allocator.DefaultSettings(), 100*time.Millisecond)
		d.drive(30*time.Minute, steady(1_000))
		before := d.chain.Status()
		d.drive(time.Minute, steady(10_000))
		if s := d.chain.Status(); s.Waits != before.Waits || s.Target < 9*before.Target {
			w.Errorf("ten times the traffic: %d waits, target %d, before %d",
				s.Waits-before.Waits, s.Target, before.Target)
		}
	})
}

// TestStepSaleOnAColdTag: the target of a cold tag in a rush doubles with each refill
// until no caller waits. From then on the end of the first window decides.
func TestStepSaleOnAColdTag(t *testing.T) {
	virtual(t, func(w *world) {
		d := w.traffic(settings(100, 100_000_000, time.Minute), time.Millisecond)
		d.m.latency = 20 * time.Millisecond
		d.drive(time.Minute, steady(100_000))
		s := d.chain.Status()
		if s.Waits > 15 || s.Refills > 200 {
			w.Errorf("%d waits and %d leases for 6 million IDs: %v", s.Waits, s.Refills, d.m.asked)
		}
		d.drive(10*time.Minute, steady(100_000))
		if after := d.chain.Status(); after.Waits != s.Waits || after.Refills > s.Refills+12 {
			w.Errorf("%d waits and %d leases once warm", after.Waits-s.Waits, after.Refills-s.Refills)
		}
	})
}

func TestStepSilentNight(t *testing.T) {
	virtual(t, func(w *world) {
		d := w.traffic(allocator.DefaultSettings(), 5*time.Second)
		d.drive(time.Hour, steady(10_000))
		top, leases := d.chain.Status().Target, d.m.leases()
		last, asked := top, d.m.total()
		begin := time.Now()
		d.seen = func(s allocator.Status) {
			if s.Target > last {
				w.Errorf("the target grows in silence from %d to %d", last, s.Target)
			}
			// It halves every three reserves, and not faster. Near the least step it leaves room for one.
			half := float64(top) * math.Exp2(-time.Since(begin).Minutes()/30)
			if got := float64(s.Target); got < half*0.965 || got > max(half*1.05, 1001) {
				w.Errorf("after %v: target %d, want %.0f", time.Since(begin), s.Target, half)
			}
			last = s.Target
		}
		d.drive(8*time.Hour, steady(0))
		if last != 1000 {
			w.Errorf("target %d in the morning, want min_step", last)
		}
		if d.m.leases() > leases+1 || d.m.total()-asked > top {
			w.Errorf("%d leases in silence", d.m.leases()-leases)
		}
	})
}

// TestStepReserveOutlivesTheStore: no caller waits while the store is away for no
// longer than the reserve.
func TestStepReserveOutlivesTheStore(t *testing.T) {
	virtual(t, func(w *world) {
		d := w.traffic(allocator.DefaultSettings(), 100*time.Millisecond)
		for range 5 { // at several points of the chain's cycle
			d.drive(23*time.Minute, steady(5_000))
			waits := d.chain.Status().Waits
			d.m.fault(away)
			d.drive(10*time.Minute, steady(5_000))
			if s := d.chain.Status(); s.Waits != waits {
				w.Errorf("%d callers waited within the reserve", s.Waits-waits)
			}
			d.m.fault(nil)
			d.drive(10*time.Second, steady(5_000))
			if s := d.chain.Status(); s.Waits != waits || s.Lasts < 10*time.Minute {
				w.Errorf("10 s after the return: %+v", s)
			}
		}
	})
}

func TestStepPrescaleAndUpdate(t *testing.T) {
	virtual(t, func(w *world) {
		set := settings(1000, 10_000_000, time.Minute)
		d := w.traffic(set, 100*time.Millisecond)
		d.drive(time.Minute, steady(10))
		if held := d.chain.Status().Held; held > 2200 {
			w.Errorf("held %d", held)
		}
		set.Prescale, set.PrescaleUntil = 5_000_000, time.Now().Add(time.Hour)
		if err := d.chain.Update(set); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		waits := d.chain.Status().Waits
		if held := d.chain.Status().Held; held < 5_000_000 || held > 5_010_000 {
			w.Errorf("held %d after a prescale", held)
		}
		d.drive(30*time.Second, steady(100_000))
		if s := d.chain.Status(); s.Waits != waits {
			w.Errorf("%d waits in the sale", s.Waits-waits)
		}
		time.Sleep(time.Hour)
		d.drive(2*time.Hour, steady(10))
		if target := d.chain.Status().Target; target != 1000 {
			w.Errorf("target %d after the sale", target)
		}

		// Updates take effect while the chain runs: a larger least step at once, a smaller
		// largest one at the next refill.
		d.m.setMaxStep(20_000_000)
		if err := d.chain.Update(settings(20_000_000, 20_000_000, time.Minute)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if s := d.chain.Status(); s.Held < 20_000_000 || s.Target != 20_000_000 {
			w.Errorf("%+v after an update", s)
		}
		if err := d.chain.Update(settings(100, 200, time.Minute)); err != nil {
			t.Fatal(err)
		}
		d.m.setMaxStep(200) // memory complains
		w.take(d.chain, d.chain.Status().Held+5000)
		if s := d.chain.Status(); s.Target > 200 || s.Held > 450 {
			w.Errorf("%+v after an update", s)
		}
	})
}

// TestStepAtMaxStep: if the store cannot keep up with max_step, callers wait, and no
// lease is larger (memory complains).
func TestStepAtMaxStep(t *testing.T) {
	virtual(t, func(w *world) {
		d := w.traffic(settings(1000, 50_000, 10*time.Minute), 10*time.Millisecond)
		d.drive(10*time.Minute, steady(1_000_000))
		if s := d.chain.Status(); s.Target != 50_000 || s.Held > 110_000 {
			w.Errorf("%+v", s)
		}
		w.balance(d.chain, d.m)
	})
}

func TestStepAfterRestart(t *testing.T) {
	virtual(t, func(w *world) {
		d := w.traffic(allocator.DefaultSettings(), 100*time.Millisecond)
		d.drive(time.Hour, steady(10_000))
		again := newChain(w, w.refiller, d.m, allocator.DefaultSettings())
		leases := d.m.leases()
		w.take(again, 1)
		if n := d.m.asked[leases]; n != 1000 {
			w.Errorf("the first step after a restart is %d, want min_step", n)
		}
	})
}

// A busy tag does not keep a small step until the end of the first window.
func TestColdAndBusy(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 100_000_000, 10*time.Minute))
		for range 1000 { // 100,000 IDs/s for 10 s
			w.take(c, 1000)
			time.Sleep(10 * time.Millisecond)
		}
		if s := c.Status(); s.Refills > 25 || s.Target < 500_000 {
			w.Errorf("%+v, want 25 refills at most and a target of some seconds", s)
		}
		w.balance(c, m)
	})
}

// The peak is what callers took, although the chain sees only what they lease: half a minute's IDs at once. Before, it
// was three times as high, as that of the window of ten seconds in which they leased. One caller leases, or several do
// one after the other, or they lease a second's IDs each second.
func TestPeakOfLeases(t *testing.T) {
	const rate = 10_000
	for name, every := range map[string]time.Duration{"one": 30 * time.Second, "three": 10 * time.Second,
		"each second": time.Second} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *world) {
				d := w.traffic(allocator.DefaultSettings(), time.Second)
				leased := time.Now()
				for began := time.Now(); time.Since(began) < 8*time.Hour; time.Sleep(time.Second) {
					if passed := time.Since(leased); passed >= every {
						leased = time.Now()
						for n := int64(rate * passed.Seconds()); n > 0; {
							seg, err := d.chain.Lease(w.Context(), n)
							if err != nil {
								w.Fatal(err)
							}
							n -= seg.Count
						}
					}
					d.chain.Observe()
				}
				if s := d.chain.Status(); s.Peak < 0.95*rate || s.Peak > 1.05*rate || s.Waits > 20 {
					w.Errorf("callers take %d a second: the peak is %.0f, %d waited", rate, s.Peak, s.Waits)
				}
			})
		})
	}
}
