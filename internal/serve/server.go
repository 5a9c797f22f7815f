// Package serve serves gRPC and HTTP the same way in rooms and consoles. It bounds sizes
// and times, answers errors as package api defines them, logs unforeseen errors, and counts
// and traces calls. It serves health, reflection, /livez, /readyz and /metrics, over TLS
// where it has a certificate. A server that listens on a loopback address answers
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
//     process (rest.go).
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
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/march-id/march/allocator"
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

// side is a server over gRPC and HTTP. There is one for callers and one for operators, or one
// for both. Each has the health checks.
type side struct {
	at        Admin // its listeners and services
	operators bool  // it has what is for operators
	grpc      *grpc.Server
	http      *http.Server
}

// sides returns the servers, which are not made yet.
func (cfg Config) sides() []*side {
	callers := &side{at: Admin{GRPC: cfg.GRPC, HTTP: cfg.HTTP, Register: cfg.Register, Routes: cfg.Routes},
		operators: true}
	if cfg.Admin.GRPC != nil {
		callers.operators = false
		return []*side{callers, {at: cfg.Admin, operators: true}}
	}
	callers.at.Register = func(r grpc.ServiceRegistrar) {
		cfg.Register(r)
		if cfg.Admin.Register != nil {
			cfg.Admin.Register(r)
		}
	}
	callers.at.Routes = func(mux *http.ServeMux) {
		for _, add := range []func(*http.ServeMux){cfg.Routes, cfg.Admin.Routes} {
			if add != nil {
				add(mux)
			}
		}
	}
	return []*side{callers}
}

func (s *side) make(cfg Config, options []grpc.ServerOption, requests *requests, callers *callers) {
	s.grpc = grpc.NewServer(options...)
	s.at.Register(s.grpc)
	healthpb.RegisterHealthServer(s.grpc, cfg.Health)
	if s.operators {
		reflection.Register(s.grpc)
	}
	if requests != nil {
		requests.serves(s.grpc.GetServiceInfo())
	}
	s.http = newHTTP(bounded(s.handler(cfg, requests)), callers)
	// net/http would read frames of 1 MiB, and keep a connection for ever whose client reads nothing.
	s.http.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: cfg.Limits.ConnectionStreams, MaxReadFrameSize: 16 << 10,
		MaxReceiveBufferPerStream: 64 << 10, WriteByteTimeout: 30 * time.Second}
}

func (s *side) serveGRPC(callers *callers) error {
	// The context may end before this begins: then the error is ErrServerStopped.
	return stopped(s.grpc.Serve(&listener{s.at.GRPC, callers}), grpc.ErrServerStopped)
}

func (s *side) serveHTTP(callers *callers, cfg Config) error {
	var more []string
	if cfg.Windows {
		more = []string{"h2"}
	}
	return stopped(s.http.Serve(secured(&listener{s.at.HTTP, callers}, cfg.TLS, cfg.TLS.ServerOptional, more...)),
		http.ErrServerClosed)
}

// stopped returns why a server ended, nil if it was stopped.
func stopped(err, good error) error {
	if errors.Is(err, good) {
		return nil
	}
	return err
}

// end lets the calls under way finish until a context ends.
func (s *side) end(draining context.Context) {
	stop := context.AfterFunc(draining, s.grpc.Stop)
	s.grpc.GracefulStop()
	stop()
	if s.http.Shutdown(draining) != nil {
		_ = s.http.Close()
	}
}

// handler serves /livez and /readyz, and to operators /metrics.
func (s *side) handler(cfg Config, requests *requests) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", answer("livez", func(context.Context) []Check { return []Check{{Name: "ping"}} }, nil))
	mux.HandleFunc("GET /readyz", answer("readyz", cfg.Ready, cfg.Problems))
	if cfg.Metrics != nil && s.operators {
		mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics.Gatherer(),
			promhttp.HandlerOpts{EnableOpenMetrics: true})) // which has exemplars
	}
	if s.at.Routes != nil {
		s.at.Routes(mux)
	}
	h := requireCertificate(cfg.TLS, cfg.Access.HTTP(mux, cfg.Sessions, WriteError))
	if s.at.HTTP != nil {
		h = GuardHosts(s.at.HTTP.Addr(), cfg.AllowedHosts, h)
	}
	if requests != nil {
		h = requests.http(h)
	}
	if cfg.Tracer != nil {
		h = traced(cfg.Tracer, h)
	}
	return h
}

// Wait runs until, and returns its error, or that of the listener. Meanwhile it answers
// /livez, /readyz and /metrics over cfg.HTTP, which may be nil, and 503 under all other
// paths. Then cfg.HTTP is open still, for Run: the address is never free for another
// process, and connections that come in between are answered by Run.
func Wait(ctx context.Context, cfg Config, until func(context.Context) error) error {
	if cfg.HTTP == nil {
		return until(ctx)
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	cfg.Routes = func(mux *http.ServeMux) {
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "not ready: "+oneLine(Failed(cfg.Ready(r.Context())).Error()), http.StatusServiceUnavailable)
		})
	}
	kept := &keptListener{Listener: cfg.HTTP}
	waiting := &side{at: Admin{HTTP: kept, Routes: cfg.Routes}, operators: true}
	callers := newCallers(newLimits(DefaultLimits(), nil), cfg.Logger)
	h := newHTTP(waiting.handler(cfg, nil), callers)
	waiting.http = h
	work, working := errgroup.WithContext(ctx)
	work.Go(func() error { return waiting.serveHTTP(callers, cfg) })
	work.Go(func() error {
		err := until(working)
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if h.Shutdown(ending) != nil {
			_ = h.Close()
		}
		return err
	})
	return errors.Join(work.Wait(), kept.reopen())
}

