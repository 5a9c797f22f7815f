package ledger

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/allocator"
)

// scope names this package in its spans.
const scope = "github.com/march-id/march/allocator/ledger"

// span begins a span of an operation on a room's tag, if spans are made, and
// returns the function that ends it.
func (i *Instance) span(ctx context.Context, operation string, tag allocator.Tag) (context.Context, func(error)) {
	if i.ledger.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := i.ledger.cfg.Tracer.Tracer(scope).Start(ctx, operation, trace.WithAttributes( //nolint:spancheck // see below
		attribute.String("march.room", string(i.room)), attribute.String("march.tag", string(tag)),
	))
	return ctx, func(err error) { //nolint:spancheck // it ends the span, and every caller defers or calls it
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// traceID returns the ID of ctx's trace as a pair for the log, or nil if it has
// none.
func traceID(ctx context.Context) []any {
	if id := trace.SpanContextFromContext(ctx).TraceID(); id.IsValid() {
		return []any{"trace_id", id.String()}
	}
	return nil
}

// logOutcome logs the outcome of a lease, before a caller has the segment. Compared with
// etcd's history, these lines show which transactions failed although they were applied.
//
//	segment leased  it is ours; revision is the mark's
//	segment lost    it is not, and the transaction may have been done
//	lease refused   it is not; the transaction was not done, unless it was sent twice
func (s *tagSource) logOutcome(state *State, seg allocator.Segment, took time.Duration, done bool, err error) {
	log := s.instance.ledger.log
	if !log.IsDebug() {
		return
	}
	log = log.With("room", s.instance.room, "instance", s.instance.name, "tag", s.name, "epoch", state.epoch,
		"version", seg.Version, "boundary", seg.Boundary, "lower", seg.Range.Lower, "upper", seg.Range.Upper, "first",
		seg.First, "count", seg.Count, "took_us", took.Microseconds())
	switch {
	case done:
		log.Debug("segment leased", "revision", s.revision)
	case err != nil:
		log.Debug("segment lost", "error", err)
	default:
		log.Debug("lease refused")
	}
}
