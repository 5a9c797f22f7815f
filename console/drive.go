package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/throttle"
)

const (
	// driveEvery is how often a console looks whether a migration can go on, even if it heard of no change. Pauses are
	// random, so that consoles rarely try the same move at once.
	driveEvery = time.Second
	// driveApart is the least pause between two looks, and driveForEach is added to it for each registered instance: a
	// look reads all of them, and each writes a change.
	driveApart   = 10 * time.Millisecond
	driveForEach = 50 * time.Microsecond
	// failEvery is the shortest time between two errors that a console stores in a
	// migration: consoles may see different ones.
	failEvery = 30 * time.Second
)

// driver makes the moves of the migration under way.
type driver struct {
	*view
	woken    chan struct{}  // has drive look at once; of size one
	migrates atomic.Bool    // a migration was under way when drive last looked, or began here since
	beats    sync.WaitGroup // that drive writes
	failed   time.Time      // when drive last stored why a migration cannot go on

	migrationsEnded *prometheus.CounterVec
}

// drive makes migrations go on until ctx ends, and checks whether etcd went back in
// time. Every console does this: a migration's data is in etcd, and if two consoles
// make the same move, one succeeds.
func (s *driver) drive(ctx context.Context) {
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { s.admin.Follow(following, s.follow) })
	defer s.beats.Wait()
	defer follower.Wait()
	defer stop()
	var stuckLog throttle.Log
	for {
		instances, err := s.driveOnce(ctx)
		if errors.Is(err, ledger.ErrNoCluster) { // before the first layout there is no migration
			err = nil
		}
		if err != nil && ctx.Err() == nil {
			stuckLog.Log(time.Now(), s.log.Warn, "migration did not go on; the console tries again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.jittered(driveApart + time.Duration(instances)*driveForEach):
		}
		select {
		case <-ctx.Done():
			return
		case <-s.woken:
		case <-s.jittered(driveEvery):
		}
	}
}

// jittered waits for a pause, and for a random time of up to the same length.
func (s *driver) jittered(pause time.Duration) <-chan time.Time {
	return time.After(pause + time.Duration(s.cfg.Rand()*float64(pause)))
}

// began has drive look at a migration that began here.
func (s *driver) began() {
	s.migrates.Store(true)
	allocator.Wake(s.woken)
}

// follow hears of a change of a migration, or of the registration of an instance.
func (s *driver) follow(registration bool) {
	if !registration || s.migrates.Load() {
		allocator.Wake(s.woken)
	}
}

// driveOnce makes the next move of the migration under way, if it can be made now. It checks whether etcd went back in
// time even without a migration, because a console may be the only process that lived through a restore of etcd. It
// returns how many instances it read: none without a migration.
func (s *driver) driveOnce(ctx context.Context) (instances int, err error) {
	sent := time.Now()
	read := s.migrates.Load()
	standing, err := s.admin.Standing(ctx, read)
	if err == nil && standing.Active && !read {
		standing, err = s.admin.Standing(ctx, true)
	}
	if err != nil {
		return 0, err
	}
	s.beats.Go(func() { s.ledger.Beat(ctx, standing.Checked) }) // no move waits for it
	m := standing.Migration
	if read || standing.Active { // otherwise one may have begun here since
		s.migrates.Store(standing.Active)
	}
	if !standing.Active {
		s.drove(record.Migration{}, 0)
		return 0, nil
	}
	list := s.sight(standing.Instances, m, sent)
	// A paused migration ends too when its layout was replaced: resumed, it could not go on.
	if ended, err := s.endReplaced(ctx, m, standing.State); ended || err != nil {
		return len(list), err
	}
	if m.State == record.Paused {
		s.drove(m, 0)
		return len(list), nil
	}
	moved, err := s.advance(ctx, m, list, standing.State)
	if moved {
		return len(list), nil
	}
	// Without an error the migration only waits. An error that was stored before is over then.
	return len(list), s.noteError(ctx, m, err)
}

// driving is how the migration under way stood when drive last looked, in the snapshot; zero for none.
type driving struct {
	state                record.MigrationState
	moves, made, waiting int // waiting is how many instances the next move waits for
}

func (s *driver) drove(m record.Migration, waiting int) {
	if now := (driving{m.State, len(m.Moves), m.Reached, waiting}); s.last.Load().driving != now {
		s.publish(func(next *snapshot) { next.driving = now })
	}
}

// endReplaced ends a migration at the current layout, if that is not the one that its
// last move made: a recover, or an operator by hand, put another in force, so none of its
// moves can be made any more. It reports whether it ended the migration.
func (s *driver) endReplaced(ctx context.Context, m record.Migration, now *ledger.State) (ended bool, err error) {
	// A move changes layout and migration together, and both are of one snapshot. advance reports why nothing can be
	// leased.
	layout := now.Layout().Layout
	if layout.Equal(m.Stands()) || now.Refusal() != nil {
		return false, nil
	}
	err = s.end(ctx, m, func(m *record.Migration) { endHere(m, replaced(layout)) })
	if err != nil && allocator.KindOf(err) == allocator.Conflict {
		return false, nil // another console ended the migration since m was read
	}
	return err == nil, err
}

// endHere ends a migration at the current layout, because it can go neither on nor
// back.
func endHere(m *record.Migration, why string) {
	m.Fail("")
	m.Abort, m.State, m.NoWayBack = true, record.Aborted, why
	m.Note(record.EventEnded, "ended at the current layout, because there is no way back: "+why)
}

// replaced returns why no move of a migration can be made or undone under a layout.
func replaced(layout allocator.Layout) string {
	return fmt.Sprintf("the layout is version %d, which the migration did not make: "+
		"a recover or an operator replaced the migration's layout", layout.Version)
}

