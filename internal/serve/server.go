// Package serve serves gRPC and HTTP the same way in rooms and consoles. It bounds sizes
// and times, answers errors as package api defines them, logs unforeseen errors, and counts
// and traces calls. It serves health, reflection, /livez, /readyz and /metrics, over TLS
// where it has a certificate (tls.go). A server that listens on a loopback address answers
// no HTTP request under a foreign name (hosts.go). A server that stops lets the calls under
// way finish.
package serve

import (
	"context"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/observe"
)

// Config are the settings of a server.
type Config struct {
	// GRPC and HTTP are where to listen; Run closes them. HTTP may be nil.
	GRPC, HTTP net.Listener
	// TLS has the certificate that GRPC and HTTP serve with; nil serves without TLS.
	TLS *tlsfiles.Files
	// Register registers the services.
	Register func(grpc.ServiceRegistrar)
	// Admin is what is for operators. It has listeners of its own, or else GRPC and HTTP serve
	// it, too.
	Admin Admin
	// Health has the answers of gRPC's health service; the caller keeps it up to
	// date.
	Health *health.Server
	// Ready returns the checks of readiness: if one failed, /readyz answers 503.
	Ready func(context.Context) []Check
	// Problems, if set, returns the problems, one line each, which /readyz shows below
	// the checks.
	Problems func(context.Context) []string
	// Metrics counts calls, and /metrics shows it in Prometheus's formats; nil for
	// none.
	Metrics *observe.Metrics
	// Tracer makes a span of each call, except of those that issue IDs; nil makes
	// none.
	Tracer trace.TracerProvider
	// Logger logs calls that failed unexpectedly; nil logs nothing.
	Logger hclog.Logger
	// Routes, if set, adds more HTTP routes to the mux. They must stay within the
	// server's time limits or lift them for their own route
	// (http.ResponseController).
	Routes func(*http.ServeMux)
	// Windows says that browsers keep many windows live at once. Over TLS they share a connection then (HTTP/2): of
	// HTTP/1.1 a browser opens no more than six.
	Windows bool
	// Access checks each call and request; nil for none. Sessions returns the login of a
	// browser, nil for none.
	Access   *access.Gate
	Sessions func(*http.Request) *access.Session
	// AllowedHosts are host names that HTTP requests may have besides localhost and
	// loopback addresses, if HTTP listens on such an address: the names that a
	// proxy in front passes on. See CheckHosts.
	AllowedHosts []string
	// MaxRequest bounds a gRPC request, in bytes.
	MaxRequest int
	// Limits bound how much each caller may use; the zero value is DefaultLimits.
	Limits Limits
	// Drain is how long calls under way may take at the end.
	Drain time.Duration
	// Doors are served beside gRPC and HTTP, under the same limits of connections.
	Doors []Door
	// Draining, if set, is called when the drain begins.
	Draining func()
}

// Admin is what a server has for operators. Metrics and reflection belong to it.
type Admin struct {
	// GRPC and HTTP are where to listen; Run closes them. If GRPC is nil there is no address
	// for operators alone. HTTP may be nil: then HTTP serves operators nowhere.
	GRPC, HTTP net.Listener
	// Register registers the services; nil for none.
	Register func(grpc.ServiceRegistrar)
	// Routes, if set, adds HTTP routes to the mux, besides Config.Routes.
	Routes func(*http.ServeMux)
}

// Door serves the clients of another protocol.
type Door struct {
	Listener net.Listener
	// TLS has the certificate; nil serves without TLS.
	TLS *tlsfiles.Files
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
		ConnContext: peers, ErrorLog: log.New(doorErrors{}, "", 0),
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
	if cfg.Metrics != nil { // first, and so outside the interceptor that turns errors into statuses
		cfg.Metrics.Register(callers, newBroken(cfg.TLS))
		if cfg.Access == nil {
			access.ShowMetrics(cfg.Metrics)
		}
		requests = observe.NewRequests(cfg.Metrics)
		options = append(options, grpc.ChainUnaryInterceptor(requests.Unary),
			grpc.ChainStreamInterceptor(requests.Stream))
	}
	if cfg.Tracer != nil {
		options = append(options, grpc.StatsHandler(observe.Calls(cfg.Tracer, untraced)))
	}
	options = append(options,
		grpc.ChainUnaryInterceptor(asks, failed.unary),
		grpc.ChainStreamInterceptor(asksStream, failed.stream),
	)
	if cfg.Access != nil {
		options = append(options, grpc.ChainUnaryInterceptor(cfg.Access.Unary),
			grpc.ChainStreamInterceptor(cfg.Access.Stream))
	}
	options = append(options,
		grpc.ChainStreamInterceptor(callers.bound),
		grpc.MaxRecvMsgSize(cfg.MaxRequest),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
			PermitWithoutStream: true}),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxConcurrentStreams(uint32(cfg.Limits.ConnectionStreams)),
		// gRPC would let them grow to 16 MiB, which are a million requests that wait.
		grpc.StaticStreamWindowSize(64<<10),
		grpc.StaticConnWindowSize(1<<20),
		grpc.ReadBufferSize(mostRead),
		grpc.Creds(newWatched(cfg.TLS)),
		grpc.InTapHandle(admit),
		grpc.WaitForHandlers(true), // Stop too: no call outlives Run
	)
	serve, serving := errgroup.WithContext(ctx)
	sides := cfg.sides()
	for _, s := range sides { // all, before any of them serves
		s.make(cfg, options, requests, callers)
	}
	for _, s := range sides {
		serve.Go(func() error { return s.serveGRPC(callers) })
		if s.at.HTTP != nil {
			serve.Go(func() error { return s.serveHTTP(callers, cfg) })
		}
	}
	for _, d := range cfg.Doors {
		serve.Go(func() error { return d.Run(serving, securedDoor(&listener{d.Listener, callers}, d.TLS)) })
	}
	<-serving.Done()

	if cfg.Draining != nil {
		cfg.Draining()
	}
	cfg.Health.Shutdown()
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
	defer cancel()
	var ending sync.WaitGroup
	for _, s := range sides {
		ending.Go(func() { s.end(draining) })
	}
	ending.Wait()
	return serve.Wait()
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
