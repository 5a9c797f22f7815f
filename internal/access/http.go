package access

import (
	"net"
	"net/http"
	"strings"

	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/rest"
)

// HTTP returns a handler that finds out the subject of each request, for Conn and IDs, and
// checks /metrics. Health checks need no identity. session returns the login
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
		ctx, on := r.Context(), connectionOf(r)
		p, err := on.remembered(g, r), error(nil)
		if p == nil {
			p, err = g.prove(r, session)
			on.remember(r, p)
		}
		if err != nil {
			g.refused(ctx, unknown, nil, "", err)
		} else if path == "/metrics" {
			err = g.Check(ctx, p.subject, policy.Request{Call: metrics})
		}
		switch {
		case err != nil:
			w.Header().Set("Cache-Control", "no-store")
			rest.WriteError(w, err)
		case on != nil && issues(r):
			on.serving.Store(p)
			next.ServeHTTP(w, r)
			on.serving.Store(nil)
		default:
			known := r.WithContext(with(ctx, p.subject, p.credentials))
			next.ServeHTTP(w, known)
			r.Pattern = known.Pattern // for metrics and traces
		}
	})
}

// prove returns the caller of a request; nil with an error, which is that of Authenticate.
func (g *Gate) prove(r *http.Request, session func(*http.Request) *Session) (*proven, error) {
	c, err := ofRequest(r)
	if err != nil {
		return nil, err
	}
	if path := r.URL.Path; session != nil && c.Token == "" && c.Certificate == nil &&
		!strings.HasPrefix(path, "/v1/") && path != "/metrics" {
		c.Session = session(r)
	}
	s, err := g.Authenticate(r.Context(), c)
	if err != nil && c.Session != nil { // the login has ended: the page asks for another one
		c.Session = nil
		s, err = g.current.Load().anonymous, nil
	}
	if err != nil {
		return nil, err
	}
	return &proven{s, c}, nil
}

// ofRequest returns the credentials of a request over HTTP.
func ofRequest(r *http.Request) (c Credentials, err error) {
	if r.TLS != nil {
		c.verifiedBy(r.TLS.VerifiedChains)
	}
	c.Address = r.RemoteAddr
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		c.Address = host
	}
	switch given := r.Header["Authorization"]; len(given) {
	case 0:
	case 1:
		c.Token, err = bearer(given[0])
	default:
		err = givenTwice(len(given))
	}
	return c, err
}
