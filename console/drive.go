package console

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/rarely"
)

const (
	// driveEvery is how often a driver looks at the migration under way, and
	// idleEvery at whether there is one, and whether there still is a driver.
	driveEvery = 200 * time.Millisecond
	idleEvery  = time.Second
	// silenceEvery is how often it looks for silent instances, and for ones that
	// have been silent for so long that they are forgotten.
	silenceEvery = 10 * time.Second
	// claimEvery is how often a driver renews its claim.
	claimEvery = ledger.DriverTTL / 3
)

// drive makes migrations go on while this console is the one that does, until
// ctx ends. Everything that a migration needs is in etcd, so it does not matter
// which console drives, and no harm is done should two.
func (s *Server) drive(ctx context.Context) {
	var claim ledger.Driver
	var claimed, looked time.Time
	defer func() {
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.ledger.Release(leaving, &claim, s.name) // else it expires
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	driving := false
	defer s.metrics.drives(false)
	var claimLog, checkLog, stuckLog, silentLog rarely.Line
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if !driving || time.Since(claimed) >= claimEvery {
			claimed = time.Now()
			was := driving
			var err error
			if driving, err = s.ledger.Drive(ctx, &claim, s.name); err != nil {
				claimLog.Log(time.Now(), s.log.Debug, "claim to drive migrations", "error", err)
			} else if driving && !was {
				s.log.Info("this console drives migrations")
			}
			s.metrics.drives(driving)
		}
		// Each console, whether it drives or not: it may be all that lived through a
		// restore.
		if err := s.ledger.Check(ctx); err != nil && ctx.Err() == nil {
			checkLog.Log(time.Now(), s.log.Debug, "look whether etcd went back in time", "error", err)
		}
		pause := idleEvery
		if driving && time.Since(looked) >= silenceEvery {
			looked = time.Now()
			if err := s.forgetSilent(ctx); err != nil && ctx.Err() == nil {
				silentLog.Log(time.Now(), s.log.Debug, "looking for silent instances", "error", err)
			}
		}
		if driving {
			active, err := s.step(ctx)
			if err != nil && ctx.Err() == nil {
				stuckLog.Log(time.Now(), s.log.Warn, "migration did not go on, it is tried again", "error", err)
			}
			if active {
				pause = driveEvery
			}
		}
		timer.Reset(pause)
	}
}

// forgetSilent notes which instances are silent, and forgets those that have
// been for longer than ForgetAfter.
func (s *Server) forgetSilent(ctx context.Context) error {
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return err
	}
	if err := s.ledger.NoteSilence(ctx, instances); err != nil {
		return err
	}
	for _, i := range instances {
		if !i.SilentSince.IsZero() && time.Since(i.SilentSince) > s.cfg.ForgetAfter {
			if err := s.ledger.ForgetSilent(ctx, i, "console "+s.name+": silent since "+i.SilentSince.Format(time.RFC3339)); err != nil {
				return err
			}
		}
	}
	return nil
}

// step takes the migration under way as far as it goes now: at most one move.
// It reports whether there is one.
func (s *Server) step(ctx context.Context) (active bool, err error) {
	m, active, err := s.ledger.ActiveMigration(ctx)
	if err == nil {
		s.metrics.underWay(m)
	}
	if err != nil || !active || m.State == ledger.Paused {
		return active, err
	}
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return true, err
	}
	if err := s.ledger.NoteSilence(ctx, instances); err != nil {
		return true, err
	}
	waits := waitingFor(m, instances)
	blocking := 0
	for _, i := range waits {
		if !waived(m, i) {
			blocking++
		}
	}
	s.metrics.waiting.Set(float64(blocking))
	if blocking > 0 && !mutant("moves-unreported") {
		return true, nil
	}
	prepare(&m, waits, instances)
	switch {
	case m.Reached < len(m.Moves):
		moved, err := s.ledger.MakeMove(ctx, m)
		if err != nil {
			return true, err
		}
		crash.Here(crash.AfterMove)
		move := moved.Moves[moved.Reached-1]
		s.metrics.underWay(moved)
		s.log.Info("migration moved", "migration", m.ID, "move", fmt.Sprintf("%d of %d", moved.Reached, len(moved.Moves)), "kind", move.Kind, "version", move.Layout.Version)
		return true, nil
	default:
		return true, s.finish(ctx, m)
	}
}

// finish ends a migration of which every move was made and reported.
func (s *Server) finish(ctx context.Context, m ledger.Migration) error {
	state := ledger.Done
	if m.Abort {
		state = ledger.Aborted
	}
	m, err := s.ledger.UpdateMigration(ctx, m, "end migration", "migration "+m.ID, func(m *ledger.Migration) error {
		m.State = state
		m.Note(string(state))
		return nil
	})
	if err == nil {
		s.ended(m)
		s.metrics.underWay(ledger.Migration{})
	}
	return err
}

