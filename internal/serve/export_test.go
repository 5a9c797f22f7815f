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
