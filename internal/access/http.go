package access

import (
	"crypto/x509"
	"net"
	"net/http"
	"strings"

	"github.com/march-id/march/internal/access/policy"
)

// HTTP returns a handler that finds out the subject of each request, for Conn and IDs, and
// checks /metrics. Health checks need no identity. session returns the login
// of a browser, nil for none; it may be nil. Only pages take a login: programs, which call
// /v1/, give a token or a certificate with each request. refuse answers with an error.
func (g *Gate) HTTP(next http.Handler, session func(*http.Request) *Session,
	refuse func(http.ResponseWriter, error)) http.Handler {
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
		s, c, err := g.prove(r, session)
		if err != nil {
			g.refused(r.Context(), unknown, nil, "", err)
		} else if path == "/metrics" {
			err = g.Check(r.Context(), s, policy.Request{Call: metrics})
		}
		if err != nil {
			w.Header().Set("Cache-Control", "no-store")
			refuse(w, err)
			return
		}
		known := r.WithContext(with(r.Context(), s, c))
		next.ServeHTTP(w, known)
		r.Pattern = known.Pattern // for metrics and traces
	})
}

// prove returns the caller of a request. Its errors are those of Authenticate.
func (g *Gate) prove(r *http.Request, session func(*http.Request) *Session) (s *Subject, c Credentials, err error) {
	if c, err = ofRequest(r); err != nil {
		return nil, c, err
	}
	if path := r.URL.Path; session != nil && c.Token == "" && c.Certificate == nil &&
		!strings.HasPrefix(path, "/v1/") && path != "/metrics" {
		c.Session = session(r)
	}
	s, err = g.Authenticate(r.Context(), c)
	if err != nil && c.Session != nil { // the login has ended: the page asks for another one
		c.Session = nil
		return g.current.Load().anonymous, c, nil
	}
	return s, c, err
}

// ofRequest returns the credentials of a request over HTTP.
func ofRequest(r *http.Request) (Credentials, error) {
	var chains [][]*x509.Certificate
	if r.TLS != nil {
		chains = r.TLS.VerifiedChains
	}
	return credentialsOf(AddressOf(r), chains, r.Header["Authorization"])
}

// AddressOf returns where a request comes from, without the port.
func AddressOf(r *http.Request) string {
	if address, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return address
	}
	return r.RemoteAddr
}
