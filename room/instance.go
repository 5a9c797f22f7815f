package room

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/minutes"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/serve"
)

// GetInstance implements RoomService.
func (s *Server) GetInstance(context.Context, *marchv1.GetInstanceRequest) (*marchv1.GetInstanceResponse, error) {
	total, contact := s.total(), s.ledger.Contact()
	p := &marchv1.InstanceStatus{
		Room: string(s.cfg.Room), Instance: string(s.cfg.Name), Build: s.cfg.Build, Started: timestamppb.New(s.started),
		Version: s.instance.Version(), Issued: total.issued, Held: total.held, Tags: total.tags,
		ReserveTag: string(total.scarce),
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

// GetInstanceHistory implements RoomService.
func (s *Server) GetInstanceHistory(_ context.Context,
	r *marchv1.GetInstanceHistoryRequest) (*marchv1.GetInstanceHistoryResponse, error) {
	back, step, err := minutes.Check(r.GetMinutes(), r.GetStep())
	if err != nil {
		return nil, err
	}
	first, all, tags := s.history.Last(s.instance.Now(), back, step)
	answer := &marchv1.GetInstanceHistoryResponse{First: timestamppb.New(first), All: seriesToProto(all)}
	for _, series := range tags {
		answer.Tags = append(answer.Tags, seriesToProto(series))
	}
	return answer, nil
}

func seriesToProto(s minutes.Series) *marchv1.HistorySeries {
	p := &marchv1.HistorySeries{Tag: string(s.Tag)}
	for _, v := range s.Points {
		p.Rates, p.Reserves, p.Failed = append(p.Rates, float32(v.Rate)), append(p.Reserves, float32(v.Reserve)),
			append(p.Failed, float32(v.Failed))
		if s.Tag == "" {
			p.EtcdLatencies, p.EtcdAway = append(p.EtcdLatencies, float32(v.Latency)),
				append(p.EtcdAway, float32(v.Away))
		}
	}
	return p
}

// GetChain implements RoomService.
func (s *Server) GetChain(_ context.Context, r *marchv1.GetChainRequest) (*marchv1.GetChainResponse, error) {
	tag, err := allocator.ParseTag(r.GetTag())
	if err != nil {
		return nil, err
	}
	chain := s.tags.counter(string(tag))
	if chain == nil {
		return nil, allocator.Errorf(allocator.NotFound, "instance %s of room %s holds no chain of tag %s",
			s.cfg.Name, s.cfg.Room, tag)
	}
	return &marchv1.GetChainResponse{Chain: s.chainToProto(chain.Chain)}, nil
}

// ListChains implements RoomService.
func (s *Server) ListChains(_ context.Context, r *marchv1.ListChainsRequest) (*marchv1.ListChainsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	page, more := s.tags.counters(allocator.Tag(r.GetPageToken()), size)
	answer := &marchv1.ListChainsResponse{}
	for _, c := range page {
		answer.Chains = append(answer.Chains, s.chainToProto(c.Chain))
	}
	if more {
		answer.NextPageToken = string(page[len(page)-1].Tag())
	}
	return answer, nil
}

func (s *Server) chainToProto(chain *allocator.Chain) *marchv1.Chain {
	c := s.statusOf(chain)
	p := &marchv1.Chain{
		Tag: string(c.Tag), Room: string(s.cfg.Room), Instance: string(s.cfg.Name),
		Issued: c.Issued, Held: c.Held, Dropped: c.Dropped, Step: c.Target, Peak: c.Peak,
		Reserve: durationpb.New(c.Lasts), Refills: c.Refills, Waits: c.Waits, Version: c.Version,
		Used: timestamppb.New(c.Used),
	}
	if held := chain.Segments(); len(held) > 0 {
		p.First, p.End = held[0].First, held[len(held)-1].Last()+1
	}
	if c.Failure != nil {
		p.Failure = c.Failure.Error()
	}
	return p
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
