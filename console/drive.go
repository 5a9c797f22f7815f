package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/throttle"
)

const (
	// driveEvery is how often a console looks at the migration under way, and
	// idleEvery at whether there is one. A random time of up to the same length is
	// added, so that consoles rarely try the same move at once.
	driveEvery = 200 * time.Millisecond
	idleEvery  = time.Second
	// failEvery is the shortest time between two errors that a console stores in a
	// migration: consoles may see different ones.
	failEvery = 30 * time.Second
)

// drive makes migrations go on until ctx ends, forgets instances that have been
// silent for long, and checks whether etcd went back in time. Every console does
// all this: a migration's data is in etcd, and if two consoles make the same move,
// one succeeds.
func (s *Server) drive(ctx context.Context) {
	var looked time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	var checkLog, stuckLog, silentLog throttle.Log
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := s.ledger.Check(ctx); err != nil && ctx.Err() == nil {
			checkLog.Log(time.Now(), s.log.Debug, "could not check whether etcd went back in time", "error", err)
		}
		if time.Since(looked) >= silenceEvery {
			looked = time.Now()
			if err := s.forgetSilent(ctx); err != nil && ctx.Err() == nil {
				silentLog.Log(time.Now(), s.log.Debug, "could not look for silent instances", "error", err)
			}
		}
		active, err := s.driveOnce(ctx)
		if errors.Is(err, ledger.ErrNoCluster) { // before the first layout there is no migration
			err = nil
		}
		if err != nil && ctx.Err() == nil {
			stuckLog.Log(time.Now(), s.log.Warn, "migration did not go on; the console tries again", "error", err)
		}
		pause := idleEvery
		if active {
			pause = driveEvery
		}
		timer.Reset(pause + time.Duration(s.cfg.Rand()*float64(pause)))
	}
}

// driveOnce makes the next move of the migration under way, if it can be made now.
// It reports whether a migration is under way.
func (s *Server) driveOnce(ctx context.Context) (active bool, err error) {
	m, active, err := s.admin.ActiveMigration(ctx)
	if err != nil {
		return active, err
	}
	s.metrics.underWay(m)
	if !active {
		return false, nil
	}
	if ended, err := s.endReplaced(ctx, m); ended || err != nil {
		return true, err
	}
	if m.State == record.Paused {
		return true, nil
	}
	moved, err := s.advance(ctx, m)
	if moved {
		return true, nil
	}
	return true, s.noteError(ctx, m, err)
}

// endReplaced ends a migration at the current layout, if that is not the one that its
// last move made: a recover, or an operator by hand, put another in force, so none of its
// moves can be made any more. It reports whether it ended the migration.
func (s *Server) endReplaced(ctx context.Context, m record.Migration) (ended bool, err error) {
	if known, _ := s.ledger.Layout(); known.Layout.Equal(m.Stands()) {
		return false, nil
	}
	now, err := s.ledger.Refresh(ctx)
	if err != nil || now.Layout.Equal(m.Stands()) {
		return false, nil // advance reports any other obstacle
	}
	// A move changes layout and migration together. m was read before the layout. So if
	// m has not changed since, no move made this layout.
	err = s.end(ctx, m, func(m *record.Migration) { endHere(m, replaced(now.Layout)) })
	if err != nil && allocator.KindOf(err) == allocator.Conflict {
		return false, nil // another console made a move, or ended the migration, since m was read
	}
	return err == nil, err
}

// advance makes the next move of a migration, or ends it, if there is nothing to
// wait for. It reports whether it did.
func (s *Server) advance(ctx context.Context, m record.Migration) (moved bool, err error) {
	instances, err := s.instancesFor(ctx, m)
	if err != nil {
		return false, err
	}
	waits := waitingFor(m, instances)
	blocking := 0
	for _, i := range waits {
		if !waived(m, i) {
			blocking++
		}
	}
	s.metrics.waiting.Set(float64(blocking))
	if blocking > 0 {
		return false, nil
	}
	prepare(&m, waits, instances)
	if m.Reached == len(m.Moves) {
		err := s.finish(ctx, m)
		return err == nil, err
	}
	next, err := s.admin.MakeMove(ctx, m, epochOf(instances))
	if err != nil {
		return false, err
	}
	crash.Here(crash.AfterMove)
	move := next.Moves[next.Reached-1]
	s.metrics.underWay(next)
	s.log.Info("migration moved", "migration", m.ID, "move", fmt.Sprintf("%d of %d", next.Reached, len(next.Moves)), "kind", move.Kind, "version", move.Layout.Version)
	return true, nil
}

