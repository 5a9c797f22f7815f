package console

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// showMigration returns m as a message, with the instances that it waits for now.
func (s *Server) showMigration(ctx context.Context, m record.Migration) (*marchv1.Migration, error) {
	var instances []instance
	if !m.State.Ended() {
		var err error
		if instances, err = s.instancesFor(ctx, m); err != nil {
			return nil, err
		}
	}
	return migrationToProto(m, instances), nil
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
		if !move.Made.IsZero() {
			made.Made = timestamppb.New(move.Made)
		}
		if !move.ClientsUntil.IsZero() {
			made.ClientsUntil = timestamppb.New(move.ClientsUntil)
		}
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
		p.Log = append(p.Log, &marchv1.MigrationLog{Time: timestamppb.New(entry.Time), Text: entry.Text})
	}
	if m.State.Ended() {
		return p
	}
	for k, move := range m.Moves {
		for _, i := range instances { // by room and name
			if slices.Contains(move.Loses, i.Room) {
				r := &marchv1.Report{Instance: string(i.ID()), Version: i.Version, State: standing(m, k, i)}
				if at := reportedAt(m, k, i); !at.IsZero() {
					r.Reported = timestamppb.New(at)
				}
				p.Moves[k].Reports = append(p.Moves[k].Reports, r)
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
