package ledger

import (
	"context"

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
