package room

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/minutes"
)

// scan visits all issuers, a few at a time: it looks after each, and adds up their
// values. A room may have a million tags, so no work that a caller waits for, or
// that runs every second, visits all of them.
//
// With at most fewTags the values of the scan are current. With more they are
// those of the last round, a second old for each fewTags; only the number of
// issued IDs is always current (Server.issued).
type scan struct {
	sync.Mutex
	last  round  // the last complete round
	sum   totals // of all counters as they were last seen, removed ones included
	timed totals // of all time-ordered tags likewise
	own   *own   // of the metrics; nil without metrics
}

// walk is a round under way: that of the sweep, or one of a caller who wants current values.
type walk struct {
	at    allocator.Tag // the tag that was visited last; empty at the beginning
	round round
}

const (
	scanEvery = 100 * time.Millisecond
	// fewTags tags are visited in a second, however many there are. A visit takes some 3 µs, mostly of waiting for
	// memory, so the visits take 3% of a processor. Callers notice a tenth.
	fewTags = 10_000
	// scanStep is how many tags are visited at once: 64 would hold a processor for as long as a call takes.
	scanStep = 16
)

// round has the values that one round of a scan found.
type round struct {
	held    int64
	free    bool              // a chain without a gate holds an ID
	gated   allocator.Segment // of the newest layout that a chain with a gate holds, empty for none
	busy    bool              // some tag in use is not at its limit
	longest time.Duration     // the longest reserve of such chains
	reserve time.Duration     // the least reserve of the chains in use
	scarce  allocator.Tag     // the tag of that chain; empty when none is in use
	used    []seen            // of tags in use that have no ID left, maxDamaged at most
	early   []seen            // of tags that lease in a period that has not begun, maxDamaged at most
	busiest []seen            // the busiest chains in use; more than minutes.MaxTags until the end of the round
	others  state             // of the chains without series of their own
	rising  []seen            // the busiest of these, as many as there are free series
	// at its end chains got series of their own; this round still counts them among the others
	gave  bool
	ahead time.Duration // how far time-ordered IDs are ahead of the clock, the most of all tags
}

func newRound() round {
	return round{others: state{reserve: allocator.LongestReserve.Seconds(), lasts: math.Inf(1)}}
}

// add adds a chain to a round.
func (r *round) add(s seen) {
	r.held += s.status.Held
	if s.status.Held > 0 {
		switch {
		case s.chain.tenure != nil:
			r.free = r.free || s.status.Lasts > 0
		case s.chain.Gated():
			for _, seg := range s.chain.Segments() {
				if seg.Version > r.gated.Version {
					r.gated = seg
				}
			}
		default:
			r.free = true
		}
	}
	// A tag that is at its own limit leases no more: how long it lasts says nothing of the room.
	exhausted := allocator.KindOf(s.status.Failure) == allocator.Exhausted
	if s.status.Peak > 0 && (s.status.Held > 0 || !exhausted) {
		r.busy = true
		if s.status.Held > 0 {
			r.longest = max(r.longest, s.status.Lasts)
		}
	}
	if exhausted && s.status.Held == 0 && len(r.used) < maxDamaged {
		r.used = append(r.used, s)
	}
	if space := s.chain.getSpace(); !space.ends.IsZero() && s.status.Last >= space.limit && len(r.early) < maxDamaged {
		r.early = append(r.early, s)
	}
	if s.status.Peak > 0 && !exhausted && (r.scarce == "" || s.status.Lasts < r.reserve) {
		r.reserve, r.scarce = s.status.Lasts, s.chain.Tag()
	}
	if s.status.Peak > 0 {
		if r.busiest = append(r.busiest, s); len(r.busiest) > 2*minutes.MaxTags {
			r.busiest = busiest(r.busiest, minutes.MaxTags)
		}
	}
}

// addOther adds a chain to those without series of their own. A chain that never
// held an ID does not count for the least reserve.
func (r *round) addOther(s seen, now time.Time, free int) {
	r.others.held += s.status.Held
	r.others.excess += s.status.Excess
	r.others.step += s.status.Target
	if s.status.Refills > 0 {
		r.others.reserve = min(r.others.reserve, s.status.Lasts.Seconds())
	}
	r.others.used = max(r.others.used, s.chain.used(s.status))
	r.others.lasts = min(r.others.lasts, s.chain.lasts(s.status, now))
	if free == 0 || s.status.Peak == 0 && len(r.rising) >= free { // its IDs are not asked for
		return
	}
	if r.rising = append(r.rising, s); len(r.rising) > 2*free {
		r.cut(free)
	}
}

