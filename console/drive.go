package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

const (
	// driveEvery is how often a driver looks at the migration under way, and
	// idleEvery at whether there is one, and whether there still is a driver.
	driveEvery = 200 * time.Millisecond
	idleEvery  = time.Second
	// claimEvery is how often a driver renews its claim.
	claimEvery = ledger.DriverTTL / 3
)

// drive makes migrations go on while this console is the one that does, until
// ctx ends. Everything that a migration needs is in etcd, so it does not matter
// which console drives, and no harm is done should two.
func (s *Server) drive(ctx context.Context) {
	var claim ledger.Driver
	var claimed time.Time
	defer func() {
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.ledger.Release(leaving, &claim, s.name) // else it expires
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	driving := false
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
				s.log.Debug("claim to drive migrations", "error", err)
			} else if driving && !was {
				s.log.Info("this console drives migrations")
			}
		}
		pause := idleEvery
		if driving {
			active, err := s.step(ctx)
			if err != nil && ctx.Err() == nil {
				s.log.Warn("migration did not go on, it is tried again", "error", err)
			}
			if active {
				pause = driveEvery
			}
		}
		timer.Reset(pause)
	}
}

// step takes the migration under way as far as it goes now: at most one move.
// It reports whether there is one.
func (s *Server) step(ctx context.Context) (active bool, err error) {
	m, active, err := s.ledger.ActiveMigration(ctx)
	if err != nil || !active || m.State == ledger.Paused {
		return active, err
	}
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return true, err
	}
	if m, err = s.noteSilent(ctx, m, instances); err != nil {
		return true, err
	}
	blocking := slices.DeleteFunc(waitingFor(m, instances), func(w waiting) bool { return w.waivedBy(m) })
	switch {
	case len(blocking) > 0:
		return true, nil
	case m.Reached < len(m.Moves):
		moved, err := s.ledger.MakeMove(ctx, m)
		if err != nil {
			return true, err
		}
		move := moved.Moves[moved.Reached-1]
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
	_, err := s.ledger.UpdateMigration(ctx, m, "end migration", "migration "+m.ID, func(m *ledger.Migration) error {
		m.State = state
		m.Note(string(state))
		return nil
	})
	if err == nil {
		s.log.Info("migration ended", "migration", m.ID, "state", state)
	}
	return err
}

// waiting is an instance that has not reported a layout by which its room lost
// residues that are needed next.
type waiting struct {
	ledger.InstanceRecord
	silent time.Time // since when it has been; zero while its heartbeat is there
}

// waivedBy reports whether the migration need not wait for it any longer: an
// operator said so, or it has been silent for longer than hold.
func (w waiting) waivedBy(m ledger.Migration) bool {
	return slices.Contains(m.Without, w.ID()) || !w.silent.IsZero() && time.Since(w.silent) > m.Hold
}

// waitingFor returns the instances that must report before the migration goes
// on: those of each room that lost residues by a move that they have not
// reported, where the next move gives any of these to another room, or, where
// there is no next move, the room has not got all of them back.
func waitingFor(m ledger.Migration, instances []ledger.InstanceRecord) []waiting {
	var list []waiting
	for _, i := range instances {
		before := m.From
		for _, move := range m.Moves[:m.Reached] {
			if i.Version < move.Layout.Version && slices.Contains(move.Loses, i.Room) && needed(m, i.Room, before) {
				list = append(list, waiting{InstanceRecord: i, silent: m.Silent[i.ID()]})
				break
			}
			before = move.Layout
		}
	}
	return list
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

// noteSilent stores since when instances have been silent, so that another
// driver goes on counting.
func (s *Server) noteSilent(ctx context.Context, m ledger.Migration, instances []ledger.InstanceRecord) (ledger.Migration, error) {
	silent := make(map[ledger.InstanceID]time.Time)
	var news []string
	for _, w := range waitingFor(m, instances) {
		switch {
		case w.Alive:
		case w.silent.IsZero():
			silent[w.ID()] = time.Now().UTC().Truncate(time.Millisecond)
			news = append(news, string(w.ID()))
		default:
			silent[w.ID()] = w.silent
		}
	}
	if len(news) == 0 && len(silent) == len(m.Silent) {
		return m, nil
	}
	return s.ledger.UpdateMigration(ctx, m, "", "", func(m *ledger.Migration) error {
		m.Silent = silent
		if len(news) > 0 {
			m.Note("silent, and waited for until " + m.Hold.String() + " have passed: " + strings.Join(news, ", "))
		}
		return nil
	})
}
