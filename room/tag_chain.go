package room

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
)

// tagChain is a chain of a tag, with its counters and settings. A room may have a
// million, so it has 128 bytes, and no objects of its own except the chain and its
// source.
type tagChain struct {
	*allocator.Chain
	text   *texts.Text  // how its IDs are texts; nil for a tag without a format. It does not change
	asked  atomic.Int64 // requests for its IDs, failed ones included
	growth growth
	start  int64                  // of the space; guarded by growth
	limit  int64                  // likewise
	final  atomic.Pointer[totals] // its last totals, set when it is removed
	seen   totals                 // its totals when the tour last saw it; guarded by tour
	shown  uint32                 // the number of the first scrape that may show it, 0 for none yet; guarded by tour
	ends   uint32                 // of the space; guarded by growth
}

// space is the interval of a tag's IDs: of a tag with a period, that of the period that is
// now.
type space struct {
	start, limit int64
	ends         uint32 // when the period ends, in Unix seconds; 0 for a tag without one
}

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

// setSpace sets the tag's space. It is called before any other method, and when the
// space has changed.
func (c *tagChain) setSpace(s space) {
	c.growth.Lock()
	defer c.growth.Unlock()
	c.start, c.limit, c.ends = s.start, s.limit, s.ends
}

func (c *tagChain) getSpace() space {
	c.growth.Lock()
	defer c.growth.Unlock()
	return space{c.start, c.limit, c.ends}
}

// totals are counters, which only grow, of one chain or of many together.
type totals struct{ asked, issued, dropped, refills, waits int64 }

func (t *totals) add(o totals) {
	t.asked, t.issued, t.dropped = t.asked+o.asked, t.issued+o.issued, t.dropped+o.dropped
	t.refills, t.waits = t.refills+o.refills, t.waits+o.waits
}

func (t totals) minus(o totals) totals {
	return totals{t.asked - o.asked, t.issued - o.issued, t.dropped - o.dropped,
		t.refills - o.refills, t.waits - o.waits}
}

// totals returns the totals of c, whose status is s.
func (c *tagChain) totals(s allocator.Status) totals {
	if final := c.final.Load(); final != nil {
		return *final
	}
	return totals{asked: c.asked.Load(), issued: s.Issued, dropped: s.Dropped, refills: s.Refills, waits: s.Waits}
}

// used returns the share of the tag's IDs below the mark as this instance last saw
// it, 0 to 1.
func (c *tagChain) used(s allocator.Status) float64 {
	if allocator.KindOf(s.Failure) == allocator.Exhausted {
		return 1 // what is left between the mark and the limit is other rooms'
	}
	all := c.getSpace()
	return allocator.Used(all.start, all.limit, s.Last+1)
}

// lasts returns after how many seconds the mark reaches the tag's limit at its
// recent rate, or infinity. A tag with a period counts anew before that, or reaches the end
// of its period.
func (c *tagChain) lasts(s allocator.Status, now time.Time) float64 {
	all := c.getSpace()
	left := all.limit - s.Last - 1
	if left <= 0 {
		return 0 // at any rate, and 0/0 is not a number
	}
	lasts := float64(left) / c.growth.rate(now, s.Last)
	if all.ends > 0 && lasts > float64(int64(all.ends)-now.Unix()) {
		return math.Inf(1)
	}
	return lasts
}

// growth measures how fast a tag's mark rises by all instances of the room, from
// the segments of this one. It looks back one or two hours. It returns no rate in
// the first ten minutes, because a chain's first segments come in quick succession
// and last for long.
type growth struct {
	sync.Mutex
	from, next         int64  // a mark's height at two times
	fromTime, nextTime uint32 // these, in Unix seconds: as small as a tag in memory is to be
}

const (
	growthWindow = time.Hour
	growthLeast  = 10 * time.Minute
)

// note notes a leased segment by its last ID.
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

// restart forgets what was noted, because the mark has jumped.
func (g *growth) restart() {
	g.Lock()
	defer g.Unlock()
	g.from, g.next, g.fromTime, g.nextTime = 0, 0, 0, 0
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
