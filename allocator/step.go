package allocator

import (
	"math"
	"time"
)

// Settings decide how many IDs a chain holds. They may change at run time.
type Settings struct {
	// MinStep is the least number of IDs that a refill asks for, and the number of
	// the first refill, so that a crash loop does not use up the space; see also
	// ChainConfig.First. Default 1,000.
	MinStep int64
	// MaxStep is the largest number of IDs that one refill asks for and that a
	// chain aims to hold. A restart wastes at most about twice as
	// many IDs. Default 100,000,000: ten minutes at 166,000 IDs/s.
	MaxStep int64
	// Reserve is how long the chain should last at the recent peak rate: the
	// promise for when the store is away. Default 10 minutes.
	Reserve time.Duration
	// Prescale is how many IDs to hold at least until PrescaleUntil, whatever
	// the rate; 0 is none.
	Prescale      int64
	PrescaleUntil time.Time
}

// Bounds of Settings.
const (
	LargestStep    = 1 << 40
	LongestReserve = 7 * 24 * time.Hour
)

// DefaultSettings returns the settings of a tag for which none were given.
func DefaultSettings() Settings {
	return Settings{MinStep: 1_000, MaxStep: 100_000_000, Reserve: 10 * time.Minute}
}

// Validate checks 1 <= min_step <= max_step <= 2^40, 1s <= reserve <= 7 days
// and 0 <= prescale <= max_step. Its error is Invalid.
func (s Settings) Validate() error {
	switch {
	case s.MinStep < 1 || s.MinStep > LargestStep:
		return Errorf(Invalid, "min_step: %d; allowed: 1 to %d", s.MinStep, int64(LargestStep))
	case s.MaxStep < s.MinStep || s.MaxStep > LargestStep:
		return Errorf(Invalid, "max_step: %d; allowed: min_step (%d) to %d", s.MaxStep, s.MinStep, int64(LargestStep))
	case s.Reserve < time.Second || s.Reserve > LongestReserve:
		return Errorf(Invalid, "reserve: %v; allowed: 1s to %v", s.Reserve, LongestReserve)
	case s.Prescale < 0 || s.Prescale > s.MaxStep:
		return Errorf(Invalid, "prescale: %d; allowed: 0 to max_step (%d)", s.Prescale, s.MaxStep)
	}
	return nil
}

// A pace computes how many IDs a chain should hold from how many it issued. Its
// main value is the recent peak rate:
//
//	target = clamp(peak * reserve * 33/32, min_step, max_step)
//	most   = 2 * clamp(peak * reserve, min_step, max_step)
//
// A chain refills when it holds less than a target, up to most, by one target at most.
// It checks itself where that is due, and after every eighth of a target (a link). So
// it never holds less than the reserve, apart from what it issues while a lease is
// under way, nor more than most, which is what it leases by: twice what lasts for the reserve
// at the peak by then, or two least steps. At a steady rate it writes to the store 32
// times in 31 reserves.
//
//   - Over each window of at least 10 s the rate is measured; peak is the larger
//     of it and the old peak, which halves every three reserves. So the target
//     follows growth within a window, and quiet shrinks it slowly.
//   - A caller that had to wait doubles the target at once. So does a target
//     that was issued within a window of its refill: a chain that has just
//     started need not wait for the first measurement, nor starve first.
//
// Leaf's rule (double a step that lasted under 15 minutes, halve one
// that lasted over 30) is this with a reserve of 15 minutes: a step then lasts
// 15 minutes at the peak, and 30 when the rate has halved. CosId's safe
// distance (keep n segments ahead) is this with reserve = n segments' time:
// what it does by a number of segments, the target does by time.
type pace struct {
	settings Settings

	peak    float64   // IDs per second
	sampled time.Time // when the present window began
	issued  int64     // the number of IDs that the chain had issued by then

	leased int64                 // IDs leased to callers in the present window; issued has them already
	coming [leaseWindows]float32 // of those leased before, how many callers take in each of the windows to come

	starved      bool      // the target was doubled since the last refill
	refill       time.Time // the last refill, zero for none,
	refillIssued int64     // and the number of IDs that the chain had issued by then
}

