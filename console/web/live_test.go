package web_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/console"
	"github.com/march-id/march/console/web"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/testcerts"
)

// Before, one caller could hold all live pages, so no other caller got one.
func TestLivePages(t *testing.T) {
	w := newWorld(t, 100, "a")
	url, _ := w.consoleWith("", func(cfg *console.Config) { cfg.MaxLivePages, cfg.MaxCallerLivePages = 3, 2 })
	open := func(ip string) (status int, body string) {
		t.Helper()
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).DialContext,
		}}
		answer, err := client.Get(url + "/live/")
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode == http.StatusOK {
			t.Cleanup(func() { _ = answer.Body.Close() })
			return answer.StatusCode, ""
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text)
	}
	for _, step := range []struct {
		ip, refused string
	}{
		{"127.0.0.1", ""}, {"127.0.0.1", ""}, {"127.0.0.1", "allowed: 2 (--max-caller-live-pages)"},
		{"127.0.0.2", ""}, {"127.0.0.2", "allowed: 3 (--max-live-pages)"},
	} {
		status, body := open(step.ip)
		if step.refused == "" && status != http.StatusOK ||
			step.refused != "" && (status != http.StatusServiceUnavailable || !strings.Contains(body, step.refused)) {
			t.Errorf("a page of %s: %d %q, want %q", step.ip, status, body, step.refused)
		}
	}
}

// Over TLS, all windows of a browser share a connection: of HTTP/1.1, a browser opens no more than six.
func TestWindowsShareAConnection(t *testing.T) {
	w := newWorld(t, 100, "a")
	ca := testcerts.New(t)
	pair := ca.Write("console", certs.Leaf{Hosts: []string{"127.0.0.1"}})
	files := testcerts.Open(t, tlsfiles.Config{Flags: "tls", CA: ca.Root, Cert: pair.Cert, Key: pair.Key})
	at, _ := w.consoleWith("", func(cfg *console.Config) { cfg.TLS = files })
	var connections atomic.Int64
	transport := &http.Transport{TLSClientConfig: files.Client("127.0.0.1"), ForceAttemptHTTP2: true}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		connections.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	t.Cleanup(transport.CloseIdleConnections)
	for range 20 {
		answer, err := (&http.Client{Transport: transport}).Get("https" + strings.TrimPrefix(at, "http") + "/live/")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 {
			t.Fatalf("%s %s", answer.Proto, answer.Status)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("20 windows have %d connections, want 1", n)
	}
}

// TestTicksAgree: all streams of a page tell the same age of its data in the same two seconds, so that
// two browsers say the same when the console falls silent.
func TestTicksAgree(t *testing.T) {
	made, tick := web.Ticks()
	begin := time.Date(2030, 1, 2, 3, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		after time.Duration
		make  bool
		want  string // the time of the data that a tick tells
	}{
		{want: ""}, {after: 100 * time.Millisecond, make: true, want: "03:00:00"},
		{after: 1900 * time.Millisecond, make: true, want: "03:00:00"}, {after: 2 * time.Second, want: "03:00:01"},
		{after: 3500 * time.Millisecond, make: true, want: "03:00:01"}, {after: 5 * time.Second, want: "03:00:03"},
	} {
		now := begin.Add(step.after)
		if step.make {
			made(now)
		}
		want := `"as_of": ""`
		if step.want != "" {
			want = `"as_of": "2030-01-02 ` + step.want + ` UTC"`
		}
		if got := tick(now); !strings.Contains(got, want) {
			t.Errorf("after %v the tick is %q, want %s", step.after, got, want)
		}
	}
}
