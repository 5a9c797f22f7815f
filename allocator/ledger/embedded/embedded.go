// Package embedded runs a single etcd member inside this process: for
// `march dev` and for tests. Production uses an etcd cluster of its own.
package embedded

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/zaplog"
)

// Config says where the member lives.
type Config struct {
	// Dir keeps its data.
	Dir string
	// Client and Peer are the URLs it listens on: http://127.0.0.1:PORT, or
	// unix://PATH.
	Client, Peer string
	// TLS, if set, is for clients, and Client then is https://127.0.0.1:PORT. All clients must
	// have a certificate of its CA, which may name their user.
	TLS *TLS
	// NoSync is for tests. It leaves out fsync, so the data may not survive a crash of the
	// machine, and hashes passwords quickly.
	NoSync bool
	// ForceNewCluster makes a cluster of this member alone out of what Dir has of a
	// larger one.
	ForceNewCluster bool
	// Quota is how many bytes its database may have; 0 stands for etcd's default,
	// which is 2 GiB.
	Quota int64
	// Logger gets etcd's errors; nil logs nothing.
	Logger hclog.Logger
}

// TLS names the files of a member's TLS.
type TLS struct {
	CA, Cert, Key string // PEM
	Revoked       string // the serial numbers of revoked certificates of clients (DER)
}

// Server is a running member.
type Server struct {
	etcd *embed.Etcd
	mu   struct {
		sync.Mutex
		clients []*grpc.Server // what serves clients; known once etcd is ready
	}
}

// Start starts a member and waits until it serves, or ctx ends.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	c := embed.NewConfig()
	c.Dir = cfg.Dir
	c.Name = "dev"
	client, err := url.Parse(cfg.Client)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "etcd client URL: %w", err)
	}
	peer, err := url.Parse(cfg.Peer)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "etcd peer URL: %w", err)
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	c.TickMs, c.ElectionMs = 10, 100 // one member: there is no other to wait for
	c.UnsafeNoFsync, c.ForceNewCluster = cfg.NoSync, cfg.ForceNewCluster
	c.QuotaBackendBytes = cfg.Quota
	if cfg.NoSync {
		c.BcryptCost = 4 // its least: to check a password takes long on a busy machine
	}
	if cfg.TLS != nil {
		c.ClientTLSInfo = transport.TLSInfo{
			TrustedCAFile: cfg.TLS.CA, CertFile: cfg.TLS.Cert, KeyFile: cfg.TLS.Key, ClientCertAuth: true,
			CRLFile: cfg.TLS.Revoked,
		}
		c.EnableGRPCGateway = false // it would call as the member, whose certificate names no user
	}
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zaplog.New(log, hclog.Error, hclog.Error))
	s := &Server{}
	c.ServiceRegister = func(g *grpc.Server) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.clients = append(s.mu.clients, g)
	}
	c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.WaitForHandlers(true)}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("start the embedded etcd in %s: %w", cfg.Dir, err)
	}
	s.etcd = e
	select {
	case <-e.Server.ReadyNotify():
		return s, nil
	case err := <-e.Err():
		s.Close()
		return nil, fmt.Errorf("start the embedded etcd in %s: %w", cfg.Dir, err)
	case <-ctx.Done():
		s.Close()
		return nil, fmt.Errorf("start the embedded etcd in %s: %w", cfg.Dir, ctx.Err())
	}
}

// Failed returns a channel that gets an error when the member stops by itself.
func (s *Server) Failed() <-chan error { return s.etcd.Err() }

// Close stops the member and waits for it.
func (s *Server) Close() {
	// Stop the servers that answer clients first: etcd panics if a client asks for
	// the status of a member whose database is closed.
	s.mu.Lock()
	clients := s.mu.clients
	s.mu.Unlock()
	for _, c := range clients {
		stop(c)
	}
	s.etcd.Server.HardStop() // a graceful stop of a single member only waits
	s.etcd.Close()
}

// stop stops a server of clients, again and again until it has stopped. Over TLS it answers behind net/http, whose
// connections live on: a watch that a client begins just then is none of those that Stop ends, and Stop waits for it.
func stop(server *grpc.Server) {
	var stopping sync.WaitGroup
	stopped := make(chan struct{})
	stopping.Go(func() {
		server.Stop()
		close(stopped)
	})
	for again := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-stopped:
			again.Stop()
			stopping.Wait()
			return
		case <-again.C:
			stopping.Go(server.Stop)
		}
	}
}

// ReadyWithin is how long a start may take before it is called failed.
const ReadyWithin = 30 * time.Second
