package room

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/serve"
)

// GetInstance implements RoomService.
func (s *Server) GetInstance(context.Context, *marchv1.GetInstanceRequest) (*marchv1.GetInstanceResponse, error) {
	total, contact := s.total(), s.ledger.Contact()
	p := &marchv1.InstanceStatus{
		Room: string(s.cfg.Room), Instance: string(s.cfg.Name), Build: s.cfg.Build, Started: timestamppb.New(s.started),
		Version: s.instance.Version(), Issued: total.issued, Held: total.held, Tags: total.tags, ReserveTag: string(total.scarce),
	}
	if total.scarce != "" {
		p.Reserve = durationpb.New(total.reserve)
	}
	if !contact.Last.IsZero() {
		p.EtcdLatency, p.EtcdLastContact = durationpb.New(contact.Latency), timestamppb.New(contact.Last)
	}
	if !contact.Away.IsZero() {
		p.EtcdAwaySince = timestamppb.New(contact.Away)
	}
	checks, lacks := s.readiness()
	if err := serve.Failed(checks); err != nil {
		p.NotReady = err.Error()
	}
	p.Barred, p.Problems, p.Certificates = s.barred(), s.problemsOf(lacks), s.cfg.Diagnose.Certificates()
	return &marchv1.GetInstanceResponse{Status: p, Rates: s.rates.get()}, nil
}

// UpdateTag implements RoomService.
func (s *Server) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	return operator.UpdateTag(ctx, s.admin, r)
}

// SkipTag implements RoomService. A request without rooms skips for this room only.
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
