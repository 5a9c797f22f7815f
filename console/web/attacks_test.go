package web_test

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/march-id/march/allocator"
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
		headers = maps.Clone(headers)
		maps.Copy(headers, cookie)
		return send(t, method, at+path, headers, url.Values{"name": {"stolen"}})
	}
	for _, page := range pages {
		answer, _ := request(http.MethodGet, page, map[string]string{})
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
	if answer, _ := send(t, http.MethodGet, at+"/tags/stolen", cookie, nil); answer.StatusCode !=
		http.StatusNotFound {
		t.Errorf("a tag was made: %s", answer.Status)
	}
}

// elsewhere: a browser with an operator's session opens pages of another site, and of another origin of the same site,
// whose forms take the session's cookie along. None can frame the console's page, and none of their forms changes
// anything, as the console's own form does.
func (b *browser) elsewhere(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, tokens := w.guardedConsole(`grants: [{subjects: "token:root", roles: admin}]`, "root")
	var mu sync.Mutex
	var cookies string // that the last page's request had
	evil := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		mu.Lock()
		cookies = r.Header.Get("Cookie")
		mu.Unlock()
		_, _ = fmt.Fprintf(answer, `<!doctype html><link rel="icon" href="data:,"><iframe src="%[1]s/tags"></iframe>
<form method="post" action="%[1]s/tags"><input name="name" value="stolen"></form>`, at)
	}))
	defer evil.Close()
	p := b.open(t, at)
	p.visit("/login")
	p.fill("input[name=token]", tokens["root"])
	p.click(button("Log in"))
	p.says("layout 1")
	for name, c := range map[string]struct {
		site   string
		cookie bool
	}{
		"another origin": {evil.URL, true},
		"another site":   {strings.Replace(evil.URL, "127.0.0.1", "localhost", 1), false},
	} {
		p.do(chromedp.Navigate(c.site))
		mu.Lock()
		if sent := strings.Contains(cookies, "__Host-march="); sent != c.cookie {
			t.Errorf("%s: the browser sent the cookies %q", name, cookies)
		}
		mu.Unlock()
		for framed := false; !framed; { // the browser says so; without that the test ends with its time
			if err := p.ctx.Err(); err != nil {
				t.Fatalf("%s: nothing says that the page cannot be framed: %v", name, err)
			}
			p.until("there is a page", "document.body")
			p.mu.Lock()
			p.wrong = slices.DeleteFunc(p.wrong, func(complaint string) bool {
				blocked := strings.Contains(complaint, "frame-ancestors 'none'")
				framed = framed || blocked
				return blocked
			})
			p.mu.Unlock()
		}
		eval[bool](p, `(() => { document.querySelector("form").submit(); return true })()`)
		p.says("cross-origin request")
	}
	p.visit("/tags")
	p.click(button("New tag"))
	p.fill("form[method=post] input[name=name]", "own")
	p.keys(kb.Enter)
	p.says("The tag was created.")
	if tag, err := w.Admin.Tag(t.Context(), "stolen"); !errors.Is(err, allocator.NotFound) {
		t.Errorf("a page of another origin made a tag: %v, %v", tag, err)
	}
}

// A page that is open loses its right when the policy takes it away.
func TestOpenPageLosesItsRight(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, tokens := w.guardedConsole(`grants: [{subjects: "token:reader", roles: viewer}]`, "reader")
	r := must(http.NewRequestWithContext(t.Context(), http.MethodGet, at+"/live/tags", nil))(t)
	r.Header.Set("Cookie", login(t, at, tokens["reader"])["Cookie"])
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
