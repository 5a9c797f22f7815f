package console

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/oklog/ulid/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/server"
	"github.com/march-id/march/console/web"
)

// Config says which cluster a console is of.
type Config struct {
	// Ledger is the cluster. The server does not close it.
	Ledger *ledger.Ledger
	// GRPC and HTTP are where it listens; Run closes them. HTTP may be nil.
	GRPC, HTTP net.Listener
	// Drain is how long calls under way may take at the end. Default 5 s.
	Drain time.Duration
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// DefaultConfig returns the defaults. Ledger and GRPC must be set.
func DefaultConfig() Config { return Config{Drain: 5 * time.Second} }

// Server is a console.
type Server struct {
	marchv1.UnimplementedConsoleServiceServer

	cfg    Config
	log    hclog.Logger
	ledger *ledger.Ledger
	rooms  dialer
	health *health.Server
	pages  *web.Handler

	samples  *looked[sample]
	tags     *looked[*tagIndex]
	reading  atomic.Int64  // tags read so far, of the index being made
	name     string        // this process's, its own
	stopping chan struct{} // closed when the drain begins
}

// New checks cfg. Its error is Invalid.
func New(cfg Config) (*Server, error) {
	if cfg.Ledger == nil || cfg.GRPC == nil {
		return nil, allocator.Errorf(allocator.Invalid, "console: no ledger or no gRPC listener given")
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	host, err := os.Hostname()
	if err != nil {
		host = "console"
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, ledger: cfg.Ledger, health: health.NewServer(),
		samples: newLooked[sample](), tags: newLooked[*tagIndex](),
		name: host + "-" + ulid.Make().String(), stopping: make(chan struct{}),
	}
	s.pages, err = web.New(web.Config{Console: s, Stopping: s.stopping, Logger: s.log.Named("web")})
	return s, err
}

// Run serves until ctx ends, finishes the calls under way, and returns nil; or
// the error of a listener that failed.
func (s *Server) Run(ctx context.Context) error {
	defer s.rooms.close()
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	s.health.SetServingStatus(marchv1.ConsoleService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	s.log.Info("ready", "grpc", s.cfg.GRPC.Addr())
	background, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { s.drive(background) })
	work.Go(func() { s.samples.run(background, s.look) })
	work.Go(func() { s.tags.run(background, s.readTags) })
	defer work.Wait()
	defer stop()
	err := server.Run(ctx, server.Config{
		GRPC: s.cfg.GRPC, HTTP: s.cfg.HTTP, Health: s.health, MaxRequest: 1 << 20, Drain: s.cfg.Drain,
		Register: func(r grpc.ServiceRegistrar) { marchv1.RegisterConsoleServiceServer(r, s) },
		Ready:    s.ready,
		Routes:   s.pages.Routes,
		Draining: func() { close(s.stopping) },
	})
	s.log.Info("stopped")
	return err
}

// ready checks that etcd answers: without it a console can do nothing.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return s.ledger.Ping(ctx)
}
