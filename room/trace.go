package room

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/serve"
)

// span begins a span of work that callers of a tag wait for, if spans are made, and
// returns the function that ends it. IDs from memory have no span, because a span
// would cost more than the ID.
func (p *process) span(ctx context.Context, operation string, tag allocator.Tag) (context.Context, func(error)) {
	return p.spanOf(ctx, operation, attribute.String("march.tag", string(tag)))
}

// workerSpan is span of what is asked of etcd for a worker of some bits: by a caller, or to
// renew a window.
func (p *process) workerSpan(ctx context.Context, operation string, bits int) (context.Context, func(error)) {
	return p.spanOf(ctx, operation, attribute.Int("march.worker_bits", bits))
}

func (p *process) spanOf(ctx context.Context, operation string, of attribute.KeyValue) (context.Context, func(error)) {
	if p.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := p.cfg.Tracer.Tracer("github.com/march-id/march/room").Start(serve.Incoming(ctx), operation, trace.WithAttributes( //nolint:spancheck // see below
		attribute.String("march.room", string(p.cfg.Room)), attribute.String("march.instance", string(p.cfg.Name)),
		of,
	))
	return ctx, func(err error) { //nolint:spancheck // it ends the span, and every caller defers or calls it
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
