package serve

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
)

// Any site can point its own name at this machine (DNS rebinding). For the browser, a
// server that listens here then belongs to the site, so the origin that the browser
// sends does not help. But the browser also sends the site's name, as the request's
// Host. A server that listens only on a loopback address gets requests only from this
// machine, under this machine's names. A request under another name comes from such a
// page, or through a proxy, whose name the operator gives.

// Hosts are the names under which a server is called.
type Hosts struct {
	AllowedHosts []string `flag:"allowed-hosts" help:"host names besides localhost that HTTP requests may have if the server listens on a loopback address: the name of a proxy that passes its own name on"`
}

// CheckHosts checks Hosts. Its error is Invalid.
func CheckHosts(names []string) error {
	for _, name := range names {
		if _, err := netip.ParseAddr(name); err != nil && !HostName.MatchString(name) {
			return allocator.Errorf(allocator.Invalid,
				"allowed-hosts: %.100q; allowed: names or addresses, without a port", name)
		}
	}
	return nil
}

// HostName matches the names of hosts.
var HostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})$`)

// GuardHosts returns a handler that passes requests to next. If the server listens on a
// loopback address, the handler refuses requests under foreign names. Health checks
// are answered under any name, because they show no secret.
func GuardHosts(at net.Addr, allowed []string, next http.Handler) http.Handler {
	tcp, ok := at.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() {
		return next
	}
	names := map[string]bool{"localhost": true}
	for _, name := range allowed {
		names[canonical(name)] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if own(names, hostOf(r.Host)) || r.URL.Path == "/livez" || r.URL.Path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		message := fmt.Sprintf("host: %.100q; allowed: localhost and loopback addresses, "+
			"as this server listens on %s alone, and names given by --allowed-hosts", r.Host, tcp.IP)
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			WriteError(w, &refusal{http.StatusMisdirectedRequest, codes.PermissionDenied, message})
			return
		}
		http.Error(w, message, http.StatusMisdirectedRequest)
	})
}

// own reports whether a name is one of names, or a loopback address. It is on the
// hot path.
func own(names map[string]bool, name string) bool {
	if names[name] {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback() || names[canonical(name)]
}

// hostOf returns a request's Host without the port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// canonical returns the one way to write a name or an address.
func canonical(name string) string {
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(name), ".")
}

// Page sets the headers of a page's answers. sources are where its policy lets more come from than pictures and style
// sheets of its own.
func Page(sources string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", "default-src 'none'; "+sources+
			"style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "same-origin")
		head.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
