package console

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/history"
	"github.com/march-id/march/internal/minutes"
)

// mostMigrations bounds the migrations of a history.
const mostMigrations = 50

// GetHistory implements ConsoleService.
func (s *Server) GetHistory(ctx context.Context, r *marchv1.GetHistoryRequest) (*marchv1.GetHistoryResponse, error) {
	back, step, err := minutes.Check(r.GetMinutes(), r.GetStep())
	if err != nil {
		return nil, err
	}
	v, outage, err := s.viewOrKnown(ctx)
	if err != nil {
		return nil, err
	}
	span := history.Span{First: minutes.First(time.Now(), back, step), Step: step, Points: int(back / step)}
	told := s.askHistory(ctx, v.instances, &marchv1.GetInstanceHistoryRequest{Minutes: int32(back), Step: int32(step)}) //nolint:gosec // 1440 at most
	answer, err := s.history(ctx, v, len(outage) > 0, span, told)
	if err != nil {
		return nil, err
	}
	for i, t := range told {
		if v.instances[i].Alive && t.Answer == nil {
			answer.Silent = append(answer.Silent, string(v.instances[i].Room)+"/"+string(v.instances[i].Name))
		}
	}
	return answer, nil
}

// history puts a history together, with the migrations of its time. away says that etcd does not
// answer; then the migrations are those that are known.
func (s *Server) history(ctx context.Context, v view, away bool, span history.Span,
	told []history.Told) (*marchv1.GetHistoryResponse, error) {
	var migrations []record.Migration
	var err error
	if !away {
		migrations, _, err = s.admin.Migrations(ctx, "", mostMigrations)
	} else if v.migration != nil {
		migrations = append(migrations, *v.migration)
	}
	if err != nil {
		return nil, err
	}
	answer := &marchv1.GetHistoryResponse{First: timestamppb.New(span.First), Step: int32(span.Step)} //nolint:gosec // 1440 at most
	answer.Rooms, answer.Tags = history.Merge(span, names(v.record.Layout.Rooms()), told)
	for _, m := range slices.Backward(migrations) { // the oldest first
		mark := &marchv1.HistoryMigration{Id: m.ID, Began: timestamppb.New(m.Created),
			State: api.FromWord[marchv1.MigrationState](string(m.State))}
		if m.State.Ended() {
			mark.Ended = timestamppb.New(m.Updated)
		}
		if !m.State.Ended() || !m.Updated.Before(span.First) {
			answer.Migrations = append(answer.Migrations, mark)
		}
	}
	return answer, nil
}

// askHistory asks each instance that is alive for its history.
func (s *Server) askHistory(ctx context.Context, instances []instance,
	r *marchv1.GetInstanceHistoryRequest) []history.Told {
	told := make([]history.Told, len(instances))
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for k, i := range instances {
		told[k].Room = string(i.Room)
		if !i.Alive {
			continue
		}
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			if conn, err := s.rooms.dial(i); err == nil {
				if answer, err := marchv1.NewRoomServiceClient(conn).GetInstanceHistory(ctx, r); err == nil {
					told[k].Answer = answer
				}
			}
			return nil
		})
	}
	_ = asking.Wait()
	return told
}