// ended takes note of a migration that this console ended.
func (s *Server) ended(m ledger.Migration) {
	if m.State.Ended() {
		s.metrics.ended.WithLabelValues(string(m.State)).Inc()
		s.log.Info("migration ended", "migration", m.ID, "state", m.State)
	}
}

// waived reports whether the migration need not wait for an instance any
// longer: an operator said so, or it has been silent since the last move for
// longer than the migration's hold and its own.
//
// A strict instance has stopped by then to issue what its room lost: it
// confirms its layout before it issues, and no layout is confirmed after a move
// replaced it. That it is silent alone would not say so: heartbeats may be lost
// while reads are not.
func waived(m ledger.Migration, i ledger.InstanceRecord) bool {
	if slices.Contains(m.Without, i.ID()) {
		return true
	}
	until := waitsUntil(m, i)
	return !until.IsZero() && time.Now().After(until)
}

// waitsUntil returns until when the migration waits for an instance that stays
// silent; zero for one that is not.
func waitsUntil(m ledger.Migration, i ledger.InstanceRecord) time.Time {
	if i.SilentSince.IsZero() {
		return time.Time{}
	}
	since := i.SilentSince
	if m.Reached > 0 && m.Moves[m.Reached-1].Made.After(since) {
		since = m.Moves[m.Reached-1].Made
	}
	return since.Add(max(m.Hold, i.Hold))
}

// prepare notes in m, ahead of its next change, what an operator will want to
// know of the moves so far: without whom it went on, and until when clients may
// use what instances leased to them before these reported.
func prepare(m *ledger.Migration, waits, instances []ledger.InstanceRecord) {
	for _, i := range waits {
		if !slices.Contains(m.Without, i.ID()) {
			m.Note(fmt.Sprintf("goes on without %s, silent since %s: it may still issue what its room lost, unless it is strict", i.ID(), i.SilentSince.Format(time.RFC3339)))
		}
	}
	for k := range m.Moves {
		move := &m.Moves[k]
		late := slices.ContainsFunc(instances, func(i ledger.InstanceRecord) bool {
			return slices.Contains(move.Loses, i.Room) && i.Version < move.Layout.Version && !waived(*m, i)
		})
		if k < m.Reached && len(move.Loses) > 0 && move.ClientsUntil.IsZero() && !late {
			move.ClientsUntil = time.Now().Add(move.Hold).UTC().Truncate(time.Millisecond)
		}
	}
	noteHolds(m.Moves[m.Reached:], instances)
}

// noteHolds raises the holds of moves that are not made yet to those of the
// instances that are registered now. They may have stopped when the move is made,
// and their clients have what they leased all the same.
func noteHolds(moves []ledger.Move, instances []ledger.InstanceRecord) {
	for k := range moves {
		moves[k].Hold = max(moves[k].Hold, longestHold(instances, moves[k].Loses))
	}
}

// longestHold returns the longest hold of the instances of rooms, and at least
// the default, if any room is named: instances that stopped lately are not
// registered any longer, but clients may have segments of theirs.
func longestHold(instances []ledger.InstanceRecord, rooms []allocator.Room) time.Duration {
	if len(rooms) == 0 {
		return 0
	}
	longest := allocator.DefaultSettings().Reserve
	for _, i := range instances {
		if slices.Contains(rooms, i.Room) {
			longest = max(longest, i.Hold)
		}
	}
	return longest
}

// waitingFor returns the instances that must report before the migration goes
// on: those of each room that lost residues by a move that they have not
// reported, where the next move gives any of these to another room, or, where
// there is no next move, the room has not got all of them back.
func waitingFor(m ledger.Migration, instances []ledger.InstanceRecord) []ledger.InstanceRecord {
	var list []ledger.InstanceRecord
	for _, i := range instances {
		for k := range m.Moves[:m.Reached] {
			if slices.Contains(m.Moves[k].Loses, i.Room) && blocks(m, k, i) {
				list = append(list, i)
				break
			}
		}
	}
	return list
}

// blocks reports whether an instance of a room that lost residues by m.Moves[k],
// which was made, must report it before the migration goes on.
func blocks(m ledger.Migration, k int, i ledger.InstanceRecord) bool {
	before := m.From
	if k > 0 {
		before = m.Moves[k-1].Layout
	}
	return i.Version < m.Moves[k].Layout.Version && needed(m, i.Room, before)
}

// standing returns where an instance of a room that loses residues by m.Moves[k]
// stands with it, as a marchv1.Report has it.
func standing(m ledger.Migration, k int, i ledger.InstanceRecord) string {
	switch {
	case k >= m.Reached:
		return "later"
	case i.Version >= m.Moves[k].Layout.Version:
		return "reported"
	case !blocks(m, k, i):
		return "unneeded"
	case waived(m, i):
		return "without"
	}
	return "waiting"
}

// needed reports whether a migration that made a move must not go on while room
// may still issue what it had in the layout before.
func needed(m ledger.Migration, room allocator.Room, before allocator.Layout) bool {
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
		now = allocator.Layout{} // nobody has any of these residues
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

// minus returns what of a is not in b: none, one or two ranges.
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
