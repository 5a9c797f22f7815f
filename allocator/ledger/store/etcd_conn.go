package store

import (
	"context"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// traced returns the interceptor that makes spans of transactions. Watches and heartbeats
// belong to no caller and have no spans.
func traced(tracer trace.TracerProvider) []grpc.DialOption {
	if tracer == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(tracer),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(filters.MethodName("Txn")),
	))}
}

// failFast makes calls fail at once, with the reason, while there is no connection. The
// client's default is to wait for the call's deadline; the ledger retries by itself.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// endings counts the connections that end, from either side.
type endings etcd

// HandleConn implements stats.Handler.
func (e *endings) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		e.ended.Add(1)
	}
}

// HandleRPC implements stats.Handler.
func (*endings) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn implements stats.Handler.
func (*endings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (*endings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
