package room

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// An instance confirms its layout with etcd every refreshEvery, or four times in a
// short hold, and waits at least refreshPause between two confirmations.
const (
	refreshEvery = 5 * time.Second
	refreshPause = 50 * time.Millisecond
)

// strict reports whether IDs of a tag are issued only under a layout that was
// confirmed less than Hold ago.
func (p *process) strict(settings record.TagSettings) bool {
	return p.cfg.StrictRetract || settings.StrictRetract
}

// gateOf returns the gate of a tag's chain, or nil if the tag is not strict.
func (m *tags) gateOf(settings record.TagSettings) allocator.Gate {
	if !m.strict(settings) {
		return nil
	}
	return m.gate
}

// gate is an allocator.Gate. It lets IDs of a segment through until Hold after the
// last confirmation of a layout that keeps the segment: the layout under which it
// was leased, or a newer one. Once a layout that takes its residues away is in
// force, no layout that keeps the segment can be confirmed. So Hold after that
// change no ID of the segment is issued, whatever this process knows, and however
// long it was paused.
func (m *tags) gate(seg allocator.Segment) (newest allocator.Part, err error) {
	remaining, newest := m.remaining(seg)
	if remaining > 0 {
		return newest, nil
	}
	select {
	case m.stale <- struct{}{}:
	default: // a confirmation is already requested
	}
	err = allocator.Errorf(allocator.Unavailable,
		"no ID is issued, because strict_retract is set: layout version %d, or a newer one with these residues, "+
			"has not been confirmed with etcd for longer than hold (%v)",
		seg.Version, m.cfg.Hold)
	if away := m.away(); away != nil {
		err = allocator.Errorf(allocator.Unavailable, "%w: %w", err, away)
	}
	return newest, err
}

// remaining returns how long a strict tag may still issue IDs of a segment, 0 or less if
// no longer, and the room's part of the newest layout.
func (m *tags) remaining(seg allocator.Segment) (remaining time.Duration, newest allocator.Part) {
	at, newest := m.ledger.Confirmed(m.cfg.Room, seg)
	if at.IsZero() {
		return 0, newest
	}
	return m.cfg.Hold - allocator.Elapsed(at, time.Now()), newest
}

// open reports whether a strict tag may still issue IDs of a segment.
func (m *tags) open(seg allocator.Segment) bool {
	remaining, _ := m.remaining(seg)
	return remaining > 0
}

// statusOf returns a chain's status. The IDs of a strict or ordered tag last no longer than they may
// be issued without etcd.
func (m *tags) statusOf(chain *counter) allocator.Status {
	status := chain.Status()
	if chain.strict {
		for _, seg := range chain.Segments() {
			remaining, _ := m.remaining(seg)
			status.Lasts = min(status.Lasts, max(remaining, 0))
		}
	}
	if chain.tenure != nil {
		status.Lasts = min(status.Lasts, max(chain.tenure.Lasts(time.Now()), 0))
	}
	return status
}

// ttl returns how long a client may use seg. Near the end of a strict tag's hold
// that is hardly any time, and the client asks again.
func (m *tags) ttl(chain *allocator.Chain, seg allocator.Segment) time.Duration {
	if !chain.Gated() {
		return m.cfg.Hold
	}
	remaining, _ := m.remaining(seg)
	return max(remaining, time.Nanosecond) // 0 would be no bound
}

// refreshLayout makes the ledger read the layout until ctx ends. It does so often enough
// that no strict tag stops while etcd answers, even if a watch has gone silent.
func (m *tags) refreshLayout(ctx context.Context) error {
	ticker := time.NewTicker(min(m.cfg.Hold/4, refreshEvery))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-m.stale:
		}
		select { // one read serves both triggers
		case <-ticker.C:
		case <-m.stale:
		default:
		}
		_, _ = m.ledger.Refresh(ctx) // the ledger reports an etcd that is away, and a refused layout
		select {
		case <-ctx.Done():
		case <-time.After(refreshPause):
		}
	}
}