// cut keeps the n busiest of rising.
func (r *round) cut(n int) { r.rising = busiest(r.rising, n) }

// busiest returns the n busiest chains of a list, in this order. It changes the list.
func busiest(list []seen, n int) []seen {
	slices.SortFunc(list, func(a, b seen) int {
		return cmp.Or(cmp.Compare(b.status.Peak, a.status.Peak), cmp.Compare(a.chain.Tag(), b.chain.Tag()))
	})
	return slices.Delete(list, min(n, len(list)), len(list))
}

// see adds what an issuer counted since it was last seen, and returns its totals. The lock is held.
func (t *scan) see(tag issuer, now totals) totals {
	seen, sum := tag.counts(), &t.sum
	if _, is := tag.(*TimeTag); is {
		sum = &t.timed
	}
	sum.add(now.minus(seen.seen))
	seen.seen = now
	return now
}

// finish adds the last totals of an issuer that was removed.
func (t *scan) finish(tag issuer) {
	t.Lock()
	defer t.Unlock()
	last := t.see(tag, tag.totals())
	if c, is := tag.(*counter); is {
		t.own.remove(c, last)
	}
}

// totals returns those of all counters.
func (t *scan) totals() totals {
	t.Lock()
	defer t.Unlock()
	return t.sum
}

// timeOrdered returns the totals of all time-ordered tags, and how far their IDs are ahead of the clock.
func (t *scan) timeOrdered() (totals, time.Duration) {
	t.Lock()
	defer t.Unlock()
	return t.timed, t.last.ahead
}

// lastRound returns the last complete round.
func (t *scan) lastRound() round {
	t.Lock()
	defer t.Unlock()
	return t.last
}

// visit adds up to n more issuers to a walk's round, to its end, and calls care for each. It calls
// care without the lock, and pauses between two pages.
func (m *tags) visit(ctx context.Context, w *walk, n int, pause time.Duration, care func(tagged)) {
	list := make([]tagged, 0, scanStep)
	for over := false; n > 0 && !over; n -= scanStep {
		list, over = m.visitPage(w, min(n, scanStep), list[:0])
		for _, found := range list {
			care(found)
		}
		if n > scanStep && !store.Sleep(ctx, pause) {
			return
		}
	}
}

// visitPage adds the next n issuers to a walk's round and appends them to list. It returns over if
// the round has ended, which is then the last round.
func (m *tags) visitPage(w *walk, n int, list []tagged) (_ []tagged, over bool) {
	t := &m.scan
	t.Lock()
	defer t.Unlock()
	if w.at == "" {
		w.round = newRound()
	}
	list = m.memory.page(w.at, n, list)
	now := time.Now()
	for _, found := range list {
		found.issuer.report(m, &w.round, now)
	}
	if w.at = lastTag(list); len(list) == n {
		return list, false
	}
	t.own.give(&w.round, m)
	w.round.busiest = busiest(w.round.busiest, minutes.MaxTags)
	t.last, w.at = w.round, ""
	return list, true
}

// currentRound returns the last round. With few tags it makes a new one.
func (m *tags) currentRound() round {
	if counters, timed := m.memory.size(); counters+timed > fewTags {
		return m.scan.lastRound()
	}
	var w walk
	m.visit(context.Background(), &w, 2*fewTags, 0, func(tagged) {})
	return w.round
}

// sweep looks after all issuers until ctx ends: it measures the rates of counters, refills
// those that are too slow to look at themselves, and drops issuers unused for long.
func (m *tags) sweep(ctx context.Context) error {
	var w walk
	return every(ctx, scanEvery, func() {
		counters, timed := m.memory.size()
		n := min(counters+timed, fewTags)/10 + 1
		// Ten thousand tags at once would hold a processor for 10 ms, which callers notice: page by page they do not.
		pause := scanEvery / time.Duration(2*(n/scanStep+1))
		m.visit(ctx, &w, n, pause, func(found tagged) {
			if found.issuer.CloseUnused(m.cfg.IdleAfter) {
				m.forget(found.tag, found.issuer)
			}
		})
	})
}

// every calls work at an interval until ctx ends.
func every(ctx context.Context, interval time.Duration, work func()) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			work()
		}
	}
}

// may reports whether any chain holds an ID that may be issued: a chain with a gate
// may issue IDs of an open segment.
func (m *tags) may(r round) bool { return r.free || r.gated.Count > 0 && m.gates.open(r.gated) }
