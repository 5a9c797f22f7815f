package room

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
)

// tagChain is a chain of a tag, and what is counted and known beside it. A room may
// have a million, so it is 128 bytes, and has no objects of its own but the chain and
// its source.
type tagChain struct {
	*allocator.Chain
	text   *texts.Text  // how its IDs are texts; nil for a tag without a format. It does not change
	asked  atomic.Int64 // requests for IDs of it, whatever became of them
	growth growth
	space  space                  // guarded by growth
	final  atomic.Pointer[totals] // its last, set when it is removed
	seen   totals                 // as the tour saw it last; guarded by tour
	shown  int64                  // the number of the first scrape that may show it, 0 for none yet; guarded by tour
}

// space is the IDs that a tag has.
type space struct{ start, limit int64 }

// usable returns an error where the IDs of a tag are to be texts, and cannot be: it is asked
// before an ID is taken. Its Kind is Refused.
func usable(tag string, text *texts.Text) error {
	if text == nil {
		return nil
	}
	if err := text.Usable(); err != nil {
		return ofTag(tag, err)
	}
	return nil
}

// setSpace notes which IDs the tag has, before anything else is asked of c and when
// that changed.
func (c *tagChain) setSpace(s space) {
	c.growth.Lock()
	defer c.growth.Unlock()
	c.space = s
}

func (c *tagChain) getSpace() space {
	c.growth.Lock()
	defer c.growth.Unlock()
	return c.space
}

// totals are what only grows: of one chain, or of many together.
type totals struct{ asked, issued, dropped, refills, waits int64 }

func (t *totals) add(o totals) {
	t.asked, t.issued, t.dropped = t.asked+o.asked, t.issued+o.issued, t.dropped+o.dropped
	t.refills, t.waits = t.refills+o.refills, t.waits+o.waits
}

func (t totals) minus(o totals) totals {
	return totals{t.asked - o.asked, t.issued - o.issued, t.dropped - o.dropped, t.refills - o.refills, t.waits - o.waits}
}

// totals returns c's, where s is its status.
func (c *tagChain) totals(s allocator.Status) totals {
	if final := c.final.Load(); final != nil {
		return *final
	}
	return totals{asked: c.asked.Load(), issued: s.Issued, dropped: s.Dropped, refills: s.Refills, waits: s.Waits}
}

// used returns how much of the tag's IDs lies below the mark as this instance
// saw it last, 0 to 1.
func (c *tagChain) used(s allocator.Status) float64 {
	all := c.getSpace()
	return allocator.Used(all.start, all.limit, s.Last+1)
}

// lasts returns after how many seconds the mark reaches the tag's limit, should
// it go on as lately; infinity where that is not in sight.
func (c *tagChain) lasts(s allocator.Status, now time.Time) float64 {
	all := c.getSpace()
	left := all.limit - s.Last - 1
	if left <= 0 {
		return 0 // whatever the rate: 0/0 is no number
	}
	return float64(left) / c.growth.rate(now, s.Last)
}

// growth measures how fast a tag's mark rises: over all instances of the room,
// as seen from the segments of one. It looks back an hour, or two, and says
// nothing before it has looked for ten minutes: a chain's first segments come in
// quick succession and last for long.
type growth struct {
	sync.Mutex
	from, next         int64  // a mark's height at two times
	fromTime, nextTime uint32 // these, in Unix seconds: as small as a tag in memory is to be
}

const (
	growthWindow = time.Hour
	growthLeast  = 10 * time.Minute
)

// note takes note of a segment that was leased, by its last ID.
func (g *growth) note(now time.Time, last int64) {
	g.Lock()
	defer g.Unlock()
	switch at := uint32(now.Unix()); { //nolint:gosec // until 2106
	case g.fromTime == 0:
		g.from, g.next, g.fromTime, g.nextTime = last, last, at, at
	case int64(at)-int64(g.nextTime) >= int64(growthWindow/time.Second):
		g.from, g.next, g.fromTime, g.nextTime = g.next, last, g.nextTime, at
	}
}

// rate returns by how much the mark rose per second.
func (g *growth) rate(now time.Time, last int64) float64 {
	g.Lock()
	defer g.Unlock()
	since := now.Unix() - int64(g.fromTime)
	if g.fromTime == 0 || since < int64(growthLeast/time.Second) {
		return 0
	}
	return float64(max(last-g.from, 0)) / float64(since)
}
