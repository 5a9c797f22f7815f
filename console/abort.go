package console

import (
	"context"
	"errors"
	"fmt"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/plan"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// AbortMigration implements ConsoleService: it plans the way back from the current
// layout, and lets the migration take it. If there is no way back, it ends the
// migration at the current layout.
func (s *Server) AbortMigration(ctx context.Context, r *marchv1.AbortMigrationRequest) (*marchv1.AbortMigrationResponse, error) {
	by := operator.Actor(ctx)
	m, err := s.change(ctx, r.GetId(), "abort migration", func(m *record.Migration) error {
		stored, unusable, err := s.admin.LastLayout(ctx)
		if err != nil {
			return err
		}
		problem := textOf(unusable)
		if _, is := errors.AsType[*ledger.UnusableError](unusable); unusable != nil && !is {
			return unusable // an error that is not about the layout
		}
		return abort(m, by, stored.Layout, problem, s.search(s.needs(ctx)))
	})
	return &marchv1.AbortMigrationResponse{Migration: m}, err
}

// abort replaces the moves that were not made by the moves that lead back. If the
// migration ends at once, its moves stay, so that pages and commands can show how many
// were made. layout is the current one; problem says why it cannot be used, and is empty
// if it can.
// needs are the workers that the moves back leave to rooms, where they can.
func abort(m *record.Migration, by string, layout allocator.Layout, problem string, needs plan.Workers) error {
	stands := m.Stands()
	var back plan.Plan
	switch {
	case problem != "":
	case !layout.Equal(stands):
		problem = replaced(layout)
	case m.Abort && m.Error == "":
		return allocator.Errorf(allocator.Refused, "migration %s is being aborted already", m.ID)
	case m.Abort:
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
	default:
		m.Moves = append(m.Moves[:m.Reached:m.Reached], record.MovesOf(back.Moves...)...)
	}
	return nil
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
	return fmt.Sprintf("the layout is version %d, which the migration did not make: a recover or an operator replaced the migration's layout", layout.Version)
}
