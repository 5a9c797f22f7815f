package room

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// issuer issues the IDs of one tag in memory: a counter those of its chain, a TimeTag those of
// a worker's windows. It may be closed at any time, because it was unused for long or its tag
// was deleted. Its methods then return allocator.ErrClosed.
type issuer interface {
	ask()              // counts a request
	Text() *texts.Text // how its IDs are texts; nil for a tag without a format
	Next(ctx context.Context) (int64, error)
	// NextN appends the runs of n IDs to dst. Those that it appended before an error are lost, a gap.
	NextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error)
	// NextRun returns n consecutive IDs, and how many it skipped before them.
	NextRun(ctx context.Context, n int64) (run allocator.Run, skipped int64, err error)
	// prepare returns what can be known to fail before n IDs are taken.
	prepare(ctx context.Context, n int64) error
	// lease gives the caller IDs, or a window, to issue itself.
	lease(ctx context.Context, m *tags, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error)
	// Warm waits until a caller need not wait for etcd.
	Warm(ctx context.Context) error

	// update applies a tag's changed settings. It returns false if the issuer cannot go on with
	// them, as that of a tag that was deleted and made anew.
	update(m *tags, settings record.TagSettings) (keeps bool, err error)
	// report adds the issuer to a round of the scan, whose lock is held.
	report(m *tags, r *round, now time.Time)
	counts() *tally
	totals() totals
	// CloseUnused closes the issuer if no caller asked for an ID for some time. Only the sweep calls it.
	CloseUnused(after time.Duration) bool
	Close()
}

// tally has what an issuer of any kind counts, and what was read of it.
type tally struct {
	asked atomic.Int64 // requests for its IDs, failed ones included
	seen  totals       // its totals when the scan last saw it; guarded by scan
}

func (t *tally) ask()           { t.asked.Add(1) }
func (t *tally) counts() *tally { return t }

// counter is the issuer of a counter: its chain, with what the room keeps of the tag beside it.
type counter struct {
	*allocator.Chain
	tally
	text   *texts.Text    // how its IDs are texts; nil for a tag without a format. It does not change
	period period.Period  // zero for none. It does not change
	tenure *ledger.Tenure // of an ordered tag; nil for any other. It does not change
	source meteredSource  // what the chain leases from
	shown  uint32         // the number of the first scrape that may show it, 0 for none yet; guarded by scan
	strict bool           // as process.strict says. It does not change
	skewed bool           // the tag had a max_skew when it was read. It does not change

	mu struct {
		sync.Mutex
		space  space
		growth growth
	}
}

// space is the interval of a tag's IDs: of a tag with a period, that of the period that is
// now.
type space struct {
	start, limit int64
	ends         time.Time // when the period ends; zero for a tag without one
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
func (c *counter) setSpace(s space) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.space = s
}

func (c *counter) getSpace() space {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.space
}

// leased notes a leased segment by its last ID.
func (c *counter) leased(last int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.growth.note(time.Now(), last)
}

func (c *counter) Text() *texts.Text { return c.text }

// prepare gets n IDs into memory, if a chain of the tag gets so many.
func (c *counter) prepare(ctx context.Context, n int64) error {
	if c.tenure == nil {
		return c.WarmN(ctx, n)
	}
	ctx, cancel, err := c.wait(ctx)
	defer cancel()
	if err == nil {
		err = c.WarmN(ctx, n)
	}
	return c.ended(err)
}

// lease gives the caller a segment for some time.
func (c *counter) lease(ctx context.Context, m *tags, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error) {
	if c.tenure != nil {
		return nil, &allocator.OrderedError{Tag: c.Tag()}
	}
	seg, err := c.Lease(ctx, r.GetCount())
	if err != nil && allocator.KindOf(err) == allocator.Exhausted {
		err = &allocator.LimitError{Limit: c.Limited(), Err: err}
	}
	if err != nil {
		return nil, err
	}
	ttl := m.ttlInPeriod(c, seg, m.gates.ttl(c.Chain, seg))
	return &marchv1.LeaseResponse{Segment: api.SegmentToProto(seg), Ttl: durationpb.New(ttl), Limit: c.Limited()}, nil
}

// update implements issuer. A chain keeps its gate for life.
func (c *counter) update(m *tags, settings record.TagSettings) (keeps bool, err error) {
	if settings.Time != nil || !c.text.Is(settings.Format, settings.KeyCheck) ||
		c.period != settings.Period || c.strict != m.strict(settings) ||
		(c.tenure != nil) != (settings.StrictOrder != "") || settings.Home != "" && settings.Home != m.cfg.Room {
		return false, nil
	}
	if err := c.Update(settings.Chain()); err != nil {
		return true, err
	}
	c.Skip(max(settings.Skip, settings.Skips[m.cfg.Room]))
	c.Limit(settings.Limit)
	c.setSpace(m.spaceOf(settings))
	m.noteSkew(c, settings.MaxSkew > 0)
	return true, nil
}

