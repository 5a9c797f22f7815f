package console

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/levers"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// PlanMigration implements ConsoleService.
func (s *Server) PlanMigration(ctx context.Context, r *marchv1.PlanMigrationRequest) (*marchv1.PlanMigrationResponse, error) {
	record, err := s.ledger.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	target, err := targetOf(r, record.Layout)
	if err != nil {
		return nil, err
	}
	plan, err := NewPlan(record.Layout, target, r.GetAtomic())
	if err != nil {
		return nil, err
	}
	answer := planToProto(plan)
	if answer.Cost, err = s.cost(ctx, plan); err != nil {
		return nil, err
	}
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, i := range instances {
		if slices.ContainsFunc(plan.Moves, func(m Move) bool { return slices.Contains(m.Loses, i.Room) }) {
			answer.Instances = append(answer.Instances, string(i.ID()))
			if !i.Alive {
				answer.Silent = append(answer.Silent, string(i.ID()))
			}
		}
	}
	return &marchv1.PlanMigrationResponse{Plan: answer}, nil
}

// targetOf returns the layout that a request asks for.
func targetOf(r *marchv1.PlanMigrationRequest, current allocator.Layout) (allocator.Layout, error) {
	edited := len(r.GetMove())+len(r.GetAddRoom())+len(r.GetDrain()) > 0 || r.GetBoundary() != 0
	switch {
	case r.GetTarget() != nil && edited:
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "target: given together with move, add_room, drain or boundary; allowed: one or the other")
	case r.GetTarget() != nil:
		return api.LayoutFromProto(r.GetTarget())
	case !edited:
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "target: not given; allowed: a layout, or at least one of move, add_room, drain and boundary")
	}
	if n := len(r.GetMove()) + len(r.GetAddRoom()) + len(r.GetDrain()); n > 4*allocator.MaxRooms {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "%d edits; allowed: up to %d", n, 4*allocator.MaxRooms)
	}
	var edits []Edit
	if r.GetBoundary() != 0 {
		edits = append(edits, ScaleBoundary(r.GetBoundary()))
	}
	for _, room := range r.GetDrain() {
		name, err := allocator.ParseRoom(room)
		if err != nil {
			return allocator.Layout{}, err
		}
		edits = append(edits, Drain(name))
	}
	for _, text := range r.GetMove() {
		edit, err := ParseMove(text)
		if err != nil {
			return allocator.Layout{}, err
		}
		edits = append(edits, edit)
	}
	for _, text := range r.GetAddRoom() {
		edit, err := ParseAddRoom(text)
		if err != nil {
			return allocator.Layout{}, err
		}
		edits = append(edits, edit)
	}
	return Apply(current, edits...)
}

// ApplyMigration implements ConsoleService. The moves are planned again and
// must come out the same, so that no plan that was changed on the way is
// followed.
func (s *Server) ApplyMigration(ctx context.Context, r *marchv1.ApplyMigrationRequest) (*marchv1.ApplyMigrationResponse, error) {
	var hold time.Duration // and each instance's own
	if r.GetHold() != nil {
		var err error
		if hold, err = levers.Duration("hold", r.GetHold()); err != nil {
			return nil, err
		}
	}
	if hold < 0 || hold > allocator.LongestReserve {
		return nil, allocator.Errorf(allocator.Invalid, "hold: %v; allowed: 0s to %v", hold, allocator.LongestReserve)
	}
	given := r.GetPlan()
	from, err := api.LayoutFromProto(given.GetFrom())
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "plan: from: %w", err)
	}
	target, err := api.LayoutFromProto(given.GetTarget())
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "plan: target: %w", err)
	}
	record, err := s.ledger.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	if record.Layout.Version == from.Version && !record.Layout.Equal(from) {
		return nil, allocator.Errorf(allocator.Invalid, "plan: from: boundary %d, %s is not layout version %d: plan again", from.Boundary, listRanges(from), from.Version)
	}
	if record.Layout.Version != from.Version {
		return nil, allocator.Errorf(allocator.Conflict, "the plan was made for layout version %d, but the layout is version %d: plan again", from.Version, record.Layout.Version)
	}
	plan, err := NewPlan(record.Layout, target, given.GetAtomic())
	if err != nil {
		return nil, err
	}
	if !sameMoves(planToProto(plan).GetMoves(), given.GetMoves()) {
		return nil, allocator.Errorf(allocator.Invalid, "plan: its moves are not those that lead from layout version %d to its target: plan again", from.Version)
	}
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return nil, err
	}
	moves := movesOf(plan)
	noteHolds(moves, instances)
	m, err := s.ledger.StartMigration(ctx, record, ledger.Migration{
		From: plan.From, Target: plan.Target, Moves: moves, Hold: hold,
	}, levers.Actor(ctx))
	if err != nil {
		return nil, err
	}
	s.log.Info("migration started", "migration", m.ID, "moves", len(m.Moves))
	answer, err := s.showMigration(ctx, m)
	return &marchv1.ApplyMigrationResponse{Migration: answer}, err
}

