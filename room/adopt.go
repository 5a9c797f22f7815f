package room

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
)

const (
	// adoptWindow is how many chains are renewed at once. The refiller bounds the
	// leases under way; this window keeps urgent refills from queueing behind the
	// renewals of all tags.
	adoptWindow = 256
	// adoptPoll is the pause between two looks at the chains that were asked to renew: a
	// chain does not tell when it has done so.
	adoptPoll = 5 * time.Millisecond
	// Renewals are spread over adoptWithin, so that they hardly slow down calls.
	// There are at least adoptLeast a second, because a room of few tags need not
	// take as long as one of many, and at most adoptMost, which bounds the load of
	// a move on etcd.
	adoptWithin = 5 * time.Second
	adoptLeast  = 50
	adoptMost   = 2000
)

// adoptLayouts moves this instance to every layout after served, the one it
// registered with, until ctx ends.
func (s *Server) adoptLayouts(ctx context.Context, served int64) error {
	for {
		record, changed := s.ledger.Layout()
		if version := record.Layout.Version; version > served {
			if s.adopt(ctx, record.Layout) {
				served = version
			}
			if s.layoutVersion() > version {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// adopt renews every chain that holds a segment which layout does not keep, the
// busiest first, and reports the version. It returns false if before that ctx
// ended, a newer layout came or the registration was lost.
func (s *Server) adopt(ctx context.Context, layout allocator.Layout) bool {
	part := layout.Part(s.cfg.Room)
	if part.Range.Width() == 0 {
		s.log.Warn("this room has no range in the layout: it issues nothing until `march migrate` gives it one",
			"version", layout.Version)
	}
	start := time.Now()
	// The report comes last. A migration waits for it, and its next move may give to another
	// room what this instance issued until now.
	renewed, ok := s.renewAll(ctx, part)
	if !ok || !s.windows.ExchangeMoved(ctx) || !s.reportServed(ctx, layout.Version) {
		return false
	}
	s.served.Store(&part)
	s.log.Info("layout served", "version", layout.Version, "tags_renewed", renewed, "took",
		time.Since(start).Round(time.Millisecond))
	_ = s.health.reportHealth()
	return true
}

// renewAll renews every chain that holds a segment which part does not keep, and
// returns how many there were: none if the room's range has grown or has not
// changed. Cold chains lease nothing: they drop their segments, and are prepared so
// that the next request needs one round trip only.
func (s *Server) renewAll(ctx context.Context, part allocator.Part) (total int, ok bool) {
	s.instance.RenewKept(part)
	// Chains that part leaves all their segments are done at once, without a lease.
	all, _ := s.tags.counters("", math.MaxInt)
	pending := slices.DeleteFunc(all, func(c *counter) bool { return c.RenewIfKept(part) })
	s.tags.sortByPeak(pending)
	total = len(pending)
	asked := 0 // the number of pending chains, from the front, that were asked to renew
	rate := min(max(adoptLeast, float64(total)/adoptWithin.Seconds()), adoptMost)
	start, renewals := time.Now(), 0
	var reading sync.WaitGroup
	defer reading.Wait()
	for {
		busy, kept := 0, pending[:0]
		for _, c := range pending[:asked] {
			if !s.renewed(c, part) {
				kept = append(kept, c)
				if c.Status().Failure == nil {
					busy++ // a chain that fails does not delay the others
				}
			}
		}
		pending, asked = append(kept, pending[asked:]...), len(kept)
		due := 1 + int(time.Since(start).Seconds()*rate)
		for ; busy < adoptWindow && renewals < due && asked < len(pending); busy++ {
			if c := pending[asked]; c.tenure == nil && c.Cold(s.cfg.ColdAfter) {
				reading.Go(func() { s.renewCold(ctx, c, part) })
			} else {
				c.Renew(part)
			}
			renewals++
			asked++
		}
		if len(pending) == 0 {
			return total, true
		}
		select {
		case <-ctx.Done():
			return total, false
		case <-time.After(adoptPoll):
		}
		if s.layoutVersion() > part.Version { // adoptLayouts begins again, with the newest layout
			return total, false
		}
	}
}

// renewCold puts a counter that holds nothing, and was read under the current layout, in the place of a
// cold one.
func (s *Server) renewCold(ctx context.Context, c *counter, part allocator.Part) {
	l := s.tags.reread(ctx, c.Tag(), c)
	<-l.done
	switch {
	case l.err != nil && allocator.KindOf(l.err) == allocator.Unavailable:
		c.Renew(part) // its segments serve callers while etcd is away
	case l.err != nil: // its next caller gets the reason
		s.tags.remove(c.Tag(), c)
	}
}

// renewed reports whether a chain issues only IDs that part keeps. It drops a chain
// for which nothing can ever be leased under part: callers then get the reason.
func (s *Server) renewed(c *counter, part allocator.Part) bool {
	if c.Renewed(part) {
		return true
	}
	if failure := c.Status().Failure; failure != nil {
		switch allocator.KindOf(failure) {
		case allocator.NoRange, allocator.NotFound, allocator.Exhausted:
			s.lines.dropped.Log(time.Now(), s.log.Warn, "chain dropped", "tag", c.Tag(), "error", failure)
			s.tags.remove(c.Tag(), c)
			return true
		}
	}
	return false
}

// reportServed stores that this instance serves version. It returns false if before that
// ctx ended or the registration was lost.
func (s *Server) reportServed(ctx context.Context, version int64) bool {
	for pause := adoptPoll; ; pause = min(2*pause, time.Second) {
		err := s.instance.Serve(ctx, version)
		if err == nil {
			return true
		}
		if allocator.KindOf(err) == allocator.Refused {
			return false // the heartbeat notices this, too, and stops the server
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

func (p *process) layoutVersion() int64 {
	record, _ := p.ledger.Layout()
	return record.Layout.Version
}
