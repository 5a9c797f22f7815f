package timetags

import (
	"time"

	"github.com/march-id/march/allocator/timeid"
)

// Totals are counts of all tags since the process began, those that are gone from memory included, and the
// state of the workers.
type Totals struct {
	Requests, IDs int64
	timeid.Stats        // Ahead is the largest of all tags
	Exchanges     int64 // workers that were exchanged because a layout took them away or another process had them
	Conflicts     int64 // of them: another process had the worker
	Tags          int   // in memory
	// ClockAhead is how far the clock was ahead of the other instances', when a window was
	// last taken or renewed.
	ClockAhead time.Duration

	// Remaining is, by width, how long a worker's window lasts if it is not renewed; 0 if it
	// has ended, or the instance has no worker of the width and needs one.
	Remaining map[int]time.Duration
	// Lent is, by width, how many workers callers have.
	Lent map[int]int
}

// add adds the counts of a tag.
func (t *Totals) add(tag *Tag) {
	requests, ids := tag.Asked()
	stats := tag.Stats()
	t.Requests, t.IDs = t.Requests+requests, t.IDs+ids
	ahead := max(t.Ahead, stats.Ahead)
	t.Stats = plus(t.Stats, stats)
	t.Ahead = ahead
}

// Totals returns the counts as they are now.
func (t *Tags) Totals() Totals {
	total := t.gone()
	for _, tag := range t.All() {
		total.add(tag)
		total.Tags++
	}
	total.ClockAhead = t.cfg.Workers.ClockAhead()
	total.Remaining, total.Lent = make(map[int]time.Duration), t.lentNow()
	for _, p := range t.pools() {
		s := p.show()
		if s.worker != nil || s.failed != nil { // else no tag needs a worker
			total.Remaining[p.bits] = s.remaining(t.now())
		}
		total.Lent[p.bits] += 0 // also if there are none
		total.Exchanges += s.exchanges
		total.Conflicts += s.conflicts
	}
	return total
}

// gone returns the counts of the tags that are no longer in memory.
func (t *Tags) gone() Totals {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.mu.gone
}
