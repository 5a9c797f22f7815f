package web_test

import (
	"bufio"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/march-id/march/console/web"
)

// No page can be framed, no form of another site or origin changes anything, and a browser
// that logged in is no exception. No page is told under another host name.
func TestPagesOfOtherSites(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	w.tag("order")
	at, tokens := w.guardedConsole(`grants: [{subjects: "token:root", roles: admin}]`, "root")
	cookie := login(t, at, tokens["root"])
	pages, actions, err := web.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 10 || len(actions) < 10 {
		t.Fatalf("%d pages, %d forms", len(pages), len(actions))
	}
	request := func(method, path string, headers map[string]string) (head, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, at+path,
			strings.NewReader(url.Values{"name": {"stolen"}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Cookie", cookie)
		for name, value := range headers {
			r.Header.Set(name, value)
		}
		r.Host = headers["Host"]
		return fetch(t, r)
	}
	for _, page := range pages {
		answer, _ := request(http.MethodGet, page, nil)
		if p := answer.Header.Get("Content-Security-Policy"); !strings.Contains(p, "frame-ancestors 'none'") ||
			!strings.Contains(p, "form-action 'self'") {
			t.Errorf("%s (%s) may be framed: %q", page, answer.Status, p)
		}
		if answer, _ := request(http.MethodGet, page, map[string]string{"Host": "evil.example"}); answer.StatusCode !=
			http.StatusMisdirectedRequest {
			t.Errorf("%s under another name: %s", page, answer.Status)
		}
	}
	for _, action := range append(actions, "/login", "/logout") {
		for name, headers := range map[string]map[string]string{
			"another site":                 {"Sec-Fetch-Site": "cross-site"},
			"another site of one domain":   {"Sec-Fetch-Site": "same-site"},
			"another origin":               {"Origin": "http://evil.example"},
			"a page of no origin":          {"Origin": "null"},
			"another origin, and its name": {"Origin": "http://evil.example", "Host": "evil.example"},
		} {
			if answer, body := request(http.MethodPost, action, headers); answer.StatusCode != http.StatusForbidden &&
				answer.StatusCode != http.StatusMisdirectedRequest {
				t.Errorf("a form of %s to %s: %s\n%s", name, action, answer.Status, body)
			}
		}
	}
	if answer, _ := request(http.MethodGet, "/tags/stolen", nil); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a tag was made: %s", answer.Status)
	}
}

// A page that is open loses its right when the policy takes it away.
func TestOpenPageLosesItsRight(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, tokens := w.guardedConsole(`grants: [{subjects: "token:reader", roles: viewer}]`, "reader")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"/live/tags", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", login(t, at, tokens["reader"]))
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewScanner(answer.Body)
	until := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("the stream ended before %q: %v", text, lines.Err())
	}
	until("data:")
	if err := os.WriteFile(w.policy, []byte("grants: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	until("token:reader may not call")
}
