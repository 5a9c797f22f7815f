package serve

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/throttle"
)

// Limits bound how much of a server callers may use at once. A caller is an IPv4
// address, or a /64 of IPv6, which is one machine's.
type Limits struct {
	// Each connection costs about 30 KiB.
	Connections int `flag:"max-connections" least:"1" most:"10000000" help:"how many connections may be open, gRPC and HTTP together"`

	CallerConnections int `flag:"max-caller-connections" least:"1" most:"10000000" help:"how many connections one caller (an IP address) may have"`
	// Clients learn of it and wait. Each stream costs about 15 KiB.
	ConnectionStreams int `flag:"max-connection-streams" least:"1" most:"10000000" help:"how many calls and streams may be under way on one gRPC connection"`
	// CallerStreams counts over all gRPC connections of a caller, together with its requests over HTTP/2.
	CallerStreams int `flag:"max-caller-streams" least:"1" most:"10000000" help:"how many calls and streams one caller may have under way over gRPC"`
	// An eager stream takes as much of a server as it can get.
	OpenStreams int `flag:"max-caller-open-streams" least:"1" most:"10000000" help:"how many gRPC streams one caller (a subject, or else an IP address) may have open"`
	// The connection of the last one is closed, and for 1 s calls on new connections of the address are refused.
	Resets int `flag:"max-resets" least:"1" most:"10000000" help:"how many calls an address may give up over gRPC before their requests came, besides as many as it asked"`
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits {
	return Limits{
		Connections: 10_000, CallerConnections: 1_000, ConnectionStreams: 1_000, CallerStreams: 10_000,
		OpenStreams: 32, Resets: 500,
	}
}

// limits are Limits with the metrics of each.
type limits struct {
	connections, callerConnections, connectionStreams, callerStreams, openStreams, resets *Limit
}

func newLimits(of Limits, m *Metrics) limits {
	limit := func(name string, most int) *Limit { return m.Limit(name, int64(most)) }
	return limits{
		limit("connections", of.Connections), limit("caller-connections", of.CallerConnections),
		limit("connection-streams", of.ConnectionStreams), limit("caller-streams", of.CallerStreams),
		limit("caller-open-streams", of.OpenStreams), limit("resets", of.Resets),
	}
}

// soon is when a caller may try again that has too much open: some of it has ended by then.
const soon = time.Second

// Limit is a limit on how much of a server callers may use. All limits of the
// program use this type, so each has a metric and an error of the same form.
type Limit struct {
	name    string // the flag's name without --max-
	most    int64
	refused prometheus.Counter // nil without metrics
}

// Limit returns a limit, and adds metrics of it and of its refusals. m may be nil.
func (m *Metrics) Limit(name string, most int64) *Limit {
	l := &Limit{name: name, most: most}
	if m != nil {
		m.limits.WithLabelValues(name).Set(float64(most))
		l.refused = m.refused.WithLabelValues(name)
	}
	return l
}

// Most returns the bound.
func (l *Limit) Most() int64 { return l.most }

// Count counts a refusal.
func (l *Limit) Count() {
	if l.refused != nil {
		l.refused.Inc()
	}
}

// Refuse counts a refusal and returns the caller's error, which is TooMany and says after how long the caller may try
// again. what names the objects that are too many.
func (l *Limit) Refuse(what string, after time.Duration) error {
	l.Count()
	return &allocator.WaitError{After: after, Err: allocator.OverLimit(what, l.most, l.name)}
}

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
	return access.Network(tcp.AddrPort().Addr())
}

// callers counts the open connections and streams of each caller.
type callers struct {
	limits  limits
	log     hclog.Logger
	refused throttle.Log
	shaken  throttle.Log // connections whose TLS did not begin
	turns   *turns
	mu      struct {
		sync.Mutex
		open    int                    // connections, of all callers
		by      map[netip.Addr]*caller // with connections, or barred
		streams map[string]int64       // open, by subject or address
	}
}

// caller counts the open connections and calls of one address.
type caller struct {
	streams     atomic.Int64 // calls and streams under way
	asked       atomic.Int64 // calls of which the server had the request, since the last bar
	givenUp     atomic.Int64 // calls that ended before, since the last bar
	barred      atomic.Int64 // no call on a new connection before; in Unix nanoseconds
	connections int          // guarded by callers.mu
}

