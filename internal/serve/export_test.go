package serve

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
)

// Traced has spans for requests.
var Traced = traced

// Counted returns the interceptors of a server of these services, and what it puts around the handlers of HTTP.
func Counted(m *Metrics, services map[string]grpc.ServiceInfo) (grpc.UnaryServerInterceptor,
	grpc.StreamServerInterceptor, func(http.Handler) http.Handler) {
	c := &calls{log: hclog.NewNullLogger(), requests: newRequests(m)}
	c.requests.serves(services)
	return c.unary, c.stream, c.requests.http
}

// Bounded serves a connection whose caller may have so many requests over HTTP/2 under way.
func Bounded(most int, next http.Handler) http.Handler {
	limits := DefaultLimits()
	limits.CallerStreams = most
	conn := &connection{callers: newCallers(newLimits(limits, nil), hclog.NewNullLogger()), who: &caller{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bounded(next).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), connectionKey{}, conn)))
	})
}

// CallerAt returns the caller at an address.
var CallerAt = callerAt

// BarTwice bars an address for each of two connections, one half of the time later. It returns how many callers are
// remembered.
func BarTwice(at netip.Addr) (remembered func() int) {
	c := newCallers(newLimits(DefaultLimits(), nil), hclog.NewNullLogger())
	for range 2 {
		client, server := net.Pipe()
		conn := &connection{Conn: server, callers: c, at: at, who: c.enter(at, time.Now())}
		c.bar(conn, time.Now())
		_ = client.Close()
		time.Sleep(barredFor / 2)
	}
	return func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.mu.by)
	}
}

// MostUnsent and UnsentFor bound the answers that wait at a connection, and for how long a stream waits for them.
const MostUnsent, UnsentFor = mostUnsent, unsentFor

// Unsent is what waits at a connection: Add adds bytes, Wrote notes that some were written, and Wait waits.
type Unsent struct{ unsent }

// NewUnsent returns an empty one.
func NewUnsent() *Unsent { return &Unsent{unsent{written: make(chan struct{}, 1)}} }

// Add adds bytes.
func (u *Unsent) Add(n int64) { u.bytes.Add(n) }

// Wrote notes that some were written.
func (u *Unsent) Wrote(n int) { u.wrote(n) }

// Wait waits until there are few.
func (u *Unsent) Wait(ctx context.Context) { u.wait(ctx) }
