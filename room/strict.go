package room

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// An instance confirms its layout with etcd every confirmEvery, or four times
// in a short hold, and confirmPause lies between two confirmations at least.
const (
	confirmEvery = 5 * time.Second
	confirmPause = 50 * time.Millisecond
)

// strict reports whether IDs of a tag are issued only under a layout that was
// confirmed less than Hold ago.
func (s *Server) strict(settings ledger.TagSettings) bool {
	return s.cfg.StrictRetract || settings.StrictRetract
}

// gateOf returns the gate of a tag's chain: nil where it is not strict.
func (s *Server) gateOf(settings ledger.TagSettings) allocator.Gate {
	if !s.strict(settings) {
		return nil
	}
	return s.gate
}

// gate is an allocator.Gate that lets IDs of a layout through until Hold after
// the layout was last confirmed. A layout that another replaced is confirmed no
// more, so Hold after the change no ID of it is issued, whatever this process
// has heard, and however long it was stopped.
func (s *Server) gate(version int64) (newest int64, err error) {
	left, newest := s.left(version)
	if left > 0 || mutant("gate-open") {
		return newest, nil
	}
	select {
	case s.unconfirmed <- struct{}{}:
	default: // somebody said so
	}
	err = allocator.Errorf(allocator.Unavailable, "layout version %d was not confirmed with etcd for longer than hold (%v), and strict_retract is set", version, s.cfg.Hold)
	if contact := s.ledger.Contact(); !contact.Away.IsZero() {
		err = allocator.Errorf(allocator.Unavailable, "%w: etcd has not answered since %s: %v", err, contact.Away.UTC().Format(time.RFC3339), contact.Cause)
	}
	return newest, err
}

// left returns for how long IDs of a layout may still be issued by a strict
// tag, not above 0 when no longer, and the newest layout known.
func (s *Server) left(version int64) (left time.Duration, newest int64) {
	at, newest := s.ledger.Confirmed(version)
	if at.IsZero() {
		return 0, newest
	}
	return s.cfg.Hold - allocator.Elapsed(at, time.Now()), newest
}

// open reports whether IDs of a layout may still be issued by a strict tag.
func (s *Server) open(version int64) bool {
	left, _ := s.left(version)
	return left > 0
}

// statusOf returns a chain's status. What a strict tag holds lasts no longer than
// it may be issued without etcd.
func (s *Server) statusOf(chain *allocator.Chain) allocator.Status {
	status := chain.Status()
	if chain.Gated() && status.Held > 0 {
		left, _ := s.left(status.Version)
		status.Lasts = min(status.Lasts, max(left, 0))
	}
	return status
}

// ttl returns for how long a client may use seg. A client that is told so at
// the end of a strict tag's hold has nothing of it, and asks again.
func (s *Server) ttl(chain *allocator.Chain, seg allocator.Segment) time.Duration {
	if !chain.Gated() || mutant("whole-hold-for-clients") {
		return s.cfg.Hold
	}
	left, _ := s.left(seg.Version)
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
