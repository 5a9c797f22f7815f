package minutes

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
)

// Check checks how many minutes a caller asks for, and how many minutes each point is to
// cover. Its error is Invalid. 0 stands for 60 minutes and for steps of 1 minute.
func Check(minutes, step int32) (m, each int64, err error) {
	m, each = int64(cmp.Or(minutes, 60)), int64(cmp.Or(step, 1))
	switch {
	case m < 1 || m > Kept:
		return 0, 0, allocator.Errorf(allocator.Invalid, "minutes: %d; allowed: 1 to %d, 0 for 60", minutes, Kept)
	case each < 1 || each > longestStep || m%each != 0:
		return 0, 0, allocator.Errorf(allocator.Invalid,
			"step: %d; allowed: 1 to %d, and a divisor of minutes (%d); 0 for 1", step, longestStep, m)
	}
	return m, each, nil
}

// First returns when the first point of the last minutes begins: a multiple of step minutes,
// so that points of several instances cover the same minutes. The last point has the last
// minute that has ended, and may be incomplete.
func First(now time.Time, minutes, step int64) time.Time {
	last := (minuteOf(now) - 1) / step
	return time.Unix((last-minutes/step+1)*step*60, 0)
}

// Last returns the history of the instance and of its tags, the busiest first, and when the
// first point begins.
func (h *History) Last(now time.Time, minutes, step int64) (first time.Time, all Series, tags []Series) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first = First(now, minutes, step)
	from, to := minuteOf(first), h.mu.now // of minutes at and after to nothing is known yet
	all.Points = make([]Point, 0, minutes/step)
	for at := from; len(all.Points) < int(minutes/step); at += step {
		p := newPoint()
		for m := max(at, to-Kept+1); m < min(at+step, to); m++ {
			p.add(h.mu.ring[place(m)])
		}
		all.Points = append(all.Points, p.done())
	}
	for _, tag := range slices.Sorted(maps.Keys(h.mu.tags)) {
		s := Series{Tag: tag, Points: make([]Point, 0, minutes/step)}
		for at := from; len(s.Points) < int(minutes/step); at += step {
			p := newPoint()
			for m := max(at, to-Kept+1); m < min(at+step, to); m++ {
				v := h.mu.tags[tag].ring[place(m)]
				p.add(minute{rate: v.rate, reserve: v.reserve, latency: Unknown, failed: v.failed, away: Unknown})
			}
			s.Points = append(s.Points, p.done())
		}
		tags = append(tags, s)
	}
	slices.SortStableFunc(tags, func(a, b Series) int { return cmp.Compare(b.sum(), a.sum()) })
	return first, all, tags
}

// sum returns the sum of the known rates.
func (s Series) sum() float64 {
	sum := 0.0
	for _, p := range s.Points {
		sum += max(p.Rate, 0)
	}
	return sum
}

type point struct {
	Point
	rates int // minutes with a known rate
}

func newPoint() *point { return &point{Point: Point{Unknown, Unknown, Unknown, Unknown, Unknown}} }

func (p *point) add(m minute) {
	if m.rate >= 0 {
		p.Rate = max(p.Rate, 0) + float64(m.rate)
		p.rates++
	}
	if m.reserve >= 0 && (p.Reserve < 0 || float64(m.reserve) < p.Reserve) {
		p.Reserve = float64(m.reserve)
	}
	p.Latency = max(p.Latency, float64(m.latency))
	if m.failed >= 0 {
		p.Failed = max(p.Failed, 0) + float64(m.failed)
	}
	if m.away >= 0 {
		p.Away = max(p.Away, 0) + float64(m.away)
	}
}

// done returns the point with its mean rate.
func (p *point) done() Point {
	if p.rates > 1 {
		p.Rate /= float64(p.rates)
	}
	return p.Point
}
