package web_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/march-id/march/console"
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