// epochOf returns the epoch under which instances were read, without a key if there are
// none.
func epochOf(instances []instance) store.KV {
	if len(instances) == 0 {
		return store.KV{}
	}
	return instances[0].EpochKV
}

// noteError stores in the migration the error met, which stops it, or removes the
// stored error if met is nil. It returns nil if another console made the move at the
// same time.
func (s *Server) noteError(ctx context.Context, m record.Migration, met error) error {
	text := ""
	if met != nil {
		text = met.Error()
	}
	if ctx.Err() != nil || text == m.Error || allocator.KindOf(met) == allocator.Unavailable && met != nil {
		return met
	}
	if met != nil {
		now, err := s.admin.Migration(ctx, m.ID)
		if err != nil {
			return met
		}
		if !now.Same(m) {
			return nil
		}
	}
	if text != "" && m.Error != "" && time.Since(s.failed) < failEvery {
		return met
	}
	s.failed = time.Now()
	_, err := s.admin.UpdateMigration(ctx, m, "", "", func(m *record.Migration) error {
		m.Fail(text)
		return nil
	})
	if err != nil && allocator.KindOf(err) != allocator.Conflict && met == nil { // otherwise another console did
		return err
	}
	return met
}

// finish ends a migration whose moves were all made and reported.
func (s *Server) finish(ctx context.Context, m record.Migration) error {
	state := record.Done
	if m.Abort {
		state = record.Aborted
	}
	return s.end(ctx, m, func(m *record.Migration) {
		m.State = state
		m.Fail("")
		m.Note(record.EventEnded, string(state))
	})
}

// end stores the end of a migration, which change sets.
func (s *Server) end(ctx context.Context, m record.Migration, change func(*record.Migration)) error {
	m, err := s.admin.UpdateMigration(ctx, m, "end migration", "migration "+m.ID, func(m *record.Migration) error {
		change(m)
		return nil
	})
	if err == nil {
		s.ended(m)
		s.metrics.underWay(record.Migration{})
	}
	return err
}

// ended logs and counts a migration that this console ended.
func (s *Server) ended(m record.Migration) {
	if m.State.Ended() {
		s.metrics.ended.WithLabelValues(string(m.State)).Inc()
		s.log.Info("migration ended", "migration", m.ID, "state", m.State)
	}
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

// prepare stores in m, before its next change, facts about the moves so far for the
// operator: when instances reported the last one, the instances that it went on without, and
// until when clients may use the IDs that instances leased to them before these reported.
func prepare(m *record.Migration, waits, instances []instance) {
	for _, i := range waits {
		if !m.Waived(i.Instance) {
			m.Note(record.EventContinued, fmt.Sprintf("goes on without %s, silent for at least %v: unless it is strict, it may still issue residues that its room lost",
				i.ID(), time.Since(i.SilentSince).Truncate(time.Second)))
		}
	}
	noteReports(m, instances)
	for k := range m.Moves {
		move := &m.Moves[k]
		late := slices.ContainsFunc(instances, func(i instance) bool {
			return slices.Contains(move.Loses, i.Room) && i.Reported() < move.Layout.Version && !waived(*m, i)
		})
		if k < m.Reached && len(move.Loses) > 0 && move.ClientsUntil.IsZero() && !late {
			move.ClientsUntil = time.Now().Add(move.Hold.Duration()).UTC().Truncate(time.Millisecond)
		}
	}
	noteHolds(m.Moves[m.Reached:], instances)
}

// noteHolds raises the holds of moves that are not made yet to those of the
// instances that are registered now. These may have stopped when the move is made,
// but their clients still have the IDs that they leased.
func noteHolds(moves []record.Move, instances []instance) {
	for k := range moves {
		if longest := longestHold(instances, moves[k].Loses); longest > moves[k].Hold.Duration() {
			moves[k].Hold = record.DurationOf(longest)
		}
	}
}

// longestHold returns the longest hold of the instances of rooms, and at least the
// default, if any room is named: instances that stopped recently are no longer
// registered, but clients may still have segments of theirs.
func longestHold(instances []instance, rooms []allocator.Room) time.Duration {
	if len(rooms) == 0 {
		return 0
	}
	longest := allocator.DefaultSettings().Reserve
	for _, i := range instances {
		if slices.Contains(rooms, i.Room) {
			longest = max(longest, i.Hold.Duration())
		}
	}
	return longest
}

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
