package levers

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Decode is the call of that name.
func Decode(ctx context.Context, l *ledger.Ledger, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	tag, err := allocator.ParseTag(r.GetTag())
	if err != nil {
		return nil, err
	}
	id := r.GetId()
	if id < 0 {
		return nil, allocator.Errorf(allocator.Invalid, "id: %d; allowed: 0 to %d", id, int64(allocator.MaxID))
	}
	origin, under, err := l.Origin(ctx, tag, id)
	if err != nil && allocator.KindOf(err) != allocator.NotFound {
		return nil, err
	}
	record, _ := l.Layout()
	now := record.Layout
	answer := &marchv1.DecodeResponse{Version: now.Version, Block: now.Block(id), Residue: now.Residue(id)}
	if room, ok := now.RoomOf(id); ok {
		answer.Room = string(room)
	}
	if err != nil { // never leased
		return answer, nil
	}
	answer.Origin = &marchv1.Origin{
		Room: string(origin), Layout: api.LayoutToProto(under.Layout),
		Block: under.Layout.Block(id), Residue: under.Layout.Residue(id), Since: timestamppb.New(under.Time),
	}
	if under.Layout.Version < now.Version {
		next, err := l.LayoutAfter(ctx, under.Layout.Version)
		if err != nil {
			return nil, err
		}
		answer.Origin.Until = timestamppb.New(next.Time)
	}
	return answer, nil
}
