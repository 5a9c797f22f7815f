package room

import (
	"context"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

// UpdateTag implements RoomService.
func (s *Server) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	return operator.UpdateTag(ctx, s.admin, r)
}

// SkipTag implements RoomService: without rooms it is for this room alone.
func (s *Server) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	if len(r.GetRooms()) == 0 {
		r.Rooms = []string{string(s.cfg.Room)}
	}
	return operator.SkipTag(ctx, s.admin, r)
}

// PrescaleTag implements RoomService.
func (s *Server) PrescaleTag(ctx context.Context, r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	return operator.PrescaleTag(ctx, s.admin, r)
}
