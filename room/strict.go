package room

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// An instance confirms its layout with etcd every confirmEvery, or four times
// in a short hold, and confirmPause lies between two confirmations at least.
const (
	confirmEvery = 5 * time.Second
	confirmPause = 50 * time.Millisecond
)

// strict reports whether IDs of a tag are issued only under a layout that was
// confirmed less than Hold ago.
func (s *Server) strict(settings record.TagSettings) bool {
	return s.cfg.StrictRetract || settings.StrictRetract
}

// gateOf returns the gate of a tag's chain: nil where it is not strict.
func (s *Server) gateOf(settings record.TagSettings) allocator.Gate {
	if !s.strict(settings) {
		return nil
	}
	return s.gate
}

// gate is an allocator.Gate that lets IDs of a segment through until Hold after
// a layout was last confirmed that keeps the segment: the one that it was leased
// under, or a newer one. Once a layout that takes its residues away is in force,
// none such is confirmed any more. So Hold after that change no ID of the segment
// is issued, whatever this process has heard, and however long it was stopped.
func (s *Server) gate(seg allocator.Segment) (newest allocator.Part, err error) {
	left, newest := s.left(seg)
	if left > 0 {
		return newest, nil
	}
	select {
	case s.unconfirmed <- struct{}{}:
	default: // another call has said so already
	}
	err = allocator.Errorf(allocator.Unavailable,
		"layout version %d, or a newer one with these residues, was not confirmed with etcd for longer than hold (%v), and strict_retract is set",
		seg.Version, s.cfg.Hold)
	if away := s.away(); away != nil {
		err = allocator.Errorf(allocator.Unavailable, "%w: %w", err, away)
	}
	return newest, err
}

// left returns for how long IDs of a segment may still be issued by a strict
// tag, not above 0 when no longer, and what the room has by the newest layout.
func (s *Server) left(seg allocator.Segment) (left time.Duration, newest allocator.Part) {
	at, newest := s.ledger.Confirmed(s.cfg.Room, seg)
	if at.IsZero() {
		return 0, newest
	}
	return s.cfg.Hold - allocator.Elapsed(at, time.Now()), newest
}

// open reports whether IDs of a segment may still be issued by a strict tag.
func (s *Server) open(seg allocator.Segment) bool {
	left, _ := s.left(seg)
	return left > 0
}

// statusOf returns a chain's status. The IDs of a strict tag last no longer than they may
// be issued without etcd.
func (s *Server) statusOf(chain *allocator.Chain) allocator.Status {
	status := chain.Status()
	if chain.Gated() {
		for _, seg := range chain.Segments() {
			left, _ := s.left(seg)
			status.Lasts = min(status.Lasts, max(left, 0))
		}
	}
	return status
}

// ttl returns for how long a client may use seg. A client that is told so at
// the end of a strict tag's hold has nothing of it, and asks again.
func (s *Server) ttl(chain *allocator.Chain, seg allocator.Segment) time.Duration {
	if !chain.Gated() {
		return s.cfg.Hold
	}
	left, _ := s.left(seg)
	return max(left, time.Nanosecond) // 0 would be no bound
}

// confirm has the ledger read the layout often enough that no strict tag stops
// while etcd answers, and that a watch which went silent is no harm, until ctx
// ends.
func (s *Server) confirm(ctx context.Context) error {
	ticker := time.NewTicker(min(s.cfg.Hold/4, confirmEvery))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-s.unconfirmed:
		}
		select { // one read serves both reasons
		case <-ticker.C:
		case <-s.unconfirmed:
		default:
		}
		_, _ = s.ledger.Refresh(ctx) // the ledger says when etcd is away, and when a layout is refused
		select {
		case <-ctx.Done():
		case <-time.After(confirmPause):
		}
	}
}
