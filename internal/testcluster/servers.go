package testcluster

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/room"
)

// Room is a running instance.
type Room struct {
	marchv1.IDServiceClient
	Conn    *grpc.ClientConn
	Address string
	// Stop stops the server and waits for its end. It may be called more than once.
	Stop func()
}

// Room starts an instance with the default configuration as change modifies it, and waits until
// it is ready.
func (c *Cluster) Room(in allocator.Room, name allocator.Instance, change func(*room.Config)) *Room {
	c.Helper()
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger = in, name, c.Ledger()
	if change != nil {
		change(&cfg)
	}
	if cfg.GRPC == nil {
		cfg.GRPC = Listen(c, "")
	}
	server, err := room.New(cfg)
	if err != nil {
		c.Fatal(err)
	}
	r := &Room{Address: cfg.GRPC.Addr().String(), Stop: Run(c, server.Run)}
	r.Conn = Dial(c, r.Address)
	r.IDServiceClient = marchv1.NewIDServiceClient(r.Conn)
	Await(c, "room "+string(in)+" is ready", func() bool { return server.Ready() == nil })
	return r
}

// Console is a running console.
type Console struct {
	marchv1.ConsoleServiceClient
	Conn *grpc.ClientConn
	// HTTP is the address of its HTTP side.
	HTTP string
	// Stop stops the server and waits for its end. It may be called more than once.
	Stop func()
}

// Console starts a console with the default configuration as change modifies it.
func (c *Cluster) Console(change func(*console.Config)) *Console {
	c.Helper()
	cfg := console.DefaultConfig()
	cfg.Ledger, cfg.GRPC = c.Ledger(), Listen(c, "")
	if change != nil {
		change(&cfg)
	}
	if cfg.HTTP == nil {
		cfg.HTTP = Listen(c, "")
	}
	server, err := console.New(cfg)
	if err != nil {
		c.Fatal(err)
	}
	s := &Console{Stop: Run(c, server.Run), Conn: Dial(c, cfg.GRPC.Addr().String()), HTTP: cfg.HTTP.Addr().String()}
	s.ConsoleServiceClient = marchv1.NewConsoleServiceClient(s.Conn)
	return s
}

// Run runs a server until stop is called or the test ends. An error of the server fails the
// test.
func Run(tb testing.TB, server func(context.Context) error) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- server(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-stopped:
			if err != nil {
				tb.Errorf("run: %v", err)
			}
		case <-time.After(Patience):
			tb.Error("a server did not stop")
		}
	})
	tb.Cleanup(stop)
	return stop
}

// Listen listens at an address; anywhere on this machine if it is empty.
func Listen(tb testing.TB, at string) net.Listener {
	tb.Helper()
	if at == "" {
		at = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

// Dial returns a connection to a server. It is closed when the test ends.
func Dial(tb testing.TB, address string) *grpc.ClientConn {
	tb.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Patience is how long a test waits for an event that takes milliseconds on an idle machine. It
// detects an event that never happens, and does not measure how long an event takes.
const Patience = time.Minute

// Await polls until done, or fails the test.
func Await(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(Patience); !done(); {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", Patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
