package room

import (
	"context"
	"math"

	"github.com/march-id/march/allocator/ledger"
)

// takeKept takes what the process before kept: see Instance.TakeKept. Chains are made of it as callers ask for tags.
func (s *Server) takeKept(ctx context.Context) {
	taking, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ledger.Patience())
	defer cancel()
	if ids := s.instance.TakeKept(taking); ids > 0 {
		s.log.Info("took what the process before had kept", "ids", ids)
	}
}

// seed gives a counter that is about to be put into memory what the instance holds of its tag. The lock is held, so
// that a layout either came before, and what it does not keep is a gap, or finds the counter (adopt).
func (m *tags) seed(tag issuer) {
	if c, is := tag.(*counter); is && c.tenure == nil {
		c.Seed(m.instance.Kept(c.source.Source))
	}
}

// keepIDs closes every counter and keeps what it held for the next process of this name. It returns how many IDs are
// kept, and how many were dropped in all. No lease is under way any more.
func (m *tags) keepIDs(ctx context.Context) (kept, dropped int64) {
	list, _ := m.counters("", math.MaxInt)
	var rests []ledger.Rest
	var held int64
	for _, c := range list {
		if c.tenure != nil {
			continue // its IDs are of a tenure, and the rest is in its key
		}
		rest := ledger.Rest{Source: c.source.Source, Segments: c.CloseKept()}
		for _, seg := range rest.Segments {
			held += seg.Count
		}
		rests = append(rests, rest)
		m.remove(c.Tag(), c)
	}
	m.windows.Drop()
	kept, err := m.instance.Keep(ctx, rests)
	if err != nil {
		m.log.Warn("what this instance held is a gap: its journal cannot be written", "error", err)
	}
	return kept, m.scan.totals().dropped + max(held-kept, 0)
}
