package serve_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/serve"
)

// hostAsked asks a server at an address for a path under a host name.
func hostAsked(at, host, path string, allowed ...string) (code int, kind, body string) {
	tcp := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(at))
	h := serve.GuardHosts(tcp, allowed, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
	r.Host = host
	h.ServeHTTP(w, r)
	return w.Code, w.Header().Get("Content-Type"), w.Body.String()
}

// TestHosts: a server on a loopback address answers only under its own names, because any other
// name could belong to a page elsewhere.
func TestHosts(t *testing.T) {
	const port = "7020"
	ask := func(host, path string) (int, string, string) {
		return hostAsked("127.0.0.1:"+port, host, path, "March.example", "192.0.2.7", "2001:DB8::1")
	}
	for _, host := range []string{
		"127.0.0.1:" + port, "127.0.0.1", "localhost:" + port, "localhost", "LOCALHOST", "localhost.:" + port,
		"[::1]:" + port, "[::1]", "127.9.9.9", "[::ffff:127.0.0.1]",
		"march.example", "MARCH.example:443", "march.example.", "192.0.2.7:1", "[2001:db8::1]:1",
	} {
		for _, path := range []string{"/", "/v1/tags"} {
			if code, _, body := ask(host, path); code != http.StatusOK {
				t.Errorf("%s under %q: %d %s", path, host, code, body)
			}
		}
	}
	for _, host := range []string{
		"evil.example:" + port, "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "not-march.example",
		"march.example.evil", "192.0.2.8", "0.0.0.0", "[::]",
		"127.0.0.1.", "0x7f.1", "2130706433",
	} {
		code, kind, body := ask(host, "/")
		if code != http.StatusMisdirectedRequest || !strings.HasPrefix(kind, "text/plain") ||
			!strings.Contains(body, host) || !strings.Contains(body, "--allowed-hosts") {
			t.Errorf("/ under %q: %d %q %s", host, code, kind, body)
		}
		code, kind, body = ask(host, "/v1/tags")
		var told struct{ Code, Message string }
		if err := json.Unmarshal([]byte(body), &told); err != nil || code != http.StatusMisdirectedRequest ||
			kind != "application/json" ||
			told.Code != "PERMISSION_DENIED" || !strings.Contains(told.Message, "allowed: localhost") {
			t.Errorf("/v1/tags under %q: %d %q %s, %v", host, code, kind, body, err)
		}
		for _, path := range []string{"/livez", "/readyz"} {
			if code, _, body := ask(host, path); code != http.StatusOK {
				t.Errorf("%s under %q: %d %s", path, host, code, body)
			}
		}
	}
	// A server on all addresses does not know the names under which it is called.
	if code, _, body := hostAsked("0.0.0.0:7020", "march.example", "/"); code != http.StatusOK {
		t.Errorf("on all addresses: %d %s", code, body)
	}
}

func TestCheckHosts(t *testing.T) {
	if err := serve.CheckHosts([]string{"a", "march.example", "my_host", "192.0.2.7", "::1"}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "*", "a b", "http://a", "a:80", "[::1]", ".a", "a/b", strings.Repeat("x", 300)} {
		if err := serve.CheckHosts([]string{"a", name}); allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), "allowed-hosts: ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
