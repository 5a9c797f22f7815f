package room

import (
	"context"
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
	// calls that go on meanwhile; but there are adoptRate a second at least: a
	// room of few tags need not take as long as one of many.
	adoptWithin = 5 * time.Second
	adoptRate   = 50
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

// adopt renews every chain, the busiest first, and reports the version. It
// returns false when ctx ended, a newer layout came or the registration was lost
// first.
func (s *Server) adopt(ctx context.Context, layout allocator.Layout) bool {
	if _, ok := layout.Ranges[s.cfg.Room]; !ok {
		s.log.Warn("this room has no range in the layout: it issues nothing until it has", "version", layout.Version)
	}
	start := time.Now()
	total, ok := s.renewAll(ctx, layout.Version)
	if !ok || !s.report(ctx, layout.Version) {
		return false
	}
	s.log.Info("layout served", "version", layout.Version, "tags", total, "took", time.Since(start).Round(time.Millisecond))
	_ = s.reportHealth()
	return true
}

// renewAll renews every chain and returns how many there were. Those that are
// cold lease nothing: they drop what they hold, and are made ready to lease
// under the new layout in one round trip, when they are asked.
func (s *Server) renewAll(ctx context.Context, version int64) (total int, ok bool) {
	pending := s.chains.byPeak()
	total = len(pending)
	asked := 0 // so many of pending, from the front, were asked to renew
	rate, start, renewals := max(adoptRate, float64(total)/adoptWithin.Seconds()), time.Now(), 0
	var reading sync.WaitGroup
	defer reading.Wait()
	for {
		busy, kept := 0, pending[:0]
		for _, t := range pending[:asked] {
			if !s.renewed(t, version) {
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
				reading.Go(func() { s.renewCold(ctx, t, version) })
			} else {
				t.chain.Renew(version)
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
		if s.layoutVersion() > version {
			return total, false
		}
	}
}

// renewCold puts a chain in the place of a cold one that knows the tag as it is
// under the present layout, and holds nothing.
func (s *Server) renewCold(ctx context.Context, t tagged, version int64) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	fresh, err := s.readCold(ctx, t.tag)
	switch {
	case !t.chain.Cold(s.cfg.ColdAfter), err != nil && allocator.KindOf(err) == allocator.Unavailable:
		t.chain.Renew(version) // what it holds serves while etcd is away
	case err != nil: // its next caller gets the reason
		s.chains.remove(t.tag, t.chain)
	default:
		s.chains.replace(t.tag, t.chain, fresh)
	}
}

func (s *Server) readCold(ctx context.Context, tag allocator.Tag) (*counted, error) {
	leave, err := s.chains.enter(ctx, tag)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.readChain(ctx, tag)
}

// renewed reports whether a chain issues no ID of a layout before version. One
// for which nothing can ever be leased under it is dropped: callers then get
// the reason.
func (s *Server) renewed(t tagged, version int64) bool {
	if t.chain.Renewed(version) {
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
