package testcluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api"
)

// Bubble runs a test in a bubble of testing/synctest, beside other tests. There New has a store in
// memory, and Listen, Dial, DialContext and Client a network of pipes, as one real socket would
// stop the bubble's clock. The time is past the epochs of time-ordered IDs.
func Bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)))
		test(t)
	})
}

// Listen listens at an address; anywhere on this machine if it is empty.
func Listen(tb testing.TB, at string) net.Listener {
	tb.Helper()
	if at == "" {
		at = "127.0.0.1:0"
	}
	listen := net.Listen
	if ledgertest.InBubble() {
		listen = pipes.listen
	}
	l, err := listen("tcp", at)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

// DialContext connects to what listens by Listen.
func DialContext(ctx context.Context, address string) (net.Conn, error) {
	if ledgertest.InBubble() {
		return pipes.dial(ctx, address)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// Dial returns a connection to a server. It is closed when the test ends.
func Dial(tb testing.TB, address string, opts ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	options := []grpc.DialOption{grpc.WithContextDialer(DialContext),
		grpc.WithTransportCredentials(insecure.NewCredentials())}
	if ledgertest.InBubble() {
		options = append(options, grpc.WithChainUnaryInterceptor(tripTime))
	}
	conn, err := grpc.NewClient(address, append(options, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// tripTime lets a call in a bubble take a millisecond: callers that ask without a pause would keep
// its clock from going on.
func tripTime(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	time.Sleep(time.Millisecond)
	return call(ctx, method, request, answer, conn, opts...)
}

// DialInstance is how consoles connect to instances.
func DialInstance(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return api.Dial(address, append(options, grpc.WithContextDialer(DialContext))...)
}

// Client returns a client of HTTP that keeps no connections.
func Client() *http.Client {
	return &http.Client{Timeout: Patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return DialContext(ctx, address)
		}}}
}

// network has the listeners of all bubbles of this process by address, as a machine has those of
// its sockets. No two of them have the same address.
type network struct {
	sync.Mutex
	at   map[string]*pipeListener
	port int // the last that was given
}

var pipes = network{at: map[string]*pipeListener{}, port: 10_000}

// backlog is how many connections wait for Accept, as with sockets.
const backlog = 128

// pipeListener is a net.Listener over pipes.
type pipeListener struct {
	addr  *net.TCPAddr
	conns chan net.Conn

	mu     sync.Mutex
	closed bool // then conns is closed, too
}

// listen is net.Listen.
func (n *network) listen(_, at string) (net.Listener, error) {
	parsed, err := netip.ParseAddrPort(at)
	if err != nil {
		return nil, err
	}
	addr := net.TCPAddrFromAddrPort(parsed)
	n.Lock()
	defer n.Unlock()
	if addr.Port == 0 {
		n.port++
		addr.Port = n.port
	}
	if n.at[addr.String()] != nil {
		return nil, fmt.Errorf("listen %v: the address is in use", addr)
	}
	l := &pipeListener{addr: addr, conns: make(chan net.Conn, backlog)}
	n.at[addr.String()] = l
	return l, nil
}

// dial connects to an address.
func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.Lock()
	l := n.at[address]
	n.Unlock()
	refused := fmt.Errorf("dial tcp %s: connect: connection refused", address)
	if l == nil {
		return nil, refused
	}
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} // no reader of it needs the port
	client, server := net.Pipe()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, refused
	}
	select {
	case l.conns <- pipeConn{server, l.addr, from}:
		return pipeConn{client, from, l.addr}, nil
	default:
		return nil, refused
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	if conn, ok := <-l.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *pipeListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	pipes.Lock()
	delete(pipes.at, l.addr.String())
	pipes.Unlock()
	close(l.conns)
	for conn := range l.conns { // that no Accept took
		_ = conn.Close()
	}
	return nil
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return l.addr }

// pipeConn is one end of a connection.
type pipeConn struct {
	net.Conn
	local, remote net.Addr
}

// LocalAddr implements net.Conn.
func (c pipeConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c pipeConn) RemoteAddr() net.Addr { return c.remote }

// Patience is how long a test waits for an event that takes milliseconds on an idle machine. It
// detects an event that never happens, and does not measure how long an event takes.
const Patience = 10 * time.Minute

// Await polls until done, or fails the test. It polls ever more rarely, as a poll may be the work of a whole server,
// and finds an event late by a hundredth of the time that the event took.
func Await(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	every := 2 * time.Millisecond
	if ledgertest.InBubble() { // where waiting costs nothing, and a poll the same
		every = 50 * time.Millisecond
	}
	for began := time.Now(); !done(); time.Sleep(max(every, time.Since(began)/100)) {
		if time.Since(began) > Patience {
			tb.Fatalf("not within %v: %s", Patience, what)
		}
	}
}
