package login_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"github.com/march-id/march/console/login"
	"github.com/march-id/march/internal/access"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A token logs a browser in, until it logs out or the token is taken out of the file.
func TestToken(t *testing.T) {
	s := newSite(t, nil)
	if _, body, r := s.get(s.client, "/tags/order?x=1"); r.URL.Path != "/login" ||
		!strings.Contains(body, `name="to" value="/tags/order?x=1"`) {
		t.Fatalf("%s: %s", r.URL, body)
	}
	if code, body, _ := s.post(s.client, "/login", url.Values{"token": {"march_wrong"}}); code != 401 ||
		!strings.Contains(body, "the token is not known") || strings.Contains(body, "march_wrong") {
		t.Errorf("%d %s", code, body)
	}
	code, body, r := s.post(s.client, "/login", url.Values{"token": {" " + s.token + "\n"}, "to": {"/tags/order?x=1"}})
	if code != 200 || body != "page of token:ops" || r.URL.Path != "/tags/order" {
		t.Fatalf("%d %s at %s", code, body, r.URL)
	}
	if _, body, _ := s.get(s.client, "/login"); !strings.Contains(body, "You are token:ops") {
		t.Error(body)
	}
	// The cookie is for this host, over TLS, not for scripts, and has no token.
	client := s.browser()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	_, _, r = s.post(client, "/login", url.Values{"token": {s.token}})
	set := r.Header.Get("Set-Cookie")
	for _, want := range []string{"__Host-march=", "; Path=/;", "HttpOnly", "Secure", "SameSite=Lax", "Max-Age=43"} {
		if !strings.Contains(set, want) {
			t.Errorf("%s has no %s", set, want)
		}
	}
	if strings.Contains(set, s.token) || strings.Contains(set, "Domain") {
		t.Error(set)
	}

	if _, body, r := s.post(s.client, "/logout", nil); r.URL.Path != "/login" || strings.Contains(body, "You are") {
		t.Error(body)
	}
	if _, _, r := s.get(s.client, "/"); r.URL.Path != "/login" {
		t.Errorf("after the logout: %s", r.URL)
	}
	s.post(s.client, "/login", url.Values{"token": {s.token}})
	if err := os.WriteFile(s.tokens, []byte("# none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.gate.Reload(time.Now())
	if _, _, r := s.get(s.client, "/"); r.URL.Path != "/login" {
		t.Errorf("after the token was taken out: %s", r.URL)
	}
}

// The issuer logs a browser in, with state, nonce and PKCE.
func TestIssuer(t *testing.T) {
	i := newIssuer(t)
	s := newSite(t, func(cfg *login.Config, gate *access.Config) {
		cfg.ClientID = "console"
		gate.Issuer, gate.Audience = i.URL, "march"
	})
	if code, body, r := s.get(s.client, "/login/issuer?to=/tags"); code != 200 ||
		body != "page of jwt:alice" || r.URL.Path != "/tags" {
		t.Fatalf("%d %s at %s", code, body, r.URL)
	}
	// Where the browser goes afterwards is this console.
	for _, to := range []string{"https://evil.example/", "//evil.example", `/\evil.example`,
		"javascript:alert(1)", "tags"} {
		c := s.browser()
		if code, _, r := s.get(c, "/login/issuer?to="+url.QueryEscape(to)); code != 200 || r.URL.String() != s.URL+"/" {
			t.Errorf("%s: %d at %s", to, code, r.URL)
		}
	}
	// A login that another browser began counts for nothing, nor does one without state.
	stop := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	first := s.browser()
	first.CheckRedirect = stop
	_, _, r := s.get(first, "/login/issuer")
	toIssuer := r.Header.Get("Location")
	_, _, r = s.send(&http.Client{CheckRedirect: stop}, http.MethodGet, toIssuer, "", func(*http.Request) {})
	back := strings.TrimPrefix(r.Header.Get("Location"), s.URL)
	for name, c := range map[string]*http.Client{"another browser": s.browser()} {
		if code, body, _ := s.get(c, back); code != 401 || !strings.Contains(body, "did not begin the login") {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	changed, _, _ := strings.Cut(back, "&state=")
	if code, _, _ := s.get(first, changed+"&state=other"); code != 401 {
		t.Errorf("another state: %d", code)
	}
	if code, _, _ := s.get(first, back); code != 401 { // the attempt counts once
		t.Errorf("the same attempt again: %d", code)
	}
	i.mu.Lock()
	i.nonce = "replayed"
	i.mu.Unlock()
	if code, body, _ := s.get(s.browser(), "/login/issuer"); code != 401 ||
		!strings.Contains(body, "the login at the issuer failed") {
		t.Errorf("another nonce: %d %s", code, body)
	}
}

// Cookies that are forged, of another key or expired count for nothing.
func TestBadCookies(t *testing.T) {
	s, other := newSite(t, nil), newSite(t, nil)
	other.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	_, _, r := other.post(other.client, "/login", url.Values{"token": {other.token}})
	theirs := r.cookies[0].Value
	for _, value := range []string{theirs, "x", "", strings.Repeat("A", 4000),
		base64.StdEncoding.EncodeToString([]byte(`{"n":["token:ops"],"e":"2099-01-01T00:00:00Z"}`))} {
		if _, _, r := s.send(s.client, http.MethodGet, "/", "", func(r *http.Request) {
			r.AddCookie(&http.Cookie{Name: "__Host-march", Value: value})
		}); r.URL.Path != "/login" {
			t.Errorf("%.20s: %s", value, r.URL)
		}
	}
	// All consoles with one key take each other's cookies.
	key := []byte(strings.Repeat("k", 32))
	with := func(cfg *login.Config, _ *access.Config) { cfg.Key, cfg.PublicURL = key, "" }
	a, b := newSite(t, with), newSite(t, with)
	if err := os.WriteFile(b.tokens, must(os.ReadFile(a.tokens)), 0o600); err != nil {
		t.Fatal(err)
	}
	b.gate.Reload(time.Now())
	a.client.CheckRedirect = other.client.CheckRedirect
	_, _, r = a.post(a.client, "/login", url.Values{"token": {a.token}})
	if _, body, _ := b.send(b.client, http.MethodGet, "/", "", func(to *http.Request) {
		to.AddCookie(r.cookies[0])
	}); body != "page of token:ops" {
		t.Error(body)
	}
}

func must(b []byte, _ error) []byte { return b }

// Forms of other sites, other host names and frames are refused; 10,000 wrong logins are
// bounded, and others still log in.
func TestAttacks(t *testing.T) {
	s := newSite(t, nil)
	do := func(method, path string, change func(*http.Request)) answered {
		t.Helper()
		_, _, r := s.send(s.browser(), method, path, "token="+s.token, change)
		return r
	}
	for _, path := range []string{"/login", "/logout"} {
		if r := do(http.MethodPost, path, func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}); r.StatusCode != http.StatusForbidden {
			t.Errorf("a form of another site to %s: %d", path, r.StatusCode)
		}
		if r := do(http.MethodPost, path, func(r *http.Request) {
			r.Header.Set("Origin", "https://evil.example")
		}); r.StatusCode != http.StatusForbidden {
			t.Errorf("a form of another origin to %s: %d", path, r.StatusCode)
		}
	}
	for _, path := range []string{"/login", "/", "/tags"} {
		if r := do(http.MethodGet, path, func(r *http.Request) {
			r.Host = "evil.example"
		}); r.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s under another name: %d", path, r.StatusCode)
		}
	}
	r := do(http.MethodGet, "/login", func(*http.Request) {})
	if p := r.Header.Get("Content-Security-Policy"); !strings.Contains(p, "frame-ancestors 'none'") ||
		r.Header.Get("Strict-Transport-Security") == "" {
		t.Errorf("%v", r.Header)
	}

	looked, waits := 0, 0
	h := s.Config.Handler
	try := func(token, from string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, s.URL+"/login", strings.NewReader("token="+token))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for range 10_000 {
		switch w := try("march_guess", "192.0.2.7:1"); w.Code {
		case http.StatusUnauthorized:
			looked++
		case http.StatusTooManyRequests:
			waits++
		default:
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if looked > 200 || waits == 0 {
		t.Errorf("%d guesses were looked at, %d told to wait", looked, waits)
	}
	if w := try(s.token, "192.0.2.8:1"); w.Code != http.StatusSeeOther {
		t.Errorf("a good login from another address: %d %s", w.Code, w.Body)
	}
	if w := try(s.token, "192.0.2.7:1"); w.Code != http.StatusSeeOther {
		t.Errorf("a good login from the same address: %d %s", w.Code, w.Body)
	}
}

// A logout ends the session, not only the cookie of the browser that logged out.
func TestLogoutEndsCopies(t *testing.T) {
	s := newSite(t, nil)
	cookie := func() *http.Cookie {
		c := s.browser()
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		_, _, r := s.post(c, "/login", url.Values{"token": {s.token}})
		return r.cookies[0]
	}
	with := func(method, path string, c *http.Cookie) string {
		_, _, r := s.send(s.browser(), method, path, "", func(r *http.Request) { r.AddCookie(c) })
		return r.URL.Path
	}
	one, other := cookie(), cookie()
	with(http.MethodPost, "/logout", one)
	if at := with(http.MethodGet, "/tags", one); at != "/login" {
		t.Errorf("a copy of the cookie after the logout: %s", at)
	}
	if at := with(http.MethodGet, "/tags", other); at != "/tags" {
		t.Errorf("another session of the subject: %s", at)
	}
}

// A form that comes after its login has ended is kept in the answer, to be sent again; that of another site is not.
func TestFormSurvivesTheLogin(t *testing.T) {
	s := newSite(t, nil)
	const path = "/tags/order/settings?from=list"
	form := url.Values{"step": {"10"}, "remark": {"\"><script>\nline 2"}, "room": {"eu-1", "us-1"}}
	code, body, r := s.post(s.client, path, form)
	if code != http.StatusUnauthorized || r.Header.Get("Cache-Control") != "no-store" ||
		!strings.Contains(r.Header.Get("Content-Security-Policy"), "form-action 'self'") {
		t.Fatalf("%d %v", code, r.Header)
	}
	to, fields := "", url.Values{}
	z := html.NewTokenizer(strings.NewReader(body))
	for z.Next() != html.ErrorToken {
		token, attributes := z.Token(), map[string]string{}
		for _, a := range token.Attr {
			attributes[a.Key] = a.Val
		}
		switch {
		case token.Data == "form" && token.Type == html.StartTagToken:
			to = attributes["action"]
		case token.Data == "input":
			fields.Add(attributes["name"], attributes["value"])
		}
	}
	if to != path || !reflect.DeepEqual(fields, form) {
		t.Fatalf("%s %v in %s", to, fields, body)
	}
	if code, _, _ := s.post(s.client, to, fields); code != http.StatusUnauthorized { // still without a login
		t.Error(code)
	}
	s.post(s.client, "/login", url.Values{"token": {s.token}})
	if code, body, _ := s.post(s.client, to, fields); code != http.StatusOK || body != "page of token:ops" {
		t.Errorf("%d %s", code, body)
	}
	if code, body, _ := s.send(s.browser(), http.MethodPost, path, "step=666", func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	}); code != http.StatusForbidden || strings.Contains(body, "666") {
		t.Errorf("a form of another site: %d %s", code, body)
	}
}
