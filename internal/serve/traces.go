package serve

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// TracesConfig are the settings of traces.
type TracesConfig struct {
	// URL is that of an OTLP receiver, over gRPC: http://HOST:PORT, or
	// https://HOST:PORT for TLS.
	URL string
	// Ratio is the share of traces that are kept, 0 to 1, of those that begin here.
	// A trace that a caller began is kept if the caller keeps it.
	Ratio float64
	// Service and Instance name this process.
	Service, Instance string
	// Build is the program's version.
	Build string
}

// NewTraces returns a provider that makes spans and sends them in the background,
// until its Shutdown, which sends the rest. Nothing waits for the receiver: if it
// is slow or away, spans are dropped.
func NewTraces(ctx context.Context, cfg TracesConfig) (*sdktrace.TracerProvider, error) {
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(cfg.URL),
		otlptracegrpc.WithTimeout(5*time.Second))
	if err != nil {
		return nil, err
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(ofCallers{sdktrace.TraceIDRatioBased(cfg.Ratio)})),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", cfg.Service), attribute.String("service.instance.id", cfg.Instance),
			attribute.String("service.version", cfg.Build),
		)),
	), nil
}

// ofCallers drops traces that would begin with a call to etcd: such a call is a
// heartbeat or a check for changes, and no caller waits for it.
type ofCallers struct{ sdktrace.Sampler }

func (c ofCallers) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if p.Kind == trace.SpanKindClient {
		return sdktrace.SamplingResult{Decision: sdktrace.Drop}
	}
	return c.Sampler.ShouldSample(p)
}

// grpcSpans are the options of spans of calls over gRPC.
func grpcSpans(tracer trace.TracerProvider, more ...otelgrpc.Option) []otelgrpc.Option {
	return append(more, otelgrpc.WithTracerProvider(tracer), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider()))
}

// callsIn returns the option that makes spans of the calls that a gRPC server answers, except of those that are
// untraced.
func callsIn(tracer trace.TracerProvider) grpc.ServerOption {
	return grpc.StatsHandler(otelgrpc.NewServerHandler(grpcSpans(tracer,
		otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool { return !untraced(info.FullMethodName) }))...))
}

// CallsOut returns options that make spans of the calls of a gRPC client, and send
// the trace's ID to its server; none if tracer is nil.
func CallsOut(tracer trace.TracerProvider) []grpc.DialOption {
	if tracer == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(grpcSpans(tracer)...))}
}

// untraced reports whether calls of a method have no span: calls that answer from
// memory, because a span would cost more than the rest. Work that they wait for has
// spans of its own.
func untraced(fullMethod string) bool {
	switch fullMethod {
	case marchv1.IDService_Next_FullMethodName, marchv1.IDService_NextBatch_FullMethodName,
		marchv1.IDService_NextMany_FullMethodName,
		marchv1.IDService_Lease_FullMethodName, marchv1.IDService_Stream_FullMethodName,
		healthpb.Health_Check_FullMethodName, healthpb.Health_Watch_FullMethodName:
		return true
	}
	return false
}

// untracedPath is untraced for requests over HTTP.
func untracedPath(path string) bool {
	switch path {
	case "/livez", "/readyz", "/metrics":
		return true
	}
	return strings.HasPrefix(path, "/v1/tags/") && (strings.HasSuffix(path, "/next") ||
		strings.HasSuffix(path, "/lease"))
}

// traced returns handler with a span for each request, except for those to untraced paths. These are still part of
// the trace that the caller named.
func traced(tracer trace.TracerProvider, handler http.Handler) http.Handler {
	spans := otelhttp.NewHandler(handler, "HTTP",
		otelhttp.WithTracerProvider(tracer),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string {
			if r.Pattern == "" {
				return "HTTP " + r.Method // it is not routed yet
			}
			return r.Pattern
		}),
	)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !untracedPath(r.URL.Path) {
			spans.ServeHTTP(w, r)
			return
		}
		if ctx := (propagation.TraceContext{}).Extract(r.Context(),
			propagation.HeaderCarrier(r.Header)); ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		handler.ServeHTTP(w, r)
	})
}

// Incoming returns ctx as part of the trace that the caller of a gRPC method named,
// if ctx has no span yet. It is for calls without a span of their own.
func Incoming(ctx context.Context) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	incoming, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx
	}
	carrier := propagation.MapCarrier{}
	for _, key := range (propagation.TraceContext{}).Fields() {
		if values := incoming.Get(key); len(values) > 0 {
			carrier[key] = values[0]
		}
	}
	return propagation.TraceContext{}.Extract(ctx, carrier)
}

// traceID returns the ID of ctx's trace as a pair for the log, or nil if it has
// none.
func traceID(ctx context.Context) []any {
	if id := trace.SpanContextFromContext(ctx).TraceID(); id.IsValid() {
		return []any{"trace_id", id.String()}
	}
	return nil
}
