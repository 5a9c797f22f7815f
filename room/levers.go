package room

import (
	"context"

	"github.com/march-id/march/api/levers"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// UpdateTag implements RoomService.
func (s *Server) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	return levers.UpdateTag(ctx, s.ledger, r)
}

// SkipTag implements RoomService: without rooms it is for this room alone.
func (s *Server) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	if len(r.GetRooms()) == 0 {
		r.Rooms = []string{string(s.cfg.Room)}
	}
	return levers.SkipTag(ctx, s.ledger, r)
}

// PrescaleTag implements RoomService.
func (s *Server) PrescaleTag(ctx context.Context, r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	return levers.PrescaleTag(ctx, s.ledger, r)
}
