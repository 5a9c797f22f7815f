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

// gates let IDs of strict tags through while the layout is confirmed.
type gates struct {
	*process
	stale chan struct{} // holds one token when a gate found its layout not confirmed
}

// of returns the gate of a tag's chain, or nil if the tag is not strict.
func (g *gates) of(settings record.TagSettings) allocator.Gate {
	if !g.strict(settings) {
		return nil
	}
	return g.gate
}

// gate is an allocator.Gate. It lets IDs of a segment through until Hold after the
// last confirmation of a layout that keeps the segment: the layout under which it
// was leased, or a newer one. Once a layout that takes its residues away is in
// force, no layout that keeps the segment can be confirmed. So Hold after that
// change no ID of the segment is issued, whatever this process knows, and however
// long it was paused.
func (g *gates) gate(seg allocator.Segment) (newest allocator.Part, err error) {
	remaining, newest := g.remaining(seg)
	if remaining > 0 {
		return newest, nil
	}
	allocator.Wake(g.stale)
	err = allocator.Errorf(allocator.Unavailable,
		"no ID is issued, because strict_retract is set: layout version %d, or a newer one with these residues, "+
			"has not been confirmed with etcd for longer than hold (%v)",
		seg.Version, g.cfg.Hold)
	if away := g.away(); away != nil {
		err = allocator.Errorf(allocator.Unavailable, "%w: %w", err, away)
	}
	return newest, err
}

// remaining returns how long a strict tag may still issue IDs of a segment, 0 or less if
// no longer, and the room's part of the newest layout.
func (g *gates) remaining(seg allocator.Segment) (remaining time.Duration, newest allocator.Part) {
	at, newest := g.ledger.Confirmed(g.cfg.Room, seg)
	if at.IsZero() {
		return 0, newest
	}
	return g.cfg.Hold - allocator.Elapsed(at, time.Now()), newest
}

// open reports whether a strict tag may still issue IDs of a segment.
func (g *gates) open(seg allocator.Segment) bool {
	remaining, _ := g.remaining(seg)
	return remaining > 0
}

// statusOf returns a chain's status. The IDs of a strict or ordered tag last no longer than they may
// be issued without etcd.
func (g *gates) statusOf(chain *counter) allocator.Status {
	status := chain.Status()
	if chain.strict {
		for _, seg := range chain.Segments() {
			remaining, _ := g.remaining(seg)
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
func (g *gates) ttl(chain *allocator.Chain, seg allocator.Segment) time.Duration {
	if !chain.Gated() {
		return g.cfg.Hold
	}
	remaining, _ := g.remaining(seg)
	return max(remaining, time.Nanosecond) // 0 would be no bound
}

// refresh makes the ledger read the layout until ctx ends. It does so often enough
// that no strict tag stops while etcd answers, even if a watch has gone silent.
func (g *gates) refresh(ctx context.Context) error {
	ticker := time.NewTicker(min(g.cfg.Hold/4, refreshEvery))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-g.stale:
		}
		select { // one read serves both triggers
		case <-ticker.C:
		case <-g.stale:
		default:
		}
		_, _ = g.ledger.Refresh(ctx) // the ledger reports an etcd that is away, and a refused layout
		select {
		case <-ctx.Done():
		case <-time.After(refreshPause):
		}
	}
}