// barredFor is how long calls on new connections of an address are refused after one of its connections was
// closed for the calls that it gave up. Otherwise its client could go on at once, and such calls would cost it
// only a connection each time. The connections that the address has stay open, and their calls are served.
const barredFor = time.Second

// mostBarred is how many calls a new connection of a barred address makes before it is closed.
const mostBarred = 10

func newCallers(l limits, log hclog.Logger) *callers {
	c := &callers{limits: l, log: log, turns: newTurns()}
	c.mu.by, c.mu.streams = make(map[netip.Addr]*caller), make(map[string]int64)
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
	case who != nil && int64(who.connections) >= l.callerConnections.Most():
		err = l.callerConnections.Refuse("connections of one caller", soon)
	case int64(c.mu.open) >= l.connections.Most():
		err = l.connections.Refuse("connections", soon)
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

// leave stops counting a connection of a caller. A caller without connections is remembered for as long as a bar
// lasts: it may come back at once, and the calls of the connection may end after it.
func (c *callers) leave(at netip.Addr, who *caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	who.connections--
	c.mu.open--
	if who.connections == 0 {
		time.AfterFunc(2*barredFor, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.mu.by[at] == who && who.connections == 0 && who.barred.Load() <= time.Now().UnixNano() {
				delete(c.mu.by, at)
			}
		})
	}
}

// bar closes a connection, and refuses calls on new connections of its address for a while.
func (c *callers) bar(conn *connection, now time.Time) {
	err := c.limits.resets.Refuse("calls given up before their request came", barredFor)
	c.refused.Log(now, c.log.Warn, "connection closed", "caller", conn.at, "error", err)
	conn.who.barred.Store(now.Add(barredFor).UnixNano())
	conn.who.asked.Store(0)
	conn.who.givenUp.Store(0)
	_ = conn.Close()
}

// metrics returns the metrics of what is open.
func (c *callers) metrics() []prometheus.Collector {
	return []prometheus.Collector{
		gauge("march_connections", "Open connections, gRPC and HTTP.", func() float64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return float64(c.mu.open)
		}),
		gauge("march_streams", "Calls and streams under way over gRPC, and requests over HTTP/2.", func() (n float64) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, who := range c.mu.by {
				n += float64(who.streams.Load())
			}
			return n
		}),
	}
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
			return &connection{Conn: conn, callers: l.callers, at: at, who: who, began: time.Now(),
				unsent: unsent{written: make(chan struct{}, 1)}}, nil
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
	began   time.Time
	refused atomic.Int64 // calls refused or given up while the address was barred
	unsent  unsent
	closed  sync.Once
}

// late reports whether a connection began while its address was barred, and the address still is.
func (c *connection) late(now time.Time) bool {
	until := c.who.barred.Load()
	return now.UnixNano() < until && c.began.UnixNano() >= until-int64(barredFor)
}

// refuse counts a call on a late connection. It closes the connection of a client that goes on calling.
func (c *connection) refuse() error {
	if c.refused.Add(1) > mostBarred {
		_ = c.Close()
	}
	return c.callers.limits.resets.Refuse("calls given up lately by this address", barredFor)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.closed.Do(func() { c.callers.leave(c.at, c.who) })
	return err
}

// NetConn returns the connection below, as that of a *tls.Conn does. The caller's place among the
// connections is free once c is closed, even if the one below was closed before.
func (c *connection) NetConn() net.Conn { return c.Conn }

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

// peers makes a connection and its peer known to HTTP's handlers, as gRPC does to its own.
func peers(ctx context.Context, conn net.Conn) context.Context {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: conn.RemoteAddr()})
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if c, ok := conn.(*connection); ok {
		ctx = context.WithValue(ctx, connectionKey{}, c)
	}
	return ctx
}

// bounded returns a handler that passes requests to next. Those over HTTP/2 are many at once on a connection, so it
// counts them with their caller's calls over gRPC.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor < 2 {
			next.ServeHTTP(w, r)
			return
		}
		if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
			defer c.who.streams.Add(-1)
			if limit := c.callers.limits.callerStreams; c.who.streams.Add(1) > limit.Most() {
				WriteError(w, limit.Refuse("calls and streams under way of one caller", soon))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
