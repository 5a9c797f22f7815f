package testcluster

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/room"
)

// Room is a running instance.
type Room struct {
	marchv1.IDServiceClient
	*Process
	In       allocator.Room
	Instance allocator.Instance
	Conn     *grpc.ClientConn
	Address  string
	// HTTP is the address of its HTTP side; empty if it has none.
	HTTP string
}

// Room starts an instance with the default configuration as change modifies it, and waits until
// it is ready.
func (c *Cluster) Room(in allocator.Room, name allocator.Instance, change func(*room.Config)) *Room {
	c.Helper()
	r, server := c.launch(in, name, change)
	Await(c, "room "+string(in)+" is ready", func() bool { return server.Ready() == nil })
	return r
}

// Launch is Room for an instance that need not become ready.
func (c *Cluster) Launch(in allocator.Room, name allocator.Instance, change func(*room.Config)) *Room {
	c.Helper()
	r, _ := c.launch(in, name, change)
	return r
}

func (c *Cluster) launch(in allocator.Room, name allocator.Instance, change func(*room.Config)) (*Room, *room.Server) {
	c.Helper()
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name = in, name
	cfg.Dial = func(address string, options ...grpc.DialOption) (grpc.ClientConnInterface, error) {
		return DialInstance(address, options...)
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.Ledger == nil {
		cfg.Ledger = c.Ledger()
	}
	if cfg.GRPC == nil {
		cfg.GRPC = Listen(c, "")
	}
	server, err := room.New(cfg)
	if err != nil {
		c.Fatalf("new: %v", err)
	}
	r := &Room{In: in, Instance: name, Address: cfg.GRPC.Addr().String(), Process: Start(c, server.Run)}
	if cfg.HTTP != nil {
		r.HTTP = cfg.HTTP.Addr().String()
	}
	r.Conn = Dial(c, r.Address)
	r.IDServiceClient = marchv1.NewIDServiceClient(r.Conn)
	return r, server
}

// Console is a running console.
type Console struct {
	marchv1.ConsoleServiceClient
	*Process
	Conn *grpc.ClientConn
	// HTTP is the address of its HTTP side.
	HTTP string
}

// Console starts a console with the default configuration as change modifies it.
func (c *Cluster) Console(change func(*console.Config)) *Console {
	c.Helper()
	cfg := console.DefaultConfig()
	cfg.Dial = DialInstance
	if change != nil {
		change(&cfg)
	}
	if cfg.Ledger == nil {
		cfg.Ledger = c.Ledger()
	}
	if cfg.GRPC == nil {
		cfg.GRPC = Listen(c, "")
	}
	if cfg.HTTP == nil {
		cfg.HTTP = Listen(c, "")
	}
	server, err := console.New(cfg)
	if err != nil {
		c.Fatal(err)
	}
	s := &Console{Process: Start(c, server.Run), Conn: Dial(c, cfg.GRPC.Addr().String()),
		HTTP: cfg.HTTP.Addr().String()}
	s.ConsoleServiceClient = marchv1.NewConsoleServiceClient(s.Conn)
	return s
}

// Process is a server that runs in the test's process. It stops when the test ends.
type Process struct {
	// Cancel has the server stop, and does not wait for it.
	Cancel context.CancelFunc

	tb    testing.TB
	ended chan struct{} // closed when the server has returned
	err   error         // of the server, then
	judge sync.Once     // over err: by Wait's caller, or else by Stop
}

// Start starts a server.
func Start(tb testing.TB, server func(context.Context) error) *Process {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{Cancel: cancel, tb: tb, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.err = server(ctx)
	}()
	tb.Cleanup(p.Stop)
	return p
}

// Wait waits until the server ends, and returns its error.
func (p *Process) Wait() error {
	p.tb.Helper()
	p.judge.Do(func() {})
	select {
	case <-p.ended:
		return p.err
	case <-time.After(Patience):
		p.tb.Fatal("a server did not stop")
		return nil
	}
}

// Stop stops the server and waits for its end. An error of the server fails the test, unless
// Wait has returned it. Stop may be called more than once.
func (p *Process) Stop() {
	p.tb.Helper()
	p.Cancel()
	select {
	case <-p.ended:
		p.judge.Do(func() {
			if p.err != nil {
				p.tb.Errorf("run: %v", p.err)
			}
		})
	case <-time.After(Patience):
		p.tb.Error("a server did not stop")
	}
}

// Run runs a server until stop is called or the test ends. An error of the server fails the
// test.
func Run(tb testing.TB, server func(context.Context) error) (stop func()) {
	tb.Helper()
	return Start(tb, server).Stop
}

// Serve serves gRPC until the test ends, and returns the address.
func Serve(tb testing.TB, s *grpc.Server) (address string) {
	tb.Helper()
	l := Listen(tb, "")
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	tb.Cleanup(func() {
		s.Stop()
		// A server that was stopped before it served says so.
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			tb.Error(err)
		}
	})
	return l.Addr().String()
}

// Get asks an HTTP side; code 0 when it does not answer.
func Get(address, path string) (code int, body string) {
	r, err := Client().Get("http://" + address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}
