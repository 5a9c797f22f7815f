package serve

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

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
