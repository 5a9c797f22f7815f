package room

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
)

// periods are the tags in memory whose IDs the calendar divides. Where a period ends, each
// chain takes a segment of the next one first and then drops what it holds, as it does for
// a layout. So no caller waits at midnight, and some seconds later no ID of the old period
// is issued, unless etcd is away.
type periods struct {
	added chan struct{} // holds one token when a tag came
	mu    struct {
		sync.Mutex
		tags map[allocator.Tag]period.Period
		now  map[period.Period]period.Span // as they were at the last look
	}
}

func (p *periods) init() {
	p.added = make(chan struct{}, 1)
	p.mu.tags = make(map[allocator.Tag]period.Period)
	p.mu.now = make(map[period.Period]period.Span)
}

// add notes a tag whose chain is being made.
func (p *periods) add(tag allocator.Tag, its period.Period, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.tags[tag] = its
	if _, known := p.mu.now[its]; !known {
		p.mu.now[its] = its.At(now)
		select {
		case p.added <- struct{}{}:
		default:
		}
	}
}

// of returns the period of a tag in memory, zero for none.
func (p *periods) of(tag allocator.Tag) period.Period {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.tags[tag]
}

// remove forgets a tag, whose chain leaves memory.
func (p *periods) remove(tag allocator.Tag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.tags, tag)
}

// lookAgain bounds how long the clock is not looked at: it may be set.
const lookAgain = 5 * time.Second

// turned returns the tags whose period has ended since the last call, with the period that
// is now, and after how long to look again. A tag is turned back where the clock went back, as after a leap ahead that
// was mended: otherwise it would wait for a period that has not begun.
func (p *periods) turned(now time.Time) (tags map[allocator.Tag]period.Span, again time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	again = lookAgain
	turned := make(map[period.Period]bool)
	for its, last := range p.mu.now {
		span := its.At(now)
		if span.First != last.First {
			turned[its], p.mu.now[its] = true, span
		}
		again = min(again, max(span.Ends.Sub(now), time.Millisecond))
	}
	if len(turned) == 0 {
		return nil, again
	}
	tags = make(map[allocator.Tag]period.Span)
	for tag, its := range p.mu.tags {
		if turned[its] {
			tags[tag] = p.mu.now[its]
		}
	}
	return tags, again
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
		tags, again := m.periods.turned(m.instance.Now())
		if len(tags) > 0 {
			m.turnAll(ctx, tags)
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

// turnAll turns chains to the period that is now, the busiest first.
func (m *tags) turnAll(ctx context.Context, tags map[allocator.Tag]period.Span) {
	start := time.Now()
	var pending []*counter
	for tag := range tags {
		if chain := m.counter(string(tag)); chain != nil { // otherwise it is being made
			pending = append(pending, chain)
		}
	}
	m.sortByPeak(pending)
	rate := min(max(turnLeast, float64(len(pending))/turnWithin.Seconds()), adoptMost)
	for done := 0; done < len(pending); {
		due := min(1+int(time.Since(start).Seconds()*rate), len(pending))
		for ; done < due; done++ {
			m.turn(pending[done], tags[pending[done].Tag()])
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
	was := c.getSpace()
	start := max(was.start, span.First)
	if was.limit > span.End { // turned back
		start = span.First
	}
	c.setSpace(space{start, min(c.Limited(), span.End), unix(span.Ends)})
	c.growth.restart()
	c.Unskip(span.First)
	c.Skip(span.First)
}

// spaceOf returns the interval of a tag's IDs; of a tag with a period, that of the period
// that is now.
func (m *tags) spaceOf(settings record.TagSettings) space {
	present, span := settings.Present(m.instance.Now(), 0)
	if span.End == 0 {
		return space{present.Start, present.Limit, 0}
	}
	return space{present.Start, present.Limit, unix(span.Ends)}
}

// unix returns a time in Unix seconds, as far as 32 bits hold it: to 2106.
func unix(t time.Time) uint32 { return uint32(min(max(t.Unix(), 0), math.MaxUint32)) }

// afterPeriod is how long a client may go on with the IDs of a period that has ended. The
// room needs turnWithin to turn all of its tags.
const afterPeriod = turnWithin

// ttlInPeriod bounds how long a client may use a segment by the end of its period.
func (m *tags) ttlInPeriod(tag allocator.Tag, seg allocator.Segment, ttl time.Duration) time.Duration {
	its := m.periods.of(tag)
	if its == (period.Period{}) {
		return ttl
	}
	span, _ := its.Of(seg.First)
	return min(ttl, max(span.Ends.Sub(m.instance.Now())+afterPeriod, time.Second))
}