// advance makes the next move of a migration, or ends it, if there is nothing to
// wait for. It reports whether it did.
func (s *driver) advance(ctx context.Context, m record.Migration, instances []instance,
	now *ledger.State) (moved bool, err error) {
	waits := waitingFor(m, instances)
	blocking := 0
	for _, i := range waits {
		if !waived(m, i) {
			blocking++
		}
	}
	s.drove(m, blocking)
	if blocking > 0 {
		return false, nil
	}
	// prepare changes m in memory. The transaction of the move, or of the end, stores it.
	prepare(&m, waits, instances)
	if m.Reached == len(m.Moves) {
		err := s.finish(ctx, m)
		return err == nil, err
	}
	next, err := s.admin.MakeMove(ctx, m, now)
	if err != nil {
		return false, err
	}
	crash.Here(crash.AfterMove)
	move := next.Moves[next.Reached-1]
	s.drove(next, 0)
	s.log.Info("migration moved", "migration", m.ID, "move", fmt.Sprintf("%d of %d", next.Reached, len(next.Moves)),
		"kind", move.Kind, "version", move.Layout.Version)
	if next.Reached == len(next.Moves) && len(waitingFor(next, instances)) == 0 {
		prepare(&next, nil, instances)
		_ = s.finish(ctx, next) // if that fails, the next look does it
	}
	return true, nil
}

// noteError stores in the migration the error met, which stops it, or removes the
// stored error if met is nil. It returns nil if another console made the move at the
// same time.
func (s *driver) noteError(ctx context.Context, m record.Migration, met error) error {
	text := ""
	if met != nil {
		text = met.Error()
	}
	// While etcd does not answer, the error could not be stored either, and it passes by itself.
	if ctx.Err() != nil || text == m.Error || allocator.KindOf(met) == allocator.Unavailable && met != nil {
		return met
	}
	if met != nil {
		now, err := s.admin.Migration(ctx, m.ID)
		if err != nil {
			return met
		}
		if !now.Same(m) { // the error is of a state that is gone
			return nil
		}
	}
	// Two consoles that meet different errors would otherwise overwrite each other's all the time,
	// and push everything else out of the log.
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
func (s *driver) finish(ctx context.Context, m record.Migration) error {
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
func (s *driver) end(ctx context.Context, m record.Migration, change func(*record.Migration)) error {
	m, err := s.admin.UpdateMigration(ctx, m, "end migration", "migration "+m.ID, func(m *record.Migration) error {
		change(m)
		return nil
	})
	if err == nil {
		s.ended(m)
		s.drove(record.Migration{}, 0)
	}
	return err
}

// ended logs and counts a migration that this console ended.
func (s *driver) ended(m record.Migration) {
	if m.State.Ended() {
		s.migrationsEnded.WithLabelValues(string(m.State)).Inc()
		s.log.Info("migration ended", "migration", m.ID, "state", m.State)
	}
}

// prepare stores in m, before its next change, facts about the moves so far for the
// operator: when instances reported the last one, the instances that it went on without, and
// until when clients may use the IDs that instances leased to them before these reported.
func prepare(m *record.Migration, waits, instances []instance) {
	for _, i := range waits { // advance waits for none of these any longer
		if !m.Waived(i.Instance) { // an operator's decision is in the log already
			m.Note(record.EventContinued, fmt.Sprintf("goes on without %s, silent for at least %v: "+
				"unless it is strict, it may still issue residues that its room lost",
				i.ID(), time.Since(i.SilentSince).Truncate(time.Second)))
		}
	}
	noteReports(m, instances)
	// An instance that has reported a move no longer leases to clients what its room lost by the
	// move. A lease from just before the last report ends one hold later.
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

// reportsNoted is how many reports of a move the log of a migration has, with their times: the
// latest, which the migration waited for.
const reportsNoted = 10

// reportedAt returns when this console saw an instance report m.Moves[k]. It is zero if the
// instance has not reported it, reported a later layout since, or did it while this console was
// not looking.
func reportedAt(m record.Migration, k int, i instance) time.Time {
	move := m.Moves[k]
	if k >= m.Reached || i.Reported() < move.Layout.Version || i.ReportedAt.Before(move.Made) {
		return time.Time{}
	}
	// A console notes only the last report of an instance, which is of a later move here.
	if k+1 < m.Reached && i.Reported() >= m.Moves[k+1].Layout.Version {
		return time.Time{}
	}
	return i.ReportedAt
}

// noteReports notes in the log of a migration which instances reported its last move, and when,
// as far as this console saw it. The log is bounded, so the earliest of many are a number.
func noteReports(m *record.Migration, instances []instance) {
	k := m.Reached - 1
	if k < 0 || len(m.Moves[k].Loses) == 0 {
		return
	}
	var reported []instance
	for _, i := range instances {
		if slices.Contains(m.Moves[k].Loses, i.Room) && i.Reported() >= m.Moves[k].Layout.Version {
			reported = append(reported, i)
		}
	}
	slices.SortStableFunc(reported, func(a, b instance) int {
		return reportedAt(*m, k, a).Compare(reportedAt(*m, k, b))
	})
	if earlier := len(reported) - reportsNoted; earlier > 0 {
		m.NoteAt(reportedAt(*m, k, reported[earlier-1]), record.EventReported,
			fmt.Sprintf("%d instances reported move %d", earlier, m.Reached))
		reported = reported[earlier:]
	}
	for _, i := range reported {
		m.NoteAt(reportedAt(*m, k, i), record.EventReported, fmt.Sprintf("%s reported move %d", i.ID(), m.Reached))
	}
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