const (
	paceWindow = 10 * time.Second
	// Callers lease IDs for the half minute that follows (api.RateOver), so many windows. What they take when is not
	// seen: it counts as taken evenly.
	leaseWindows = 3
	linkParts    = 8 // a link is at most this part of the target
	// A target is the reserve and this part of it, so that a lease has time. With a larger part a chain that holds two
	// reserves at most leases more often.
	slackParts = 32
)

// span returns how many seconds of the peak rate a target holds.
func span(s Settings) float64 { return s.Reserve.Seconds() * (slackParts + 1) / slackParts }

// halfLife returns how long the peak takes to halve.
func halfLife(s Settings) time.Duration { return 3 * s.Reserve }

// observe measures, if the window is over. issued is the chain's total.
func (p *pace) observe(now time.Time, issued int64) {
	elapsed := now.Sub(p.sampled)
	if elapsed < paceWindow {
		return
	}
	taken := float64(issued - p.issued - p.leased)
	for range min(int(elapsed/paceWindow), leaseWindows) {
		taken += float64(p.coming[0])
		p.coming = [leaseWindows]float32{p.coming[1], p.coming[2]}
	}
	for k := range p.coming {
		p.coming[k] += float32(p.leased) / leaseWindows
	}
	p.leased = 0
	rate := taken / elapsed.Seconds()
	p.peak = max(rate, p.peak*math.Exp2(-elapsed.Seconds()/halfLife(p.settings).Seconds()))
	p.sampled, p.issued = now, issued
}

// Target returns how many IDs a chain aims to hold at a peak rate, in IDs per second.
func (s Settings) Target(peak float64, now time.Time) int64 {
	return (&pace{settings: s, peak: peak}).target(now)
}

// starve doubles the target, once per refill.
func (p *pace) starve(now time.Time) {
	if !p.starved {
		p.starved = true
		p.double(now)
	}
}

// double doubles the target, up to max_step.
func (p *pace) double(now time.Time) {
	doubled := min(2*p.target(now), p.settings.MaxStep)
	p.peak = max(p.peak, float64(doubled)/span(p.settings))
}

// refilled notes a refill.
func (p *pace) refilled(now time.Time, issued int64) {
	quick := !p.refill.IsZero() && now.Sub(p.refill) < min(paceWindow, p.settings.Reserve/2)
	if quick && !p.starved && issued-p.refillIssued >= p.target(now)/2 {
		p.double(now)
	}
	p.starved, p.refill, p.refillIssued = false, now, issued
}

// target returns how many IDs the chain should hold.
func (p *pace) target(now time.Time) int64 {
	target, _ := p.bounds(now)
	return target
}

// bounds returns how many IDs the chain should hold, and the most that it leases up to.
func (p *pace) bounds(now time.Time) (target, most int64) {
	s := &p.settings
	least := s.MinStep
	if now.Before(s.PrescaleUntil) {
		least = max(least, s.Prescale)
	}
	most = max(2*least, int64(min(2*p.peak*s.Reserve.Seconds(), 2*LargestStep)))
	// A refill up to most has a least step, too.
	target = max(least, min(int64(math.Round(min(p.peak*span(*s), LargestStep))), most-least))
	return min(target, s.MaxStep), min(most, 2*s.MaxStep)
}

// link returns how many IDs the next link has: it ends where the chain that holds so many IDs has to refill.
func (p *pace) link(held int64, now time.Time) int64 {
	target := p.target(now)
	n := target / linkParts
	if above := held - target; above >= 0 {
		n = min(n, max(above+1, target/(slackParts+1)))
	}
	return max(n, 1)
}
