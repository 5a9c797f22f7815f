package serve

import (
	"bytes"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api/tlsfiles"
)

// newBroken returns a metric of whether the files of a server's certificate can be used. files
// may be nil.
func newBroken(files *tlsfiles.Files) prometheus.Collector {
	return gauge("march_certificate_broken", "1 if the files of the server's certificate cannot be used, "+
		"so that the last good ones are in force.", func() float64 {
		if files.Broken() != nil {
			return 1
		}
		return 0
	})
}

// secured returns a listener that speaks TLS if there is a certificate; more are protocols besides HTTP/1.1.
func secured(l net.Listener, files *tlsfiles.Files, serves func(...string) *tls.Config, more ...string) net.Listener {
	if !files.Serves() {
		return l
	}
	return tls.NewListener(l, serves(append(more, "http/1.1")...))
}

// requireCertificate returns a handler that passes requests to next. Where clients must have
// a certificate it refuses those without one, except for health checks: TLS takes clients without a certificate, too.
func requireCertificate(files *tlsfiles.Files, next http.Handler) http.Handler {
	if !files.RequiresClient() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" || r.URL.Path == "/readyz" || r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			next.ServeHTTP(w, r)
			return
		}
		WriteError(w, allocator.Errorf(allocator.Unauthenticated,
			"this server takes clients with a certificate only (--tls-client-auth), and this one gave none"))
	})
}

// handshake logs a connection whose TLS did not begin.
func (c *callers) handshake(from string, err any) {
	c.shaken.Log(time.Now(), c.log.Warn, "TLS handshake failed", "caller", from, "error", err)
}

// httpErrors writes the lines that net/http logs: to the log of the callers, or of the process for a door, which has
// none.
type httpErrors struct{ callers *callers }

// Write implements io.Writer.
func (h httpErrors) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	failed, is := strings.CutPrefix(text, "http: TLS handshake error from ")
	switch from, why, _ := strings.Cut(failed, ": "); {
	case is && h.callers == nil: // each port scan fails a handshake
	case is:
		h.callers.handshake(from, why)
	case h.callers == nil:
		log.Print(text)
	default:
		h.callers.log.Error("HTTP", "error", text)
	}
	return len(line), nil
}
