package serve

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/throttle"
)

// Caller returns the address for which a call is counted: the peer's IPv4 address, or
// its /64 of IPv6; the zero address if there is no peer.
func Caller(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return callerAt(p.Addr)
}

func callerAt(at net.Addr) netip.Addr {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		if network, err := ip.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return ip
}

// callers counts the open connections and streams of each caller.
type callers struct {
	limits  limits
	log     hclog.Logger
	refused throttle.Log
	shaken  throttle.Log // connections whose TLS did not begin
	turns   *turns
	chunks  sync.Pool // of *[chunkSize]byte
	mu      struct {
		sync.Mutex
		open int                    // connections, of all callers
		by   map[netip.Addr]*caller // with connections, or barred
	}
}

// caller counts the open connections and streams of one caller.
type caller struct {
	streams     atomic.Int64 // open; 0 when its last connection is closed
	connections int          // guarded by callers.mu
	barred      time.Time    // no new connections before; guarded by callers.mu
}

// barredFor is how long a caller may open no connection after one was closed
// because of its resets. Otherwise it could come back at once, and too many resets
// would cost it only a connection each time.
const barredFor = 10 * time.Second

func newCallers(l limits, log hclog.Logger) *callers {
	c := &callers{limits: l, log: log, turns: newTurns(l.busyStreams.Most())}
	c.mu.by = make(map[netip.Addr]*caller)
	return c
}

// enter counts a connection from an address, and returns its caller. It returns nil
// if the caller, or all callers together, have too many.
func (c *callers) enter(at netip.Addr, now time.Time) *caller {
	c.mu.Lock()
	defer c.mu.Unlock()
	who := c.mu.by[at]
	var err error
	switch l := c.limits; {
	case who != nil && now.Before(who.barred):
		err = l.resets.Refuse("resets lately")
	case who != nil && int64(who.connections) >= l.callerConnections.Most():
		err = l.callerConnections.Refuse("connections of one caller")
	case int64(c.mu.open) >= l.connections.Most():
		err = l.connections.Refuse("connections")
	default:
		if who == nil {
			who = &caller{}
			c.mu.by[at] = who
		}
		who.connections++
		c.mu.open++
		return who
	}
	c.refused.Log(now, c.log.Warn, "connection refused", "caller", at, "error", err)
	return nil
}

// leave stops counting a connection of a caller.
func (c *callers) leave(at netip.Addr, who *caller, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	who.connections--
	c.mu.open--
	c.forget(at, who, now)
}

// forget drops a caller without connections that is not barred. The callers' lock
// is held.
func (c *callers) forget(at netip.Addr, who *caller, now time.Time) {
	if c.mu.by[at] == who && who.connections == 0 && !now.Before(who.barred) {
		delete(c.mu.by, at)
	}
}

// bar refuses a caller's new connections for a while.
func (c *callers) bar(at netip.Addr, who *caller, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Forget the caller afterwards, so that the map does not grow. The timer of its
	// last connection finds that the bar has ended.
	time.AfterFunc(barredFor, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.forget(at, who, time.Now())
	})
	who.barred = now.Add(barredFor)
	err := c.limits.resets.Refuse(fmt.Sprintf("resets of one connection in %v", resetWindow))
	c.refused.Log(now, c.log.Warn, "connection closed", "caller", at, "error", err)
}

// Describe implements prometheus.Collector.
func (c *callers) Describe(out chan<- *prometheus.Desc) {
	out <- descConnections
	out <- descStreams
}

var (
	descConnections = prometheus.NewDesc("march_connections", "Open connections, gRPC and HTTP.", nil, nil)
	descStreams     = prometheus.NewDesc("march_streams", "Calls and streams under way over gRPC.", nil, nil)
)

// Collect implements prometheus.Collector.
func (c *callers) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	open, streams := c.mu.open, int64(0)
	for _, who := range c.mu.by {
		streams += who.streams.Load()
	}
	c.mu.Unlock()
	out <- prometheus.MustNewConstMetric(descConnections, prometheus.GaugeValue, float64(open))
	out <- prometheus.MustNewConstMetric(descStreams, prometheus.GaugeValue, float64(streams))
}

// listener accepts connections within the limits.
type listener struct {
	net.Listener
	callers *callers
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		at := callerAt(conn.RemoteAddr())
		if who := l.callers.enter(at, time.Now()); who != nil {
			return &connection{Conn: conn, callers: l.callers, at: at, who: who}, nil
		}
		_ = conn.Close()
	}
}

// connection is a caller's connection.
type connection struct {
	net.Conn
	callers *callers
	at      netip.Addr
	who     *caller
	closed  sync.Once
}

// Close implements net.Conn.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.closed.Do(func() { c.callers.leave(c.at, c.who, time.Now()) })
	return err
}

// NetConn returns the connection below, as that of a *tls.Conn does. The caller's place among the
// connections is free once c is closed, even if the one below was closed before.
func (c *connection) NetConn() net.Conn { return c.Conn }

// peers makes a connection's peer known to HTTP's handlers, as gRPC does to its
// own. A gate may remember the connection's caller.
func peers(ctx context.Context, conn net.Conn) context.Context {
	return access.Connection(peer.NewContext(ctx, &peer.Peer{Addr: conn.RemoteAddr()}))
}
