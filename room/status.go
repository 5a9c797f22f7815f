package room

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/server"
)

// Why an instance is not ready by its own state.
var (
	errStarting = errors.New("starting")
	errStopping = &allocator.Error{Kind: allocator.Unavailable, Msg: "this instance is stopping; call another"}
)

// status is whether the instance serves.
type status struct {
	reason atomic.Pointer[error] // why not, or nil
	stop   chan struct{}         // closed when the reason is errStopping, for good
	once   sync.Once
}

func (s *status) init() {
	s.stop = make(chan struct{})
	s.set(errStarting)
}

func (s *status) set(reason error) { s.reason.Store(&reason) }

// stopped begins the stop.
func (s *status) stopped() {
	s.set(errStopping)
	s.once.Do(func() { close(s.stop) })
}

// started ends errStarting, and nothing else: a stop may have come first.
func (s *status) started() {
	if was := s.reason.Load(); errors.Is(*was, errStarting) {
		var none error
		s.reason.CompareAndSwap(was, &none)
	}
}

// get returns errStarting, errStopping or nil.
func (s *status) get() error { return *s.reason.Load() }

// stopping returns the error for calls that arrive while the instance stops.
func (s *status) stopping() error {
	if err := s.get(); errors.Is(err, error(errStopping)) {
		return err
	}
	return nil
}

// Ready returns why the instance cannot issue IDs, nil when it can: it is
// ready once it registered and warmed its tags, and stays so without etcd
// while it holds IDs that it may issue.
func (s *Server) Ready() error { return server.Failed(s.checks()) }

// checks is what Ready rests on.
func (s *Server) checks() []server.Check {
	record, _ := s.ledger.Layout()
	layout := server.Check{Name: "layout", Note: fmt.Sprintf("version %d, boundary %d", record.Layout.Version, record.Layout.Boundary)}
	if _, ok := record.Layout.Ranges[s.cfg.Room]; !ok {
		layout.Err = allocator.Errorf(allocator.NoRange, "room %s has no range in layout version %d", s.cfg.Room, record.Layout.Version)
	}
	ids := server.Check{Name: "ids"}
	why := s.ledger.Lessable()
	if contact := s.ledger.Contact(); !contact.Away.IsZero() {
		why = allocator.Errorf(allocator.Unavailable, "etcd has not answered since %s: %v", contact.Away.UTC().Format(time.RFC3339), contact.Cause)
	}
	held, may := false, false
	if why != nil {
		held, may = s.chains.anyHeld(s.open)
	}
	switch {
	case why == nil:
		ids.Note = "etcd answers"
	case may:
		ids.Note = "only those that are held: " + why.Error()
	case held:
		ids.Err = allocator.Errorf(allocator.KindOf(why), "those that are held may not be issued, as strict_retract is set and hold (%v) has passed, and %w", s.cfg.Hold, why)
	default:
		ids.Err = allocator.Errorf(allocator.KindOf(why), "none are held, and %w", why)
	}
	return []server.Check{{Name: "serving", Err: s.status.get()}, layout, ids}
}

// healthEvery is how late gRPC's health service may be.
const healthEvery = time.Second

// watchHealth keeps gRPC's health service up to date until ctx ends.
func (s *Server) watchHealth(ctx context.Context) error {
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	said := false // that nothing can be issued
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		switch err := s.reportHealth(); {
		case s.status.get() != nil: // it starts or stops, which is said elsewhere
		case err != nil && !said:
			said = s.lines.unready.Log(time.Now(), s.log.Warn, "nothing can be issued", "error", err)
		case err == nil && said:
			said = false
			s.log.Info("IDs can be issued again")
		}
	}
}

// reportHealth tells gRPC's health service whether the instance is ready, and
// returns what Ready does.
func (s *Server) reportHealth() error {
	serving, why := healthpb.HealthCheckResponse_SERVING, s.Ready()
	if why != nil {
		serving = healthpb.HealthCheckResponse_NOT_SERVING
	}
	for _, service := range []string{"", marchv1.IDService_ServiceDesc.ServiceName, marchv1.RoomService_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, serving)
	}
	return why
}

// GetChain implements RoomService.
func (s *Server) GetChain(_ context.Context, r *marchv1.GetChainRequest) (*marchv1.GetChainResponse, error) {
	tag, err := allocator.ParseTag(r.GetTag())
	if err != nil {
		return nil, err
	}
	chain := s.chains.get(string(tag))
	if chain == nil {
		return nil, allocator.Errorf(allocator.NotFound, "instance %s of room %s holds no chain of tag %s", s.cfg.Name, s.cfg.Room, tag)
	}
	return &marchv1.GetChainResponse{Chain: s.chainToProto(s.statusOf(chain.Chain))}, nil
}

// ListChains implements RoomService.
func (s *Server) ListChains(_ context.Context, r *marchv1.ListChainsRequest) (*marchv1.ListChainsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	page, more := s.chains.after(allocator.Tag(r.GetPageToken()), size)
	answer := &marchv1.ListChainsResponse{}
	for _, t := range page {
		answer.Chains = append(answer.Chains, s.chainToProto(s.statusOf(t.chain.Chain)))
	}
	if more {
		answer.NextPageToken = string(page[len(page)-1].tag)
	}
	return answer, nil
}

func (s *Server) chainToProto(c allocator.Status) *marchv1.Chain {
	p := &marchv1.Chain{
		Tag: string(c.Tag), Room: string(s.cfg.Room), Instance: string(s.cfg.Name),
		Issued: c.Issued, Held: c.Held, Dropped: c.Dropped, Step: c.Target, Peak: c.Peak,
		Reserve: durationpb.New(c.Lasts), Refills: c.Refills, Waits: c.Waits, Version: c.Version,
		Used: timestamppb.New(c.Used),
	}
	if c.Failure != nil {
		p.Failure = c.Failure.Error()
	}
	return p
}
