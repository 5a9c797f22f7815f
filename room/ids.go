package room

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/room/timetags"
)

// withTag calls use with a tag's chain, or timed with a tag of time-ordered IDs. A chain may
// be closed in between, because it was unused for long or its tag was deleted. Then withTag
// calls use again, with a new one.
func (s *Server) withTag(ctx context.Context, tag string, use func(*allocator.Chain) error, timed func(*timetags.Tag) error) error {
	for {
		if t := s.times.Get(tag); t != nil {
			if err := timed(t); !errors.Is(err, error(timeid.ErrClosed)) {
				return err
			}
			if err := s.status.stopping(); err != nil {
				return err
			}
		}
		chain, err := s.chain(ctx, tag)
		if err != nil {
			return err
		}
		if chain == nil {
			continue // it is of time-ordered IDs
		}
		chain.asked.Add(1)
		if err = use(chain.Chain); !errors.Is(err, error(allocator.ErrClosed)) {
			return err
		}
		s.chains.remove(allocator.Tag(tag), chain)
		if err := s.status.stopping(); err != nil {
			return err
		}
	}
}

// next returns the next ID of a tag. If the tag is in memory it needs no closure, which
// would cost as much as the ID. A cold tag takes the way of load.go.
func (s *Server) next(ctx context.Context, tag string) (id int64, err error) {
	if chain := s.chains.get(tag); chain != nil {
		chain.asked.Add(1)
		if id, err = chain.Next(ctx); !errors.Is(err, error(allocator.ErrClosed)) {
			return id, err
		}
	}
	if t := s.times.Get(tag); t != nil {
		if id, err = t.Next(ctx); !errors.Is(err, error(timeid.ErrClosed)) {
			return id, err
		}
	}
	err = s.withTag(ctx, tag, func(c *allocator.Chain) (err error) {
		id, err = c.Next(ctx)
		return err
	}, func(t *timetags.Tag) (err error) {
		id, err = t.Next(ctx)
		return err
	})
	return id, err
}

// Next implements IDService.
func (s *Server) Next(ctx context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	id, err := s.next(ctx, r.GetTag())
	if err != nil {
		return nil, err
	}
	s.issued.Add(1)
	crash.Here(crash.BeforeReply)
	return &marchv1.NextResponse{Id: id}, nil
}

// NextBatch implements IDService.
func (s *Server) NextBatch(ctx context.Context, r *marchv1.NextBatchRequest) (*marchv1.NextBatchResponse, error) {
	if n := r.GetCount(); n < 1 || n > api.MaxBatch {
		return nil, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, api.MaxBatch)
	}
	runs, err := s.nextN(ctx, r)
	if err != nil {
		return nil, err
	}
	s.issued.Add(r.GetCount())
	crash.Here(crash.BeforeReply)
	return &marchv1.NextBatchResponse{Runs: api.RunsToProto(runs)}, nil
}

// nextN takes a batch.
func (s *Server) nextN(ctx context.Context, r *marchv1.NextBatchRequest) (runs []allocator.Run, err error) {
	if r.GetContiguous() {
		run, err := s.nextRun(ctx, r.GetTag(), r.GetCount())
		return []allocator.Run{run}, err
	}
	err = s.withTag(ctx, r.GetTag(), func(c *allocator.Chain) (err error) {
		// Runs taken before an error are lost: a gap.
		runs, err = c.NextN(ctx, r.GetCount(), runs[:0])
		return err
	}, func(t *timetags.Tag) (err error) {
		runs, err = t.NextN(ctx, r.GetCount(), runs[:0])
		return err
	})
	return runs, err
}

// nextRun takes n consecutive IDs.
func (s *Server) nextRun(ctx context.Context, tag string, n int64) (run allocator.Run, err error) {
	err = s.withTag(ctx, tag, func(c *allocator.Chain) (err error) {
		run, err = s.takeRun(ctx, c, n)
		return err
	}, notInARow)
	return run, err
}

// takeRun takes n consecutive IDs of a chain, and counts those that it skips.
func (s *Server) takeRun(ctx context.Context, c *allocator.Chain, n int64) (allocator.Run, error) {
	run, skipped, err := c.NextRun(ctx, n)
	if s.metrics != nil {
		s.metrics.skipped.Add(float64(skipped))
	}
	return run, err
}

// notInARow refuses consecutive IDs of a tag.
func notInARow(t *timetags.Tag) error {
	return allocator.Errorf(allocator.Refused, "tag %s has time-ordered IDs, which do not follow each other", t.Name())
}

// Lease implements IDService.
func (s *Server) Lease(ctx context.Context, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error) {
	if n := r.GetCount(); n < 1 || n > api.MaxLease {
		return nil, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, api.MaxLease)
	}
	var seg allocator.Segment
	var timed *marchv1.TimeLease
	var ttl time.Duration
	var limit int64
	err := s.withTag(ctx, r.GetTag(), func(c *allocator.Chain) (err error) {
		seg, err = c.Lease(ctx, r.GetCount())
		limit = c.Limited()
		ttl = s.ttl(c, seg)
		return err
	}, func(t *timetags.Tag) (err error) {
		timed, err = s.leaseTime(ctx, t, r.GetWindow())
		return err
	})
	if err != nil && allocator.KindOf(err) == allocator.Exhausted {
		err = &allocator.LimitError{Limit: limit, Err: err}
	}
	if err != nil {
		return nil, err
	}
	s.issued.Add(seg.Count)
	crash.Here(crash.BeforeReply)
	answer := &marchv1.LeaseResponse{Time: timed}
	if timed == nil {
		answer.Segment, answer.Ttl, answer.Limit = api.SegmentToProto(seg), durationpb.New(ttl), limit
	}
	if part := s.served.Load(); part != nil {
		answer.Serves = api.PartToProto(*part)
	}
	return answer, nil
}

// Decode implements IDService.
func (s *Server) Decode(ctx context.Context, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	return operator.Decode(ctx, s.admin, r)
}