// CloseUnused implements issuer. It also refills a chain that is too slow to look at itself.
func (c *counter) CloseUnused(after time.Duration) bool {
	unused := c.Observe()
	if c.tenure != nil {
		unused = min(unused, c.tenure.OpenFor())
	}
	if unused < after || c.tenure == nil && !c.Chain.CloseUnused(after) {
		return false
	}
	c.Close()
	return true
}

// Close drops all IDs. Those of an ordered tag are the rest that its tenure leaves.
func (c *counter) Close() {
	if c.tenure != nil {
		c.tenure.Release(c.Segments)
	}
	c.Chain.Close()
}

func (c *counter) report(m *tags, r *round, now time.Time) {
	t := &m.scan
	status := m.gates.statusOf(c)
	found := seen{c, status, t.see(c, c.totalsOf(status))}
	r.add(found)
	if !t.own.has(c) {
		r.addOther(found, now, t.own.free())
	}
}

// totals are counts, which only grow, of one issuer or of several of a kind.
type totals struct {
	asked, issued           int64
	dropped, refills, waits int64 // of counters
	overflows, rollbacks    int64 // of time-ordered IDs
	overflowed              time.Duration
}

func (t *totals) add(o totals) {
	t.asked, t.issued, t.dropped = t.asked+o.asked, t.issued+o.issued, t.dropped+o.dropped
	t.refills, t.waits = t.refills+o.refills, t.waits+o.waits
	t.overflows, t.rollbacks, t.overflowed = t.overflows+o.overflows, t.rollbacks+o.rollbacks, t.overflowed+o.overflowed
}

func (t totals) minus(o totals) totals {
	return totals{t.asked - o.asked, t.issued - o.issued, t.dropped - o.dropped, t.refills - o.refills,
		t.waits - o.waits, t.overflows - o.overflows, t.rollbacks - o.rollbacks, t.overflowed - o.overflowed}
}

func (c *counter) totals() totals { return c.totalsOf(c.Status()) }

// totalsOf returns the totals of c, whose status is s.
func (c *counter) totalsOf(s allocator.Status) totals {
	return totals{asked: c.asked.Load(), issued: s.Issued, dropped: s.Dropped, refills: s.Refills, waits: s.Waits}
}

// used returns the share of the tag's IDs below the mark as this instance last saw
// it, 0 to 1.
func (c *counter) used(s allocator.Status) float64 {
	if allocator.KindOf(s.Failure) == allocator.Exhausted {
		return 1 // what is left between the mark and the limit is other rooms'
	}
	all := c.getSpace()
	return allocator.Used(all.start, all.limit, s.Last+1)
}

// lasts returns after how many seconds the mark reaches the tag's limit at its
// recent rate, or infinity. A tag with a period counts anew before that, or reaches the end
// of its period.
func (c *counter) lasts(s allocator.Status, now time.Time) float64 {
	c.mu.Lock()
	all, rate := c.mu.space, c.mu.growth.rate(now, s.Last)
	c.mu.Unlock()
	left := all.limit - s.Last - 1
	if left <= 0 {
		return 0 // at any rate, and 0/0 is not a number
	}
	lasts := float64(left) / rate
	if !all.ends.IsZero() && lasts > all.ends.Sub(now).Seconds() {
		return math.Inf(1)
	}
	return lasts
}

// growth measures how fast a tag's mark rises by all instances of the room, from
// the segments of this one. It looks back one or two hours. It returns no rate in
// the first ten minutes, because a chain's first segments come in quick succession
// and last for long.
type growth struct {
	from, next         int64 // a mark's height at two times
	fromTime, nextTime time.Time
}

const (
	growthWindow = time.Hour
	growthLeast  = 10 * time.Minute
)

// note notes a leased segment by its last ID.
func (g *growth) note(now time.Time, last int64) {
	switch {
	case g.fromTime.IsZero():
		g.from, g.next, g.fromTime, g.nextTime = last, last, now, now
	case now.Sub(g.nextTime) >= growthWindow:
		g.from, g.next, g.fromTime, g.nextTime = g.next, last, g.nextTime, now
	}
}

// rate returns by how much the mark rose per second.
func (g *growth) rate(now time.Time, last int64) float64 {
	since := now.Sub(g.fromTime)
	if g.fromTime.IsZero() || since < growthLeast {
		return 0
	}
	return float64(max(last-g.from, 0)) / since.Seconds()
}
