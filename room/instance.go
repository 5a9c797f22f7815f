package room

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// GetInstance implements RoomService.
func (s *Server) GetInstance(context.Context, *marchv1.GetInstanceRequest) (*marchv1.GetInstanceResponse, error) {
	total, contact := s.chains.total(), s.ledger.Contact()
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
	if err := s.Ready(); err != nil {
		p.NotReady = err.Error()
	}
	return &marchv1.GetInstanceResponse{Status: p, Rates: s.rates.get()}, nil
}

// total is what all chains of an instance are together.
type total struct {
	issued, held, tags int64
	reserve            time.Duration // the least of the chains in use
	scarce             allocator.Tag // whose that is; empty when none is in use
}

func (c *chains) total() total {
	list, gone := c.counts()
	sum := total{issued: gone.issued, tags: int64(len(list))}
	for _, t := range list {
		s := t.chain.Status()
		sum.issued += s.Issued
		sum.held += s.Held
		if s.Peak > 0 && (sum.scarce == "" || s.Lasts < sum.reserve) {
			sum.reserve, sum.scarce = s.Lasts, t.tag
		}
	}
	return sum
}
