// Package serve serves gRPC and HTTP the same way in rooms and consoles. It bounds sizes
// and times, answers errors as package api defines them, logs unforeseen errors, and
// counts and traces calls. It serves health, reflection, /livez, /readyz and /metrics. A
// server that listens on a loopback address answers no HTTP request under a foreign name
// (hosts.go). A server that stops lets the calls under way finish.
package serve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/observe"
)

// Config says what is served.
type Config struct {
	// GRPC and HTTP are where to listen; Run closes them. HTTP may be nil.
	GRPC, HTTP net.Listener
	// Register registers the services.
	Register func(grpc.ServiceRegistrar)
	// Health is what gRPC's health service answers; its owner keeps it.
	Health *health.Server
	// Ready returns what readiness rests on: where one check failed /readyz answers
	// 503.
	Ready func(context.Context) []Check
	// Problems, where it is set, returns what is wrong, a line each: where /readyz shows
	// the checks, it shows these too.
	Problems func(context.Context) []string
	// Metrics is what calls are counted in, and what /metrics shows, in
	// Prometheus's formats; nil for none.
	Metrics *observe.Metrics
	// Tracer makes a span of each call, but for those that issue IDs; nil makes
	// none.
	Tracer trace.TracerProvider
	// Logger is told of calls that failed and should not have; nil logs nothing.
	Logger hclog.Logger
	// Routes, where it is set, adds what else HTTP serves to the mux; it must stay
	// within the server's time limits or lift them for its own route
	// (http.ResponseController).
	Routes func(*http.ServeMux)
	// AllowedHosts are names by which HTTP may be called besides localhost and
	// loopback addresses, where it listens on such an address: those that a proxy
	// in front passes on. CheckHosts says which are good.
	AllowedHosts []string
	// MaxRequest bounds a gRPC request, in bytes.
	MaxRequest int
	// Limits bound what callers may take; the zero value is DefaultLimits.
	Limits Limits
	// Drain is how long calls under way may take at the end.
	Drain time.Duration
	// Doors are served beside gRPC and HTTP, under the same limits of connections.
	Doors []Door
	// Draining, where it is set, is called when the drain begins.
	Draining func()
}

// Door serves the clients of another protocol.
type Door struct {
	Listener net.Listener
	// Run serves the connections of a listener until the context ends, then lets the
	// calls under way finish, closes the listener and returns nil.
	Run func(context.Context, net.Listener) error
}

// maxHeader bounds a call's headers, in bytes, of gRPC and of HTTP.
const maxHeader = 16 << 10

// NewHTTP returns a server of HTTP with the bounds that all servers here have. Its handlers
// know the peer, as those of gRPC do.
func NewHTTP(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
		ConnContext: peers,
	}
}

// Run serves until ctx ends, then lets the calls under way finish, for Drain at
// most, and returns nil; or it returns the error of a listener that failed.
func Run(ctx context.Context, cfg Config) error {
	failed := &failures{log: cfg.Logger}
	if failed.log == nil {
		failed.log = hclog.NewNullLogger()
	}
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits()
	}
	limits := newLimits(cfg.Limits, cfg.Metrics)
	callers := newCallers(limits, failed.log)
	var requests *observe.Requests
	var options []grpc.ServerOption
	if cfg.Metrics != nil { // first, and so around what turns errors into statuses
		cfg.Metrics.Register(callers)
		requests = observe.NewRequests(cfg.Metrics)
		options = append(options, grpc.ChainUnaryInterceptor(requests.Unary), grpc.ChainStreamInterceptor(requests.Stream))
	}
	if cfg.Tracer != nil {
		options = append(options, grpc.StatsHandler(observe.Calls(cfg.Tracer, untraced)))
	}
	g := grpc.NewServer(append(options,
		grpc.ChainUnaryInterceptor(failed.unary),
		grpc.ChainStreamInterceptor(boundAnswers(limits.streamAnswers), failed.stream),
		grpc.MaxRecvMsgSize(cfg.MaxRequest),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxConcurrentStreams(uint32(cfg.Limits.ConnectionStreams)),
		// gRPC would let them grow to 16 MiB, which are a million requests that wait.
		grpc.StaticStreamWindowSize(64<<10),
		grpc.StaticConnWindowSize(1<<20), // bounds nothing that waits: it is given anew when bytes are read
		grpc.WriteBufferSize(mostWritten),
		grpc.Creds(newWatched()),
		grpc.InTapHandle(admit),
		grpc.WaitForHandlers(true), // Stop too: no call outlives Run
	)...)
	cfg.Register(g)
	healthpb.RegisterHealthServer(g, cfg.Health)
	reflection.Register(g)
	if requests != nil {
		requests.Serves(g.GetServiceInfo())
	}
	h := NewHTTP(handler(cfg, requests))

	serve, serving := errgroup.WithContext(ctx)
	serve.Go(func() error {
		// ctx may end before this begins: then the error is ErrServerStopped.
		if err := g.Serve(&listener{cfg.GRPC, callers}); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	if cfg.HTTP != nil {
		serve.Go(func() error {
			if err := h.Serve(&listener{cfg.HTTP, callers}); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	for _, d := range cfg.Doors {
		serve.Go(func() error { return d.Run(serving, &listener{d.Listener, callers}) })
	}
	<-serving.Done()

	if cfg.Draining != nil {
		cfg.Draining()
	}
	cfg.Health.Shutdown()
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
	defer cancel()
	stop := context.AfterFunc(draining, g.Stop)
	g.GracefulStop()
	stop()
	if h.Shutdown(draining) != nil {
		_ = h.Close()
	}
	return serve.Wait()
}

// untraced are the calls without a span: those that answer from memory, where a
// span would cost more than the rest. Work that they wait for has spans of its own.
func untraced(fullMethod string) bool {
	switch fullMethod {
	case marchv1.IDService_Next_FullMethodName, marchv1.IDService_NextBatch_FullMethodName,
		marchv1.IDService_Lease_FullMethodName, marchv1.IDService_Stream_FullMethodName,
		healthpb.Health_Check_FullMethodName, healthpb.Health_Watch_FullMethodName:
		return true
	}
	return false
}

// handler serves /livez, /readyz and /metrics.
func handler(cfg Config, requests *observe.Requests) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", answer("livez", func(context.Context) []Check { return []Check{{Name: "ping"}} }, nil))
	mux.HandleFunc("GET /readyz", answer("readyz", cfg.Ready, cfg.Problems))
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics.Gatherer(), promhttp.HandlerOpts{}))
	}
	if cfg.Routes != nil {
		cfg.Routes(mux)
	}
	var h http.Handler = mux
	if cfg.HTTP != nil {
		h = guardHosts(cfg.HTTP.Addr(), cfg.AllowedHosts, h)
	}
	if requests != nil {
		h = requests.HTTP(h)
	}
	if cfg.Tracer != nil {
		h = observe.HTTP(cfg.Tracer, h, untracedPath)
	}
	return h
}

// untracedPath says of requests over HTTP what untraced does of calls.
func untracedPath(path string) bool {
	switch path {
	case "/livez", "/readyz", "/metrics":
		return true
	}
	return strings.HasPrefix(path, "/v1/tags/") && (strings.HasSuffix(path, "/next") || strings.HasSuffix(path, "/lease"))
}
