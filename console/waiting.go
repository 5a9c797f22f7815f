package console

import (
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// waitingFor returns the instances that must report before the migration goes on. These
// are the instances of each room that lost residues by a move which they have not
// reported, if the next move gives any of these residues to another room. If there is no
// next move, they are waited for unless the room has got all of these residues back. After
// a recover the migration waits for all instances: the layout that the recover put in
// force may have taken residues from any room.
func waitingFor(m record.Migration, instances []instance) []instance {
	var list []instance
	for _, i := range instances {
		if i.Stale {
			list = append(list, i)
			continue
		}
		for k := range m.Moves[:m.Reached] {
			if slices.Contains(m.Moves[k].Loses, i.Room) && blocks(m, k, i) {
				list = append(list, i)
				break
			}
		}
	}
	return list
}

// blocks reports whether an instance must report m.Moves[k] before the migration
// goes on. The move was made, and the instance's room lost residues by it.
func blocks(m record.Migration, k int, i instance) bool {
	before := m.From
	if k > 0 {
		before = m.Moves[k-1].Layout
	}
	return i.Reported() < m.Moves[k].Layout.Version && needed(m, i.Room, before)
}

// standing returns how far an instance of a room that loses residues by m.Moves[k] is
// with that move.
func standing(m record.Migration, k int, i instance) marchv1.ReportState {
	switch {
	case k >= m.Reached:
		return marchv1.ReportState_REPORT_STATE_LATER
	case i.Reported() >= m.Moves[k].Layout.Version:
		return marchv1.ReportState_REPORT_STATE_REPORTED
	case !blocks(m, k, i):
		return marchv1.ReportState_REPORT_STATE_UNNEEDED
	case waived(m, i):
		return marchv1.ReportState_REPORT_STATE_WITHOUT
	}
	return marchv1.ReportState_REPORT_STATE_WAITING
}

// needed reports whether a migration must not go on while room may still issue the
// residues that it had in the layout before.
func needed(m record.Migration, room allocator.Room, before allocator.Layout) bool {
	now := m.Moves[m.Reached-1].Layout
	if m.Reached < len(m.Moves) {
		return takes(now, m.Moves[m.Reached].Layout, room, before)
	}
	// There is no next move. Under another boundary each residue may be of another room.
	return before.Boundary != now.Boundary || len(minus(before.Ranges[room], now.Ranges[room])) > 0
}

// takes reports whether the change from now to next gives another room
// residues that room had in the layout before, and does not have now.
func takes(now, next allocator.Layout, room allocator.Room, before allocator.Layout) bool {
	if before.Boundary != next.Boundary {
		return true // residues cannot be compared
	}
	if now.Boundary != next.Boundary {
		now = allocator.Layout{} // no room has any of these residues
	}
	for _, lost := range minus(before.Ranges[room], now.Ranges[room]) {
		for other, r := range next.Ranges {
			if other == room {
				continue
			}
			for _, gained := range minus(r, now.Ranges[other]) {
				if _, ok := lost.Intersect(gained); ok {
					return true
				}
			}
		}
	}
	return false
}

// minus returns the parts of a that are not in b: none, one or two ranges.
func minus(a, b allocator.Range) []allocator.Range {
	both, ok := a.Intersect(b)
	if !ok {
		if a.Width() == 0 {
			return nil
		}
		return []allocator.Range{a}
	}
	var rest []allocator.Range
	for _, r := range []allocator.Range{{Lower: a.Lower, Upper: both.Lower}, {Lower: both.Upper, Upper: a.Upper}} {
		if r.Width() > 0 {
			rest = append(rest, r)
		}
	}
	return rest
}

// waived reports whether the migration need not wait for an instance any
// longer: an operator decided so, or this console has counted the instance as
// silent since the last move for longer than the migration's hold and the
// instance's own.
//
// By then a strict instance has stopped issuing the residues that its room lost: it
// confirms its layout before it issues, and a layout is not confirmed after a move
// replaced it. Silence alone does not show that: heartbeats may be lost while reads
// are not.
func waived(m record.Migration, i instance) bool {
	if m.Waived(i.Instance) {
		return true
	}
	until := waitsUntil(m, i)
	return !until.IsZero() && time.Now().After(until)
}

// waitsUntil returns until when the migration waits for a silent instance; zero for
// an instance that is not silent.
func waitsUntil(m record.Migration, i instance) time.Time {
	if i.WaitedSince.IsZero() {
		return time.Time{}
	}
	return i.WaitedSince.Add(max(m.Hold.Duration(), i.Hold.Duration()))
}