// keptListener is a listener whose Close only ends Accept.
type keptListener struct{ net.Listener }

func (l *keptListener) Close() error { return l.deadline(time.Unix(1, 0)) }

func (l *keptListener) reopen() error { return l.deadline(time.Time{}) }

func (l *keptListener) deadline(at time.Time) error {
	if tcp, ok := l.Listener.(interface{ SetDeadline(t time.Time) error }); ok {
		return tcp.SetDeadline(at)
	}
	return errors.ErrUnsupported
}

// newBroken returns a metric of whether the files of a server's certificate can be used. files
// may be nil.
func newBroken(files *tlsfiles.Files) prometheus.Collector {
	return gauge("march_certificate_broken", "1 if the files of the server's certificate cannot be used, "+
		"so that the last good ones are in force.", func() float64 {
		if files.Broken() != nil {
			return 1
		}
		return 0
	})
}

// secured returns a listener that speaks TLS if there is a certificate; more are protocols besides HTTP/1.1.
func secured(l net.Listener, files *tlsfiles.Files, serves func(...string) *tls.Config, more ...string) net.Listener {
	if !files.Serves() {
		return l
	}
	return tls.NewListener(l, serves(append(more, "http/1.1")...))
}

// requireCertificate returns a handler that passes requests to next. Where clients must have
// a certificate it refuses those without one, except for health checks: TLS takes clients without a certificate, too.
func requireCertificate(files *tlsfiles.Files, next http.Handler) http.Handler {
	if !files.RequiresClient() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" || r.URL.Path == "/readyz" || r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			next.ServeHTTP(w, r)
			return
		}
		WriteError(w, allocator.Errorf(allocator.Unauthenticated,
			"this server takes clients with a certificate only (--tls-client-auth), and this one gave none"))
	})
}

func (c *callers) handshake(from string, err any) {
	c.shaken.Log(time.Now(), c.log.Warn, "TLS handshake failed", "caller", from, "error", err)
}

// httpErrors writes the lines that net/http logs: to the log of the callers, or of the process for a door, which has
// none.
type httpErrors struct{ callers *callers }

func (h httpErrors) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	failed, is := strings.CutPrefix(text, "http: TLS handshake error from ")
	switch from, why, _ := strings.Cut(failed, ": "); {
	case is && h.callers == nil: // each port scan fails a handshake
	case is:
		h.callers.handshake(from, why)
	case h.callers == nil:
		log.Print(text)
	default:
		h.callers.log.Error("HTTP", "error", text)
	}
	return len(line), nil
}

// Check is one condition of a server's health.
type Check struct {
	Name string
	// Err is why it failed, or nil.
	Err error
	// Note is more information on a check that passed.
	Note string
	// Family says that the check is of one kind of what the server serves. The server is ready while one of these
	// passes: what is wrong with one family takes no other away from its callers.
	Family bool
}

// Failed returns why a server is not ready, or nil: the error of the first check that failed, or that of the
// first family where all of them failed.
func Failed(checks []Check) (err error) {
	one := false // family passed
	for _, c := range checks {
		switch {
		case c.Err != nil && !c.Family:
			return c.Err
		case c.Err != nil && err == nil:
			err = c.Err
		}
		one = one || c.Family && c.Err == nil
	}
	if one {
		return nil
	}
	return err
}

// answer serves checks as Kubernetes' own servers do: 200 and ok, or 503 and all
// checks, a line each; ?verbose has the lines either way. Below the checks are problems,
// which may be nil.
func answer(name string, checks func(context.Context) []Check,
	problems func(context.Context) []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		list := checks(r.Context())
		header := w.Header()
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		verdict := "passed"
		if Failed(list) != nil {
			verdict = "failed"
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if !r.URL.Query().Has("verbose") {
			_, _ = fmt.Fprintln(w, "ok")
			return
		}
		var b strings.Builder
		for _, c := range list {
			b.WriteString(c.line())
		}
		if problems != nil {
			for _, p := range problems(r.Context()) {
				b.WriteString("[!]" + oneLine(p) + "\n")
			}
		}
		_, _ = fmt.Fprintf(w, "%s%s check %s\n", b.String(), name, verdict)
	}
}

// line returns a line such as "[+]layout ok: version 3".
func (c Check) line() string {
	mark, text := "[+]"+c.Name+" ok", c.Note
	if c.Err != nil {
		mark, text = "[-]"+c.Name+" failed", c.Err.Error()
	}
	if text != "" {
		text = ": " + oneLine(text)
	}
	return mark + text + "\n"
}

// oneLine joins the lines of a text, which errors.Join makes.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
