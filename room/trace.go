package room

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/observe"
)

// span begins a span of what callers of a tag wait for, where spans are made,
// and returns what ends it. IDs from memory have none: to make one would cost
// more than to issue the ID.
func (s *Server) span(ctx context.Context, operation string, tag allocator.Tag) (context.Context, func(error)) {
	if s.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := s.cfg.Tracer.Tracer("github.com/march-id/march/room").Start(observe.Incoming(ctx), operation, trace.WithAttributes( //nolint:spancheck // see below
		attribute.String("march.room", string(s.cfg.Room)), attribute.String("march.instance", string(s.cfg.Name)),
		attribute.String("march.tag", string(tag)),
	))
	return ctx, func(err error) { //nolint:spancheck // it ends the span, and every caller defers or calls it
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
