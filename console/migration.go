package console

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/problem"
)

// migrations shows the migrations, and changes the one under way as operators wish.
type migrations struct {
	*view
	driver  *driver
	planner *planner
}

// migration returns the migration with an ID. For an empty ID it returns the one
// under way, or else the last one.
func (s *migrations) migration(ctx context.Context, id string) (record.Migration, error) {
	if id != "" {
		return s.admin.Migration(ctx, id)
	}
	m, active, err := s.admin.ActiveMigration(ctx)
	if err != nil || active {
		return m, err
	}
	last, _, err := s.admin.Migrations(ctx, "", 1)
	if err != nil {
		return m, err
	}
	if len(last) == 0 {
		return m, allocator.Errorf(allocator.NotFound,
			"there has been no migration yet; `march migrate plan` plans one")
	}
	return last[0], nil
}

func (s *migrations) GetMigration(ctx context.Context,
	r *marchv1.GetMigrationRequest) (*marchv1.GetMigrationResponse, error) {
	m, err := s.migration(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	answer, err := s.showMigration(ctx, m)
	return &marchv1.GetMigrationResponse{Migration: answer}, err
}

// ListMigrations implements ConsoleService. A page token is the last ID of the
// page before.
func (s *migrations) ListMigrations(ctx context.Context,
	r *marchv1.ListMigrationsRequest) (*marchv1.ListMigrationsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	list, bad, err := s.admin.Migrations(ctx, r.GetPageToken(), size+1)
	if err != nil {
		return nil, err
	}
	now := s.last.Load()
	if slices.ContainsFunc(list, func(m record.Migration) bool { return !m.State.Ended() }) {
		if now, err = s.fresh(ctx); err != nil {
			return nil, err
		}
	}
	answer := &marchv1.ListMigrationsResponse{Unreadable: passedOver(bad)}
	var last *record.Migration
	if answer.Migrations, last = page(list, size, func(m record.Migration) *marchv1.Migration {
		return migrationToProto(m, now.instances)
	}); last != nil {
		answer.NextPageToken = last.ID
	}
	return answer, nil
}

// watchEvery is how often a watched migration is read.
const watchEvery = 200 * time.Millisecond

func (s *migrations) WatchMigration(r *marchv1.WatchMigrationRequest,
	stream marchv1.ConsoleService_WatchMigrationServer) error {
	ctx := stream.Context()
	m, err := s.migration(ctx, r.GetId())
	if err != nil {
		return err
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var sent *marchv1.Migration
	for {
		now, answer, err := s.renewMigration(ctx, m)
		switch {
		// An etcd that is away for a moment ends no watch, except before the first answer: until
		// then the caller does not know whether there is such a migration.
		case err != nil && (sent == nil || allocator.KindOf(err) != allocator.Unavailable):
			return err
		case err != nil:
		case !proto.Equal(answer, sent):
			if err := stream.Send(&marchv1.WatchMigrationResponse{Migration: answer}); err != nil {
				return err
			}
			m, sent = now, answer
		}
		if m.State.Ended() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stopping:
			return allocator.Errorf(allocator.Unavailable,
				"this console is stopping; the migration goes on: watch it at another console")
		case <-ticker.C:
		}
	}
}

// change changes the migration with an ID. It tries again if a console or another
// operator changed the migration at the same time: a request is about the migration as it is
// now, and consoles may change that several times a second.
func (s *migrations) change(ctx context.Context, id, action string,
	change func(m *record.Migration, by string) error) (*marchv1.Migration, error) {
	by := operator.Actor(ctx)
	for range 10 {
		m, err := s.migration(ctx, id)
		if err != nil {
			return nil, err
		}
		m, err = s.admin.UpdateMigration(ctx, m, action, by, func(m *record.Migration) error {
			if m.State.Ended() {
				return allocator.Errorf(allocator.Refused, "migration %s is %s already", m.ID, m.State)
			}
			return change(m, by)
		})
		if err == nil {
			s.log.Info("migration changed", "migration", m.ID, "change", action, "by", by, "state", m.State)
			s.driver.ended(m)
			return s.showMigration(ctx, m)
		}
		if allocator.KindOf(err) != allocator.Conflict {
			return nil, err
		}
	}
	return nil, allocator.Errorf(allocator.Conflict,
		"migration %s changed at each try: look at it again, then retry", id)
}

func (s *migrations) PauseMigration(ctx context.Context,
	r *marchv1.PauseMigrationRequest) (*marchv1.PauseMigrationResponse, error) {
	m, err := s.change(ctx, r.GetId(), "pause migration", func(m *record.Migration, by string) error {
		if m.State == record.Paused {
			return allocator.Errorf(allocator.Refused, "migration %s is paused already", m.ID)
		}
		m.State = record.Paused
		m.Note(record.EventPaused, "paused by "+by)
		return nil
	})
	return &marchv1.PauseMigrationResponse{Migration: m}, err
}

func (s *migrations) ResumeMigration(ctx context.Context,
	r *marchv1.ResumeMigrationRequest) (*marchv1.ResumeMigrationResponse, error) {
	m, err := s.change(ctx, r.GetId(), "resume migration", func(m *record.Migration, by string) error {
		if m.State != record.Paused {
			return allocator.Errorf(allocator.Refused, "migration %s is not paused but %s", m.ID, m.State)
		}
		m.State = record.Running
		m.Note(record.EventResumed, "resumed by "+by)
		return nil
	})
	return &marchv1.ResumeMigrationResponse{Migration: m}, err
}

// ContinueMigration implements ConsoleService. It counts for the processes that are
// registered now, and for the next move.
func (s *migrations) ContinueMigration(ctx context.Context,
	r *marchv1.ContinueMigrationRequest) (*marchv1.ContinueMigrationResponse, error) {
	m, err := s.change(ctx, r.GetId(), "continue migration", func(m *record.Migration, by string) error {
		instances, err := s.instances(ctx)
		if err != nil {
			return err
		}
		waits := make(map[string]record.Waiver)
		for _, i := range waitingFor(*m, instances) {
			if !waived(*m, i) {
				waits[string(i.ID())] = record.Waiver{Instance: i.ID(), Incarnation: i.Incarnation, Reached: m.Reached}
			}
		}
		missing := cmp.Or(strings.Join(slices.Sorted(maps.Keys(waits)), ", "), "no instance")
		if len(r.GetWithout()) == 0 {
			return allocator.Errorf(allocator.Invalid,
				"without: no instance is named; the migration waits for %s", missing)
		}
		for _, id := range r.GetWithout() {
			w, ok := waits[id]
			if !ok {
				return allocator.Errorf(allocator.NotFound,
					"without: the migration does not wait for %q; it waits for %s", id, missing)
			}
			if !slices.Contains(m.Without, w) {
				m.Without = append(m.Without, w)
			}
		}
		m.Note(record.EventContinued, "goes on without "+strings.Join(r.GetWithout(), ", ")+" for one move, says "+by)
		return nil
	})
	return &marchv1.ContinueMigrationResponse{Migration: m}, err
}

// AbortMigration implements ConsoleService: it plans the way back from the current
// layout, and lets the migration take it. If there is no way back, it ends the
// migration at the current layout.
func (s *migrations) AbortMigration(ctx context.Context,
	r *marchv1.AbortMigrationRequest) (*marchv1.AbortMigrationResponse, error) {
	m, err := s.change(ctx, r.GetId(), "abort migration", func(m *record.Migration, by string) error {
		stored, unusable, err := s.admin.LastLayout(ctx)
		if err != nil {
			return err
		}
		problem := textOf(unusable)
		if _, is := errors.AsType[*ledger.UnusableError](unusable); unusable != nil && !is {
			return unusable // an error that is not about the layout
		}
		return abort(m, by, stored.Layout, problem, s.planner.search(s.planner.needs(ctx)))
	})
	return &marchv1.AbortMigrationResponse{Migration: m}, err
}

// abort replaces the moves that were not made by the moves that lead back. If the
// migration ends at once, its moves stay, so that pages and commands can show how many
// were made. layout is the current one; problem says why it cannot be used, and is empty
// if it can. needs are the workers that the moves back leave to rooms, where they can.
func abort(m *record.Migration, by string, layout allocator.Layout, problem string, needs plan.Workers) error {
	stands := m.Stands()
	var back plan.Plan
	switch {
	case problem != "":
	case !layout.Equal(stands):
		problem = replaced(layout)
	case m.Abort && m.Error == "":
		return allocator.Errorf(allocator.Refused, "migration %s is being aborted already", m.ID)
	case m.Abort: // the way back does not go on either, and a second one would meet the same error
		problem = m.Error
	case !stands.Equal(m.From):
		var err error
		if back, err = needs.Back(stands, m.From); err != nil {
			problem = err.Error()
		}
	}
	m.Note(record.EventAborted, "aborted by "+by)
	if problem != "" {
		endHere(m, problem)
		return nil
	}
	m.Abort, m.State = true, record.Running
	m.Fail("")
	switch {
	case m.Reached == 0:
		m.State = record.Aborted
	default: // even if no move leads back, instances must still report the last one
		m.Moves = append(m.Moves[:m.Reached:m.Reached], record.MovesOf(back.Moves...)...)
	}
	return nil
}

// showMigration returns m as a message, with the instances that it waits for now.
func (s *view) showMigration(ctx context.Context, m record.Migration) (_ *marchv1.Migration, err error) {
	var instances []instance
	if !m.State.Ended() {
		instances, err = s.instances(ctx)
	}
	return migrationToProto(m, instances), err
}

// renewMigration returns m as it is by now, also as a message.
func (s *migrations) renewMigration(ctx context.Context,
	m record.Migration) (record.Migration, *marchv1.Migration, error) {
	now, err := s.fresh(ctx)
	switch {
	case err != nil:
		return m, nil, err
	case now.Migration != nil && now.Migration.ID == m.ID:
		return *now.Migration, migrationToProto(*now.Migration, now.instances), nil
	}
	if m, err = s.admin.Migration(ctx, m.ID); err != nil { // it has ended
		return m, nil, err
	}
	return m, migrationToProto(m, now.instances), nil
}

// migrationToProto returns m as a message. instances are those of all rooms; none
// are needed if m has ended.
func migrationToProto(m record.Migration, instances []instance) *marchv1.Migration {
	p := &marchv1.Migration{
		Id: m.ID, State: api.FromWord[marchv1.MigrationState](string(m.State)), Abort: m.Abort,
		From: api.LayoutToProto(m.From), Target: api.LayoutToProto(m.Target),
		Reached: int32(m.Reached), Hold: durationpb.New(m.Hold.Duration()), Actor: m.Actor, //nolint:gosec // a handful of moves
		Created: timestamppb.New(m.Created), Updated: timestamppb.New(m.Updated),
		NoWayBack: m.NoWayBack,
	}
	for _, move := range m.Moves {
		made := operator.MoveToProto(move.Move)
		made.Made, made.ClientsUntil = problem.Stamp(move.Made), problem.Stamp(move.ClientsUntil)
		p.Moves = append(p.Moves, made)
	}
	for _, w := range m.Without {
		if !slices.Contains(p.GetWithout(), string(w.Instance)) {
			p.Without = append(p.Without, string(w.Instance))
		}
	}
	if m.Error != "" {
		p.Error, p.ErrorSince = m.Error, timestamppb.New(m.ErrorSince)
	}
	for _, entry := range m.Log {
		p.Log = append(p.Log, &marchv1.MigrationLog{Time: timestamppb.New(entry.Time), Text: entry.Text,
			Kind: api.FromWord[marchv1.MigrationEvent](string(entry.Kind))})
	}
	if m.State.Ended() { // later reports are not about this migration
		return p
	}
	for k, move := range m.Moves {
		for _, i := range instances { // by room and name
			if slices.Contains(move.Loses, i.Room) {
				p.Moves[k].Reports = append(p.Moves[k].Reports, &marchv1.Report{Instance: string(i.ID()),
					Version: i.Version, State: standing(m, k, i), Reported: problem.Stamp(reportedAt(m, k, i))})
			}
		}
	}
	for _, w := range waitingFor(m, instances) {
		if waived(m, w) {
			continue
		}
		q := &marchv1.Waiting{Instance: string(w.ID()), Version: w.Version}
		if !w.Alive {
			q.SilentSince, q.Until = timestamppb.New(w.SilentSince), timestamppb.New(waitsUntil(m, w))
		}
		p.Waiting = append(p.Waiting, q)
	}
	slices.SortFunc(p.Waiting, func(a, b *marchv1.Waiting) int { return cmp.Compare(a.GetInstance(), b.GetInstance()) })
	p.Problems = migrationProblems(p)
	return p
}
