package room

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
)

const (
	// adoptWindow is how many chains are renewed at once. The refiller bounds the
	// leases under way; this keeps refills of chains in need from queueing
	// behind all tags of the room.
	adoptWindow = 256
	adoptPoll   = 5 * time.Millisecond
	// Renewals are spread over adoptWithin, so that they take little from the
	// calls that go on meanwhile; but there are adoptLeast a second at least, as a
	// room of few tags need not take as long as one of many, and adoptMost at
	// most, which bounds what a move asks of etcd.
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

// adopt renews every chain that holds what layout does not keep, the busiest
// first, and reports the version. It returns false when ctx ended, a newer layout
// came or the registration was lost first.
func (s *Server) adopt(ctx context.Context, layout allocator.Layout) bool {
	part := layout.Part(s.cfg.Room)
	if part.Range.Width() == 0 {
		s.log.Warn("this room has no range in the layout: it issues nothing until it has", "version", layout.Version)
	}
	start := time.Now()
	renewed, ok := s.renewAll(ctx, part)
	if !ok || !s.times.Adopt(ctx) || !s.report(ctx, layout.Version) {
		return false
	}
	s.served.Store(&part)
	s.log.Info("layout served", "version", layout.Version, "tags_renewed", renewed, "took", time.Since(start).Round(time.Millisecond))
	_ = s.reportHealth()
	return true
}

// renewAll renews every chain that holds a segment which part outdates, and
// returns how many there were: where the room's range has grown, or has not
// changed, there is none. Those that are cold lease nothing: they drop what they
// hold, and are made ready to lease under the new layout in one round trip, when
// they are asked.
func (s *Server) renewAll(ctx context.Context, part allocator.Part) (total int, ok bool) {
	pending := slices.DeleteFunc(s.chains.all(), func(t tagged) bool { return t.chain.RenewIfKept(part) })
	s.chains.sortByPeak(pending)
	total = len(pending)
	asked := 0 // so many of pending, from the front, were asked to renew
	rate := min(max(adoptLeast, float64(total)/adoptWithin.Seconds()), adoptMost)
	start, renewals := time.Now(), 0
	var reading sync.WaitGroup
	defer reading.Wait()
	for {
		busy, kept := 0, pending[:0]
		for _, t := range pending[:asked] {
			if !s.renewed(t, part) {
				kept = append(kept, t)
				if t.chain.Status().Failure == nil {
					busy++ // one that fails does not hold up the others
				}
			}
		}
		pending, asked = append(kept, pending[asked:]...), len(kept)
		due := 1 + int(time.Since(start).Seconds()*rate)
		for ; busy < adoptWindow && renewals < due && asked < len(pending); busy++ {
			if t := pending[asked]; t.chain.Cold(s.cfg.ColdAfter) {
				reading.Go(func() { s.renewCold(ctx, t, part) })
			} else {
				t.chain.Renew(part)
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
		if s.layoutVersion() > part.Version {
			return total, false
		}
	}
}

// renewCold puts a chain in the place of a cold one that knows the tag as it is
// under the present layout, and holds nothing.
func (s *Server) renewCold(ctx context.Context, t tagged, part allocator.Part) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	fresh, err := s.readCold(ctx, t.tag)
	switch {
	case !t.chain.Cold(s.cfg.ColdAfter), err != nil && allocator.KindOf(err) == allocator.Unavailable:
		t.chain.Renew(part) // what it holds serves while etcd is away
	case err != nil: // its next caller gets the reason
		s.chains.remove(t.tag, t.chain)
	default:
		s.chains.replace(t.tag, t.chain, fresh)
	}
}

func (s *Server) readCold(ctx context.Context, tag allocator.Tag) (*tagChain, error) {
	leave, err := s.chains.enter(ctx, tag)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.readChain(ctx, tag)
}

// renewed reports whether a chain issues only IDs that part keeps. One for which
// nothing can ever be leased under it is dropped: callers then get the reason.
func (s *Server) renewed(t tagged, part allocator.Part) bool {
	if t.chain.Renewed(part) {
		return true
	}
	if failure := t.chain.Status().Failure; failure != nil {
		switch allocator.KindOf(failure) {
		case allocator.NoRange, allocator.NotFound, allocator.Exhausted:
			s.lines.dropped.Log(time.Now(), s.log.Warn, "chain dropped", "tag", t.tag, "error", failure)
			s.chains.remove(t.tag, t.chain)
			return true
		}
	}
	return false
}

// report says that this instance serves version. It returns false when ctx
// ended or the registration was lost first.
func (s *Server) report(ctx context.Context, version int64) bool {
	for pause := adoptPoll; ; pause = min(2*pause, time.Second) {
		err := s.instance.Serve(ctx, version)
		if err == nil {
			return true
		}
		if allocator.KindOf(err) == allocator.Refused {
			return false // the heartbeat finds out, too, and stops the server
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

func (s *Server) layoutVersion() int64 {
	record, _ := s.ledger.Layout()
	return record.Layout.Version
}
