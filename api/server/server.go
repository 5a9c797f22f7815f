// Package server serves gRPC and its HTTP side the same way in rooms and
// consoles: bounded sizes and times, errors as package api has them, health,
// reflection, /livez, /readyz and /metrics, and a stop that lets calls finish.
package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/march-id/march/api"
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
	// Metrics is what /metrics shows, in Prometheus's formats; nil for none.
	Metrics prometheus.Gatherer
	// Routes, where it is set, adds what else HTTP serves to the mux; it must stay
	// within the server's time limits or lift them for its own route
	// (http.ResponseController).
	Routes func(*http.ServeMux)
	// MaxRequest bounds a gRPC request, in bytes.
	MaxRequest int
	// Drain is how long calls under way may take at the end.
	Drain time.Duration
	// Draining, where it is set, is called when the drain begins.
	Draining func()
}

// maxHeader bounds a call's headers, in bytes, of gRPC and of HTTP.
const maxHeader = 16 << 10

// Run serves until ctx ends, then lets the calls under way finish, for Drain at
// most, and returns nil; or it returns the error of a listener that failed.
func Run(ctx context.Context, cfg Config) error {
	g := grpc.NewServer(
		grpc.ChainUnaryInterceptor(api.UnaryServerInterceptor),
		grpc.ChainStreamInterceptor(api.StreamServerInterceptor),
		grpc.MaxRecvMsgSize(cfg.MaxRequest),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.WaitForHandlers(true), // Stop too: no call outlives Run
	)
	cfg.Register(g)
	healthpb.RegisterHealthServer(g, cfg.Health)
	reflection.Register(g)
	h := &http.Server{
		Handler: handler(cfg), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
	}

	serve, serving := errgroup.WithContext(ctx)
	serve.Go(func() error {
		if err := g.Serve(cfg.GRPC); !errors.Is(err, grpc.ErrServerStopped) { // ctx may end before this begins
			return err
		}
		return nil
	})
	if cfg.HTTP != nil {
		serve.Go(func() error {
			if err := h.Serve(cfg.HTTP); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
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

// handler serves /livez, /readyz and /metrics.
func handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", answer("livez", func(context.Context) []Check { return []Check{{Name: "ping"}} }))
	mux.HandleFunc("GET /readyz", answer("readyz", cfg.Ready))
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{}))
	}
	if cfg.Routes != nil {
		cfg.Routes(mux)
	}
	return mux
}
