package access

import (
	"net"
	"net/http"
	"strings"

	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/rest"
)

// HTTP returns a handler that finds out the subject of each request, for the wrappers of the
// services, and checks /metrics. Health checks need no identity. session returns the login
// of a browser, nil for none; it may be nil. Only pages take a login: programs, which call
// /v1/, give a token or a certificate with each request.
func (g *Gate) HTTP(next http.Handler, session func(*http.Request) *Session) http.Handler {
	if g == nil {
		return next
	}
	metrics := policy.CallOf(policy.Metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if path == "/livez" || path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		c, err := ofRequest(r)
		if err == nil && session != nil && c.Token == "" && c.Certificate == nil && !strings.HasPrefix(path, "/v1/") && path != "/metrics" {
			c.Session = session(r)
		}
		ctx := r.Context()
		var s *Subject
		if err == nil {
			s, err = g.Authenticate(ctx, c)
		}
		if err != nil && c.Session != nil { // the login has ended: the page asks for another one
			c.Session = nil
			s, err = g.current.Load().anonymous, nil
		}
		if err != nil {
			g.refused(ctx, "unknown", nil, "", err)
		} else if path == "/metrics" {
			err = g.Check(ctx, s, policy.Request{Call: metrics})
		}
		if err != nil {
			w.Header().Set("Cache-Control", "no-store")
			rest.WriteError(w, err)
			return
		}
		known := r.WithContext(with(ctx, s, c))
		next.ServeHTTP(w, known)
		r.Pattern = known.Pattern // for metrics and traces
	})
}

// ofRequest returns the credentials of a request over HTTP.
func ofRequest(r *http.Request) (c Credentials, err error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.VerifiedChains[0]) > 0 {
		c.Certificate = r.TLS.VerifiedChains[0][0]
	}
	c.Address = r.RemoteAddr
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		c.Address = host
	}
	if given := r.Header["Authorization"]; len(given) > 0 {
		c.Token, err = bearer(given[0])
	}
	return c, err
}