func sameMoves(a, b []*marchv1.Move) bool {
	return slices.EqualFunc(a, b, func(a, b *marchv1.Move) bool {
		return a.GetKind() == b.GetKind() && proto.Equal(a.GetLayout(), b.GetLayout())
	})
}

func movesOf(p Plan) []ledger.Move {
	moves := make([]ledger.Move, len(p.Moves))
	for i, m := range p.Moves {
		moves[i] = ledger.Move{Kind: string(m.Kind), Why: m.Why, Layout: m.Layout, Loses: m.Loses}
	}
	return moves
}

// migration returns the one with an ID; for an empty ID the one under way, or
// else the last.
func (s *Server) migration(ctx context.Context, id string) (ledger.Migration, error) {
	if id != "" {
		return s.ledger.Migration(ctx, id)
	}
	m, active, err := s.ledger.ActiveMigration(ctx)
	if err != nil || active {
		return m, err
	}
	last, err := s.ledger.Migrations(ctx, "", 1)
	if err != nil {
		return m, err
	}
	if len(last) == 0 {
		return m, allocator.Errorf(allocator.NotFound, "there was no migration yet; `march migrate plan` plans one")
	}
	return last[0], nil
}

// GetMigration implements ConsoleService.
func (s *Server) GetMigration(ctx context.Context, r *marchv1.GetMigrationRequest) (*marchv1.GetMigrationResponse, error) {
	m, err := s.migration(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	answer, err := s.showMigration(ctx, m)
	return &marchv1.GetMigrationResponse{Migration: answer}, err
}

// ListMigrations implements ConsoleService. A page token is the last ID of the
// page before.
func (s *Server) ListMigrations(ctx context.Context, r *marchv1.ListMigrationsRequest) (*marchv1.ListMigrationsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	list, err := s.ledger.Migrations(ctx, r.GetPageToken(), size+1)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListMigrationsResponse{}
	for _, m := range list[:min(len(list), size)] {
		p, err := s.showMigration(ctx, m)
		if err != nil {
			return nil, err
		}
		answer.Migrations = append(answer.Migrations, p)
	}
	answer.Migrations = answer.Migrations[:fitting(answer.GetMigrations())]
	if n := len(answer.GetMigrations()); n < len(list) {
		answer.NextPageToken = list[n-1].ID
	}
	return answer, nil
}

// watchEvery is how often a watched migration is looked at.
const watchEvery = 200 * time.Millisecond

// WatchMigration implements ConsoleService.
func (s *Server) WatchMigration(r *marchv1.WatchMigrationRequest, stream marchv1.ConsoleService_WatchMigrationServer) error {
	ctx := stream.Context()
	m, err := s.migration(ctx, r.GetId())
	if err != nil {
		return err
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var sent *marchv1.Migration
	for {
		answer, err := s.showMigration(ctx, m)
		switch {
		case err != nil && (sent == nil || allocator.KindOf(err) != allocator.Unavailable):
			return err
		case err == nil && !proto.Equal(answer, sent):
			if err := stream.Send(&marchv1.WatchMigrationResponse{Migration: answer}); err != nil {
				return err
			}
			sent = answer
		}
		if m.State.Ended() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stopping:
			return allocator.Errorf(allocator.Unavailable, "this console is stopping; the migration goes on: watch it at another")
		case <-ticker.C:
		}
		next, err := s.ledger.Migration(ctx, m.ID)
		if err == nil {
			m = next
		} else if allocator.KindOf(err) != allocator.Unavailable {
			return err
		}
	}
}

// change changes the migration with an ID, once more where somebody else (the
// driver's notes) did at the same time.
func (s *Server) change(ctx context.Context, id, action string, change func(*ledger.Migration) error) (*marchv1.Migration, error) {
	for range 10 {
		m, err := s.migration(ctx, id)
		if err != nil {
			return nil, err
		}
		m, err = s.ledger.UpdateMigration(ctx, m, action, levers.Actor(ctx), func(m *ledger.Migration) error {
			if m.State.Ended() {
				return allocator.Errorf(allocator.Refused, "migration %s is %s already", m.ID, m.State)
			}
			return change(m)
		})
		if err == nil {
			s.log.Info("migration changed", "migration", m.ID, "change", action, "by", levers.Actor(ctx), "state", m.State)
			s.ended(m)
			return s.showMigration(ctx, m)
		}
		if allocator.KindOf(err) != allocator.Conflict {
			return nil, err
		}
	}
	return nil, allocator.Errorf(allocator.Conflict, "migration %s changes all the while: look again, then retry", id)
}

// PauseMigration implements ConsoleService.
func (s *Server) PauseMigration(ctx context.Context, r *marchv1.PauseMigrationRequest) (*marchv1.PauseMigrationResponse, error) {
	by := levers.Actor(ctx)
	m, err := s.change(ctx, r.GetId(), "pause migration", func(m *ledger.Migration) error {
		if m.State == ledger.Paused {
			return allocator.Errorf(allocator.Refused, "migration %s is paused already", m.ID)
		}
		m.State = ledger.Paused
		m.Note("paused by " + by)
		return nil
	})
	return &marchv1.PauseMigrationResponse{Migration: m}, err
}

// ResumeMigration implements ConsoleService.
func (s *Server) ResumeMigration(ctx context.Context, r *marchv1.ResumeMigrationRequest) (*marchv1.ResumeMigrationResponse, error) {
	by := levers.Actor(ctx)
	m, err := s.change(ctx, r.GetId(), "resume migration", func(m *ledger.Migration) error {
		if m.State != ledger.Paused {
			return allocator.Errorf(allocator.Refused, "migration %s is not paused but %s", m.ID, m.State)
		}
		m.State = ledger.Running
		m.Note("resumed by " + by)
		return nil
	})
	return &marchv1.ResumeMigrationResponse{Migration: m}, err
}

// AbortMigration implements ConsoleService: it plans the way back from where
// the migration stands, and lets it go there.
func (s *Server) AbortMigration(ctx context.Context, r *marchv1.AbortMigrationRequest) (*marchv1.AbortMigrationResponse, error) {
	by := levers.Actor(ctx)
	m, err := s.change(ctx, r.GetId(), "abort migration", func(m *ledger.Migration) error {
		if m.Abort {
			return allocator.Errorf(allocator.Refused, "migration %s is being aborted already", m.ID)
		}
		return abort(m, by)
	})
	return &marchv1.AbortMigrationResponse{Migration: m}, err
}

// abort replaces the moves that were not made by those that lead back.
func abort(m *ledger.Migration, by string) error {
	stands := m.From
	if m.Reached > 0 {
		stands = m.Moves[m.Reached-1].Layout
	}
	m.Abort, m.State = true, ledger.Running
	m.Moves = m.Moves[:m.Reached:m.Reached]
	m.Note("aborted by " + by)
	if stands.Equal(m.From) {
		if m.Reached == 0 {
			m.State = ledger.Aborted
		}
		return nil
	}
	back, err := PlanBack(stands, m.From)
	if err != nil {
		return err
	}
	m.Moves = append(m.Moves, movesOf(back)...)
	return nil
}

// ContinueMigration implements ConsoleService.
func (s *Server) ContinueMigration(ctx context.Context, r *marchv1.ContinueMigrationRequest) (*marchv1.ContinueMigrationResponse, error) {
	if len(r.GetWithout()) == 0 {
		return nil, allocator.Errorf(allocator.Invalid, "without: no instance is named; allowed: room/instance, as status shows them")
	}
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, id := range r.GetWithout() {
		if !slices.ContainsFunc(instances, func(i ledger.InstanceRecord) bool { return string(i.ID()) == id }) {
			return nil, allocator.Errorf(allocator.NotFound, "without: %q is not a registered instance; allowed: room/instance, as status shows them", id)
		}
	}
	by := levers.Actor(ctx)
	m, err := s.change(ctx, r.GetId(), "continue migration", func(m *ledger.Migration) error {
		for _, id := range r.GetWithout() {
			if !slices.Contains(m.Without, ledger.InstanceID(id)) {
				m.Without = append(m.Without, ledger.InstanceID(id))
			}
		}
		m.Note("goes on without " + strings.Join(r.GetWithout(), ", ") + ", says " + by)
		return nil
	})
	return &marchv1.ContinueMigrationResponse{Migration: m}, err
}
