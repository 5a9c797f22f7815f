package room

import "github.com/march-id/march/allocator"

// own is the set of chains with series of their own. It is guarded by the tour; nil
// without metrics.
type own struct {
	limit   int
	chains  map[*tagChain]series
	past    totals // the last totals of own series whose chains are gone
	scrapes uint32
}

// series is a chain's own series.
type series struct {
	tag    allocator.Tag
	before totals // the totals that were counted in the shared series before
}

// has reports whether a chain has a series of its own, and notes when it was
// first asked.
func (o *own) has(c *tagChain) bool {
	if o == nil {
		return false
	}
	if c.shown == 0 {
		c.shown = o.scrapes + 1
	}
	_, has := o.chains[c]
	return has
}

// free returns how many more chains may have series of their own.
func (o *own) free() int {
	if o == nil {
		return 0
	}
	return max(o.limit-len(o.chains), 0)
}

// give gives free series to the busiest chains of a round.
func (o *own) give(r *round) {
	if o == nil || len(r.rising) == 0 {
		return
	}
	r.cut(o.free())
	for _, s := range r.rising {
		if s.chain.final.Load() != nil { // the chain was just removed
			continue
		}
		one := series{tag: s.tag}
		if s.chain.shown <= o.scrapes { // a scrape has shown the chain in the shared series
			one.before = s.chain.seen
		}
		o.chains[s.chain] = one
		r.gave = true
	}
	r.rising = nil
}

// scrape returns the chains with series of their own and their totals, and the
// state and the totals of the shared series. The shared totals are those of all
// chains less all that own series have or had. So each ID is counted in one series,
// and no counter falls when a tag gets or loses its own.
func (s *Server) scrape() (list []seen, others state, rest totals) {
	t := &s.chains.tour
	last := s.look()
	if last.gave {
		last = s.look() // without the chains that have just got series of their own
	}
	others = last.others
	t.Lock()
	defer t.Unlock()
	for c, one := range t.own.chains {
		final := c.final.Load()
		if final != nil {
			t.own.past.add(final.minus(one.before))
			delete(t.own.chains, c)
			continue
		}
		found := t.see(tagged{one.tag, c}, s.statusOf(c.Chain))
		found.totals = found.totals.minus(one.before)
		list = append(list, found)
	}
	rest = t.sum.minus(t.own.past)
	for _, found := range list {
		rest = rest.minus(found.totals)
	}
	t.own.scrapes++
	return list, others, rest
}
