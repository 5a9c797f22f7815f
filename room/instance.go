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

// operators is the service of a room for operators, and what it remembers for them.
type operators struct {
	marchv1.UnimplementedRoomServiceServer

	*process
	tags    *tags
	health  *health
	rates   rates
	history minutes.History
}

// GetInstance implements RoomService.
func (o *operators) GetInstance(context.Context, *marchv1.GetInstanceRequest) (*marchv1.GetInstanceResponse, error) {
	last, contact := o.tags.currentRound(), o.ledger.Contact()
	counters, _ := o.tags.memory.size()
	p := &marchv1.InstanceStatus{
		Room: string(o.cfg.Room), Instance: string(o.cfg.Name), Build: o.cfg.Build, Started: timestamppb.New(o.started),
		Version: o.instance.Version(), Issued: o.issuedHere(), Held: last.held, Tags: int64(counters),
		ReserveTag: string(last.scarce),
	}
	if last.scarce != "" {
		p.Reserve = durationpb.New(last.reserve)
	}
	if !contact.Last.IsZero() {
		p.EtcdLatency, p.EtcdLastContact = durationpb.New(contact.Latency), timestamppb.New(contact.Last)
	}
	if !contact.Away.IsZero() {
		p.EtcdAwaySince = timestamppb.New(contact.Away)
	}
	checks, lacks := o.health.readiness()
	if err := serve.Failed(checks); err != nil {
		p.NotReady = err.Error()
	}
	p.Barred, p.Problems, p.Certificates = o.barred(), o.health.problemsOf(lacks), o.cfg.Diagnose.Certificates()
	return &marchv1.GetInstanceResponse{Status: p, Rates: o.rates.get()}, nil
}

// GetInstanceHistory implements RoomService.
func (o *operators) GetInstanceHistory(_ context.Context,
	r *marchv1.GetInstanceHistoryRequest) (*marchv1.GetInstanceHistoryResponse, error) {
	back, step, err := minutes.Check(r.GetMinutes(), r.GetStep())
	if err != nil {
		return nil, err
	}
	first, all, tags := o.history.Last(o.instance.Now(), back, step)
	return &marchv1.GetInstanceHistoryResponse{First: timestamppb.New(first), All: all, Tags: tags}, nil
}

// GetChain implements RoomService.
func (o *operators) GetChain(_ context.Context, r *marchv1.GetChainRequest) (*marchv1.GetChainResponse, error) {
	tag, err := allocator.ParseTag(r.GetTag())
	if err != nil {
		return nil, err
	}
	chain := o.tags.counter(string(tag))
	if chain == nil {
		return nil, allocator.Errorf(allocator.NotFound, "instance %s of room %s holds no chain of tag %s",
			o.cfg.Name, o.cfg.Room, tag)
	}
	return &marchv1.GetChainResponse{Chain: o.chainToProto(chain)}, nil
}

// ListChains implements RoomService.
func (o *operators) ListChains(_ context.Context, r *marchv1.ListChainsRequest) (*marchv1.ListChainsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	page, more := o.tags.counters(allocator.Tag(r.GetPageToken()), size)
	answer := &marchv1.ListChainsResponse{}
	for _, c := range page {
		answer.Chains = append(answer.Chains, o.chainToProto(c))
	}
	if more {
		answer.NextPageToken = string(page[len(page)-1].Tag())
	}
	return answer, nil
}

func (o *operators) chainToProto(chain *counter) *marchv1.Chain {
	c := o.tags.gates.statusOf(chain)
	p := &marchv1.Chain{
		Tag: string(c.Tag), Room: string(o.cfg.Room), Instance: string(o.cfg.Name),
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
func (o *operators) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	return operator.UpdateTag(ctx, o.admin, r)
}

// SkipTag implements RoomService. A request without rooms skips for this room only.
func (o *operators) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	if len(r.GetRooms()) == 0 {
		r.Rooms = []string{string(o.cfg.Room)}
	}
	return operator.SkipTag(ctx, o.admin, r)
}

// PrescaleTag implements RoomService.
func (o *operators) PrescaleTag(ctx context.Context,
	r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	return operator.PrescaleTag(ctx, o.admin, r)
}
