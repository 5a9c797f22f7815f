package serve_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// served starts a server that listens on an address and answers every request. It returns its
// port.
func served(t *testing.T, at string, allowed ...string) (port string) {
	t.Helper()
	g := testcluster.Listen(t, "")
	h := testcluster.Listen(t, at)
	testcluster.Start(t, func(ctx context.Context) error {
		return serve.Run(ctx, serve.Config{
			GRPC: g, HTTP: h, Health: health.NewServer(), MaxRequest: 1 << 10, Drain: time.Second,
			Register:     func(grpc.ServiceRegistrar) {},
			Ready:        func(context.Context) []serve.Check { return nil },
			Routes:       func(mux *http.ServeMux) { mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {}) },
			AllowedHosts: allowed,
		})
	})
	_, port, _ = net.SplitHostPort(h.Addr().String())
	return port
}

// ask sends a request for a path to a host name.
func ask(t *testing.T, port, host, path string) (code int, kind, body string) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("Content-Type"), string(text)
}

// TestHosts: a server on a loopback address answers only under its own names, because any other
// name could belong to a page elsewhere.
func TestHosts(t *testing.T) {
	port := served(t, "127.0.0.1:0", "March.example", "192.0.2.7", "2001:DB8::1")
	for _, host := range []string{
		"127.0.0.1:" + port, "127.0.0.1", "localhost:" + port, "localhost", "LOCALHOST", "localhost.:" + port,
		"[::1]:" + port, "[::1]", "127.9.9.9", "[::ffff:127.0.0.1]",
		"march.example", "MARCH.example:443", "march.example.", "192.0.2.7:1", "[2001:db8::1]:1",
	} {
		for _, path := range []string{"/", "/v1/tags"} {
			if code, _, body := ask(t, port, host, path); code != http.StatusOK {
				t.Errorf("%s under %q: %d %s", path, host, code, body)
			}
		}
	}
	for _, host := range []string{
		"evil.example:" + port, "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "not-march.example",
		"march.example.evil", "192.0.2.8", "0.0.0.0", "[::]",
		"127.0.0.1.", "0x7f.1", "2130706433",
	} {
		code, kind, body := ask(t, port, host, "/")
		if code != http.StatusMisdirectedRequest || !strings.HasPrefix(kind, "text/plain") ||
			!strings.Contains(body, host) || !strings.Contains(body, "--allowed-hosts") {
			t.Errorf("/ under %q: %d %q %s", host, code, kind, body)
		}
		code, kind, body = ask(t, port, host, "/v1/tags")
		var told struct{ Code, Message string }
		if err := json.Unmarshal([]byte(body), &told); err != nil || code != http.StatusMisdirectedRequest ||
			kind != "application/json" ||
			told.Code != "PERMISSION_DENIED" || !strings.Contains(told.Message, "allowed: localhost") {
			t.Errorf("/v1/tags under %q: %d %q %s, %v", host, code, kind, body, err)
		}
		for _, path := range []string{"/livez", "/readyz"} {
			if code, _, body := ask(t, port, host, path); code != http.StatusOK {
				t.Errorf("%s under %q: %d %s", path, host, code, body)
			}
		}
	}
	// A server on all addresses does not know the names under which it is called.
	if code, _, body := ask(t, served(t, "0.0.0.0:0"), "march.example", "/"); code != http.StatusOK {
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
