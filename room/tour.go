package room

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/minutes"
)

// tour visits all chains, a few at a time: it looks after each, and adds up their
// values. A room may have a million chains, so no work that a caller waits for, or
// that runs every second, visits all of them.
//
// With at most fewChains the values of the tour are current. With more they are
// those of the last round, 10 s old at most; only the number of issued IDs is
// always current (Server.issued).
type tour struct {
	sync.Mutex
	at    allocator.Tag // the chain that was visited last in the current round; empty at its beginning
	round round         // the current round
	last  round         // the last complete round
	sum   totals        // of all chains as they were last seen, removed ones included
	own   *own          // of the metrics; nil without metrics
}

const (
	tourEvery = 100 * time.Millisecond
	// fewChains chains are visited in a second, more in up to ten.
	fewChains = 10_000
	// timesEvery is after how many turns the tags of time-ordered IDs are looked at, all at
	// once: there is little to look at.
	timesEvery = 10
	// tourStep is how many chains are visited under the lock at once.
	tourStep = 256
)

// round has the values that one round of a tour found.
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
	gave bool
}

func newRound() round {
	return round{others: state{reserve: allocator.LongestReserve.Seconds(), lasts: math.Inf(1)}}
}

// add adds a chain to a round.
func (r *round) add(s seen) {
	r.held += s.status.Held
	if s.status.Held > 0 {
		if s.chain.Gated() {
			for _, seg := range s.chain.Segments() {
				if seg.Version > r.gated.Version {
					r.gated = seg
				}
			}
		} else {
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
	if space := s.chain.getSpace(); space.ends != 0 && s.status.Last >= space.limit && len(r.early) < maxDamaged {
		r.early = append(r.early, s)
	}
	if s.status.Peak > 0 && !exhausted && (r.scarce == "" || s.status.Lasts < r.reserve) {
		r.reserve, r.scarce = s.status.Lasts, s.tag
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
	r.others.step += s.status.Target
	if s.status.Refills > 0 {
		r.others.reserve = min(r.others.reserve, s.status.Lasts.Seconds())
	}
	r.others.used = max(r.others.used, s.chain.used(s.status))
	r.others.lasts = min(r.others.lasts, s.chain.lasts(s.status, now))
	if free == 0 {
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
		return cmp.Or(cmp.Compare(b.status.Peak, a.status.Peak), cmp.Compare(a.tag, b.tag))
	})
	return slices.Delete(list, min(n, len(list)), len(list))
}

// see adds a chain to the round. The lock is held.
func (t *tour) see(c tagged, status allocator.Status) seen {
	s := seen{c, status, c.chain.totals(status)}
	t.sum.add(s.totals.minus(c.chain.seen))
	c.chain.seen = s.totals
	return s
}

// finish stores the last totals of a removed chain.
func (t *tour) finish(c *tagChain) {
	t.Lock()
	defer t.Unlock()
	final := c.totals(c.Status())
	c.final.Store(&final)
	t.sum.add(final.minus(c.seen))
	c.seen = final
}

// totals returns those of all chains.
func (t *tour) totals() totals {
	t.Lock()
	defer t.Unlock()
	return t.sum
}

// restart gives up the current round: the next chain to visit is the first.
func (t *tour) restart() {
	t.Lock()
	defer t.Unlock()
	t.at = ""
}

// lastRound returns the last complete round.
func (t *tour) lastRound() round {
	t.Lock()
	defer t.Unlock()
	return t.last
}

// visit calls care for up to n more chains, to the end of the round. It calls care without
// the lock.
func (s *Server) visit(n int, care func(tagged)) {
	list := make([]tagged, 0, tourStep)
	for over := false; n > 0 && !over; n -= tourStep {
		list, over = s.visitPage(min(n, tourStep), list[:0])
		for _, c := range list {
			if care != nil {
				care(c)
			}
		}
	}
}

// visitPage adds the next n chains to the round and appends them to list. It returns over if
// the round has ended, which is then the last round.
func (s *Server) visitPage(n int, list []tagged) (_ []tagged, over bool) {
	t := &s.chains.tour
	t.Lock()
	defer t.Unlock()
	if t.at == "" {
		t.round = newRound()
	}
	list = s.chains.page(t.at, n, list)
	now := time.Now()
	for _, c := range list {
		found := t.see(c, s.statusOf(c.chain.Chain))
		t.round.add(found)
		if !t.own.has(c.chain) {
			t.round.addOther(found, now, t.own.free())
		}
	}
	if t.at = lastTag(list); len(list) == n {
		return list, false
	}
	t.own.give(&t.round)
	t.round.busiest = busiest(t.round.busiest, minutes.MaxTags)
	t.last, t.at = t.round, ""
	return list, true
}

// look returns the last round. With few chains it makes a new one.
func (s *Server) look() round {
	if s.chains.len() <= fewChains {
		s.chains.tour.restart()
		s.visit(2*fewChains, nil)
	}
	return s.chains.tour.lastRound()
}

// sweep looks after all chains until ctx ends: it measures their rates, refills
// those that are too slow to look at themselves, and drops those unused for long, tags of
// time-ordered IDs too.
func (s *Server) sweep(ctx context.Context) error {
	ticker := time.NewTicker(tourEvery)
	defer ticker.Stop()
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if turn%timesEvery == 0 {
			s.times.DropIdle(s.cfg.IdleAfter)
		}
		n := s.chains.len()
		s.visit(max(min(n, fewChains)/10, n/100)+1, func(c tagged) {
			if c.chain.Observe() >= s.cfg.IdleAfter && c.chain.CloseUnused(s.cfg.IdleAfter) {
				s.chains.remove(c.tag, c.chain)
			}
		})
	}
}

// may reports whether any chain holds an ID that may be issued: a chain with a gate
// may issue IDs of an open segment.
func (s *Server) may(r round) bool { return r.free || r.gated.Count > 0 && s.open(r.gated) }

// total is what all chains of an instance are together.
type total struct {
	issued, held, tags int64
	reserve            time.Duration // the least reserve of the chains in use
	scarce             allocator.Tag // the tag of that chain; empty when none is in use
}

func (s *Server) total() total {
	r := s.look()
	return total{issued: s.issued.Load(), held: r.held, tags: int64(s.chains.len()),
		reserve: r.reserve, scarce: r.scarce}
}
