package room

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
)

// periods are those by which the calendar divides IDs of tags in memory. Where a period ends, each
// chain takes a segment of the next one first and then drops what it holds, as it does for
// a layout. So no caller waits at midnight, and some seconds later no ID of the old period
// is issued, unless etcd is away.
type periods struct {
	added chan struct{} // holds one token when a period came
	mu    struct {
		sync.Mutex
		now map[period.Period]period.Span // as they were at the last look
	}
}

func (p *periods) init() {
	p.added = make(chan struct{}, 1)
	p.mu.now = make(map[period.Period]period.Span)
}

// add notes the period of a tag whose chain is being made; zero is none.
func (p *periods) add(of period.Period, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.mu.now[of]; known || of == (period.Period{}) {
		return
	}
	p.mu.now[of] = of.At(now)
	allocator.Wake(p.added)
}

// lookAgain bounds how long the clock is not looked at: it may be set.
const lookAgain = 5 * time.Second

// turned returns the periods that have ended since the last call, with the one that is now, and after how long to look
// again. A period turns back where the clock went back, as after a leap ahead that was mended: otherwise its tags
// would wait for one that has not begun.
func (p *periods) turned(now time.Time) (turned map[period.Period]period.Span, again time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	again = lookAgain
	turned = make(map[period.Period]period.Span)
	for of, last := range p.mu.now {
		span := of.At(now)
		if span.First != last.First {
			turned[of], p.mu.now[of] = span, span
		}
		again = min(again, max(span.Ends.Sub(now), time.Millisecond))
	}
	return turned, again
}

// followPeriods turns tags to their next periods, until ctx ends.
func (m *tags) followPeriods(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-m.periods.added:
		}
		turned, again := m.periods.turned(m.instance.Now())
		if len(turned) > 0 {
			m.turnAll(ctx, turned)
			again = 0 // another period may have ended meanwhile
		}
		timer.Reset(again)
	}
}

// Where a period ends, all chains of a room are turned, unlike most often by a layout. So
// that a caller hardly waits behind their leases, they are spread over turnWithin, and few
// are asked for at once: some more every turnPoll. There are at least turnLeast a second,
// which no caller notices.
const (
	turnWithin = 10 * time.Second
	turnLeast  = 500
	turnPoll   = time.Millisecond
)

// turnAll turns the chains of periods that have ended to those that are now, the busiest first. A chain that is being
// made turns by itself.
func (m *tags) turnAll(ctx context.Context, turned map[period.Period]period.Span) {
	start := time.Now()
	pending, _ := m.counters("", math.MaxInt)
	pending = slices.DeleteFunc(pending, func(c *counter) bool { return turned[c.period].End == 0 })
	m.sortByPeak(pending)
	rate := min(max(turnLeast, float64(len(pending))/turnWithin.Seconds()), adoptMost)
	for done := 0; done < len(pending); {
		due := min(1+int(time.Since(start).Seconds()*rate), len(pending))
		for ; done < due; done++ {
			m.turn(pending[done], turned[pending[done].period])
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(turnPoll):
		}
	}
	m.log.Info("tags turned to the next period", "tags", len(pending), "took",
		time.Since(start).Round(time.Millisecond))
}

// turn turns a chain to a period. A cold one is dropped: its next caller makes it anew.
func (m *tags) turn(c *counter, span period.Span) {
	if c.Cold(m.cfg.ColdAfter) {
		m.remove(c.Tag(), c)
		return
	}
	c.begin(span)
}

// begin has a chain lease and issue IDs of a period, or of a later one, from now on.
func (c *counter) begin(span period.Span) {
	limit := min(c.Limited(), span.End)
	c.mu.Lock()
	start := max(c.mu.space.start, span.First)
	if c.mu.space.limit > span.End { // turned back
		start = span.First
	}
	c.mu.space, c.mu.growth = space{start, limit, span.Ends}, growth{} // the mark jumps
	c.mu.Unlock()
	c.Unskip(span.First)
	c.Skip(span.First)
}

// spaceOf returns the interval of a tag's IDs; of a tag with a period, that of the period
// that is now.
func (m *tags) spaceOf(settings record.TagSettings) space {
	present, span := settings.Present(m.instance.Now(), 0)
	return space{present.Start, present.Limit, span.Ends}
}

// afterPeriod is how long a client may go on with the IDs of a period that has ended. The
// room needs turnWithin to turn all of its tags.
const afterPeriod = turnWithin

// ttlInPeriod bounds how long a client may use a segment of c by the end of its period.
func (m *tags) ttlInPeriod(c *counter, seg allocator.Segment, ttl time.Duration) time.Duration {
	if c.period == (period.Period{}) {
		return ttl
	}
	span, _ := c.period.Of(seg.First)
	return min(ttl, max(span.Ends.Sub(m.instance.Now())+afterPeriod, time.Second))
}
