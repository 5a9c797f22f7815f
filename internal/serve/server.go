// Package serve serves gRPC and HTTP the same way in rooms and consoles. It bounds sizes
// and times, answers errors as package api defines them, logs unforeseen errors, and counts
// and traces calls. It serves health, reflection, /livez, /readyz and /metrics, over TLS
// where it has a certificate (tls.go). A server that listens on a loopback address answers
// no HTTP request under a foreign name (hosts.go). A server that stops lets the calls under
// way finish.
//
// # Life of a request over HTTP/JSON
//
//  1. The OpenAPI 3 document defines the routes, their methods, parameters and bodies. It
//     is generated from the protos and from api/march/v1/http.yaml, and GET
//     /v1/openapi.json answers it. Anything that it does not name is an error and not
//     ignored (check.go): an unknown parameter, a parameter that is given twice, a
//     body that is no JSON object.
//  2. grpc-gateway, in this process, turns the request into a message, calls the
//     service, and turns the answer back. Such a call does not pass through the gRPC
//     server and its interceptors, so rest.go does their work: it words errors as
//     package api defines them, names the caller for the audit, bounds the body and
//     the time, and recovers from panics.
//  3. Two routes do not use the gateway: POST /v1/tags/{tag}/next, for speed
//     (next.go), and the watch of a migration, as the gateway has no streams in
//     process (watch.go).
//
// # Invariants of HTTP/JSON
//
//  1. A request that may issue IDs or change anything is never a GET, and every answer
//     says Cache-Control: no-store. So no proxy or cache repeats or keeps an ID.
//  2. Such a request is refused if a browser sends it for a page of another origin
//     (http.CrossOriginProtection). No CORS header is ever sent. A page whose own name
//     leads to this machine is refused, too (hosts.go).
//  3. Every error is a JSON object of the form march.v1.Error, except if net/http
//     refuses a request before it is read (a malformed line or header).
//  4. Integers of 64 bits are JSON strings, as everywhere in March.
package serve

import (
	"context"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/keepalive"

	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
)

// Settings are what rooms and consoles have in common.
type Settings struct {
	// GRPC and HTTP are where to listen; Run closes them. HTTP may be nil.
	GRPC, HTTP net.Listener
	// TLS has the certificate that GRPC and HTTP serve with; nil serves without TLS.
	TLS *tlsfiles.Files
	// Access checks each call and request; nil lets every caller make every call.
	Access *access.Gate
	Hosts
	// Limits bound how much each caller may use; the zero value is DefaultLimits.
	Limits Limits
	Drain  time.Duration `flag:"drain" least:"0s" help:"how long calls under way may take at the end"`
	// Metrics counts calls, and /metrics shows it in Prometheus's formats; nil for
	// none.
	Metrics *Metrics
	// Tracer makes a span of each call, except of those that issue IDs; nil makes
	// none.
	Tracer trace.TracerProvider
	// Logger logs calls that failed unexpectedly; nil logs nothing.
	Logger hclog.Logger
}

// Config are the settings of a server, and what it serves.
type Config struct {
	Settings
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
	// Routes, if set, adds more HTTP routes to the mux. They must stay within the
	// server's time limits or lift them for their own route
	// (http.ResponseController).
	Routes func(*http.ServeMux)
	// Windows says that browsers keep many windows live at once. Over TLS they share a connection then (HTTP/2): of
	// HTTP/1.1 a browser opens no more than six.
	Windows bool
	// Sessions returns the login of a browser, nil for none.
	Sessions func(*http.Request) *access.Session
	// MaxRequest bounds a gRPC request, in bytes.
	MaxRequest int
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
func NewHTTP(handler http.Handler) *http.Server { return newHTTP(handler, nil) }

// newHTTP is NewHTTP with the callers' log; nil is the one of the process.
func newHTTP(handler http.Handler, c *callers) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
		ConnContext: peers, ErrorLog: log.New(httpErrors{c}, "", 0),
	}
}

// Run serves until ctx ends, then lets the calls under way finish, for Drain at
// most, and returns nil; or it returns the error of a listener that failed.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits()
	}
	callers := newCallers(newLimits(cfg.Limits, cfg.Metrics), cfg.Logger)
	calls := &calls{log: cfg.Logger}
	if cfg.Metrics != nil {
		calls.requests = newRequests(cfg.Metrics)
		cfg.Metrics.Register(append(callers.metrics(), newBroken(cfg.TLS))...)
		if cfg.Access == nil {
			access.ShowMetrics(cfg.Metrics.Register)
		}
	}
	options := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(calls.unary, cfg.Access.Unary),
		grpc.ChainStreamInterceptor(calls.stream, cfg.Access.Stream, callers.bound),
		grpc.MaxRecvMsgSize(cfg.MaxRequest),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
			PermitWithoutStream: true}),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxConcurrentStreams(uint32(cfg.Limits.ConnectionStreams)),
		// gRPC would let them grow to 16 MiB, which are a million requests that wait.
		grpc.StaticStreamWindowSize(64 << 10),
		grpc.StaticConnWindowSize(1 << 20),
		grpc.ReadBufferSize(mostRead),
		grpc.Creds(newWatched(cfg.TLS)),
		grpc.InTapHandle(admit),
		grpc.WaitForHandlers(true), // Stop too: no call outlives Run
	}
	if cfg.Tracer != nil {
		options = append(options, callsIn(cfg.Tracer))
	}
	serve, serving := errgroup.WithContext(ctx)
	sides := cfg.sides()
	for _, s := range sides { // all, before any of them serves
		s.make(cfg, options, calls.requests, callers)
	}
	for _, s := range sides {
		serve.Go(func() error { return s.serveGRPC(callers) })
		if s.at.HTTP != nil {
			serve.Go(func() error { return s.serveHTTP(callers, cfg) })
		}
	}
	for _, d := range cfg.Doors {
		serve.Go(func() error { return d.Run(serving, secured(&listener{d.Listener, callers}, d.TLS, d.TLS.Server)) })
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
