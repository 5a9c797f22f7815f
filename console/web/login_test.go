package web_test

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/html"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/console/web"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

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
	client.CheckRedirect = stay
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
	s := newSite(t, withIssuer)
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
	first := s.browser()
	first.CheckRedirect = stay
	_, _, r := s.get(first, "/login/issuer")
	toIssuer := r.Header.Get("Location")
	_, _, r = s.get(&http.Client{Transport: s, CheckRedirect: stay}, toIssuer)
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
	s.issuer.nonce = "replayed"
	if code, body, _ := s.get(s.browser(), "/login/issuer"); code != 401 ||
		!strings.Contains(body, "the login at the issuer failed") {
		t.Errorf("another nonce: %d %s", code, body)
	}
}

// Cookies that are forged, of another key or expired count for nothing.
func TestBadCookies(t *testing.T) {
	s, other := newSite(t, nil), newSite(t, nil)
	other.client.CheckRedirect = stay
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
	with := func(cfg *web.LoginConfig, _ *access.Config) { cfg.Key, cfg.PublicURL = key, "" }
	a, b := newSite(t, with), newSite(t, with)
	if err := os.WriteFile(b.tokens, must(os.ReadFile(a.tokens))(t), 0o600); err != nil {
		t.Fatal(err)
	}
	b.gate.Reload(time.Now())
	a.client.CheckRedirect = stay
	_, _, r = a.post(a.client, "/login", url.Values{"token": {a.token}})
	if _, body, _ := b.send(b.client, http.MethodGet, "/", "", func(to *http.Request) {
		to.AddCookie(r.cookies[0])
	}); body != "page of token:ops" {
		t.Error(body)
	}
}

// 10,000 wrong logins are bounded, and others still log in. TestPagesOfOtherSites has the other attacks.
func TestGuesses(t *testing.T) {
	s := newSite(t, nil)
	if _, _, r := s.get(s.client, "/login"); r.Header.Get("Strict-Transport-Security") == "" {
		t.Errorf("%v", r.Header)
	}
	looked, waits := 0, 0
	try := func(token, from string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, s.URL+"/login", strings.NewReader("token="+token))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
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
		c.CheckRedirect = stay
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

// inTime runs a test in a bubble, with a site whose logins are at an issuer.
func inTime(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, withIssuer)
		s.client.CheckRedirect = stay
		test(t, s)
	})
}

// logIn goes through the issuer, and returns how long the session lasts.
func (s *site) logIn(to string) time.Duration {
	s.t.Helper()
	there := &http.Client{Transport: s, Jar: s.client.Jar}
	there.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if r.URL.RequestURI() == to { // it is not visited, which would check the login
			return http.ErrUseLastResponse
		}
		return nil
	}
	if code, body, r := s.get(there, "/login/issuer?to="+url.QueryEscape(to)); code != http.StatusSeeOther ||
		r.Header.Get("Location") != to {
		s.t.Fatalf("%d at %s: %s", code, r.URL, body)
	}
	return s.lasts
}

// A login at an issuer that is asked about it lasts as long as the console lets it, and ends when the issuer says so.
// Then a browser goes through the issuer again by itself, unless the login has ended at once.
func TestLoginEndsAtTheIssuer(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		s.issuer.userInfo = http.StatusOK
		if lasts := s.logIn("/tags"); lasts != 12*time.Hour {
			t.Errorf("the login lasts %v", lasts)
		}
		if _, body, _ := s.get(s.client, "/tags"); body != "page of jwt:alice" {
			t.Error(body)
		}
		time.Sleep(2 * time.Hour)
		if _, body, _ := s.get(s.client, "/tags"); body != "page of jwt:alice" {
			t.Error(body)
		}
		s.issuer.userInfo = http.StatusUnauthorized
		time.Sleep(time.Minute)
		status, _, r := s.get(s.client, "/tags?a=b")
		if to := r.Header.Get("Location"); status != http.StatusSeeOther || to != "/login/issuer?to=%2Ftags%3Fa%3Db" {
			t.Errorf("%d, to %q", status, to)
		}
		s.issuer.userInfo = http.StatusOK
		s.logIn("/tags")
		s.issuer.userInfo = http.StatusUnauthorized
		time.Sleep(30 * time.Second)
		status, _, r = s.get(s.client, "/tags")
		if to := r.Header.Get("Location"); status != http.StatusSeeOther || to != "/login?to=%2Ftags" {
			t.Errorf("a login that ended at once: %d, to %q", status, to)
		}
	})
}

// A login lasts as long as its id_token where the issuer says nothing of it, or its access token is too large.
func TestLoginEndsWithItsToken(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		if lasts := s.logIn("/"); lasts > time.Hour {
			t.Errorf("without UserInfo the login lasts %v", lasts)
		}
		s.issuer.userInfo, s.issuer.access = http.StatusOK, strings.Repeat("x", 5000)
		if lasts := s.logIn("/"); lasts > time.Hour {
			t.Errorf("with a large token the login lasts %v", lasts)
		}
		if _, body, _ := s.get(s.client, "/"); body != "page of jwt:alice" {
			t.Error(body)
		}
	})
}

// While the issuer does not say whether a login still holds, and did not say so to this console before, the console
// shows no page: it says that it cannot check the login, and goes on with it when the issuer answers.
func TestLoginThatCannotBeChecked(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		s.issuer.userInfo = http.StatusOK
		s.logIn("/tags")
		s.issuer.userInfo = http.StatusBadGateway
		status, body, r := s.get(s.client, "/tags")
		if p := r.Header.Get("Content-Security-Policy"); !strings.Contains(p, "frame-ancestors 'none'") {
			t.Errorf("the page may be framed: %q", p)
		}
		if status != http.StatusServiceUnavailable || !strings.Contains(body, "the login cannot be checked now") {
			t.Errorf("%d %s", status, body)
		}
		s.issuer.userInfo = http.StatusOK
		time.Sleep(10 * time.Second)
		if _, body, _ := s.get(s.client, "/tags"); body != "page of jwt:alice" {
			t.Error(body)
		}
	})
}

// Settings that cannot work are refused.
func TestSettings(t *testing.T) {
	for name, cfg := range map[string]web.LoginConfig{
		"public-url: \"http://march.example\"":  {PublicURL: "http://march.example"},
		"public-url: \"march.example\"":         {PublicURL: "march.example"},
		"public-url: \"https://a/b\"":           {PublicURL: "https://a/b"},
		"public-url: none":                      {ClientID: "console"},
		"session-key-file: 5 bytes":             {Key: []byte("short")},
		"session-lasts: 200h0m0s; allowed: abo": {Lasts: 200 * time.Hour},
	} {
		if err := cfg.Validate(); allocator.KindOf(err) != allocator.Invalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// issuer is an OpenID Connect issuer; its user always agrees.
type issuer struct {
	URL string
	t   *testing.T
	key *ecdsa.PrivateKey
	mu  sync.Mutex
	// by code: the challenge of PKCE, and the nonce
	codes map[string][2]string
	nonce string // given instead, if set
	// access is the access token that it gives; userInfo is the status of its endpoint UserInfo.
	access   string
	userInfo int
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return &issuer{URL: "https://issuer.example", t: t, key: key, codes: make(map[string][2]string), access: "x",
		userInfo: http.StatusNotFound}
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q,"authorization_endpoint":%q,"token_endpoint":%q,`+
			`"userinfo_endpoint":%q}`, i.URL, i.URL+"/keys", i.URL+"/auth", i.URL+"/token", i.URL+"/userinfo")
	case "/userinfo":
		w.WriteHeader(i.userInfo)
		_, _ = w.Write([]byte(`{"sub":"alice"}`))
	case "/keys":
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &i.key.PublicKey, KeyID: "one",
			Algorithm: "ES256", Use: "sig"}}})
	case "/auth":
		q := r.URL.Query()
		if q.Get("code_challenge_method") != "S256" || q.Get("response_type") != "code" ||
			q.Get("client_id") != "console" {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		code := rand.Text()
		i.codes[code] = [2]string{q.Get("code_challenge"), q.Get("nonce")}
		http.Redirect(w, r, q.Get("redirect_uri")+"?code="+code+"&state="+url.QueryEscape(q.Get("state")),
			http.StatusFound)
	case "/token":
		code := i.codes[r.FormValue("code")]
		delete(i.codes, r.FormValue("code"))
		sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		if code[0] == "" || code[0] != base64.RawURLEncoding.EncodeToString(sum[:]) {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		nonce := code[1]
		if i.nonce != "" {
			nonce = i.nonce
		}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
			Key: jose.JSONWebKey{Key: i.key, KeyID: "one"}}, nil)
		if err != nil {
			i.t.Error(err)
			return
		}
		token, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": i.URL, "aud": "console", "sub": "alice", "groups": []string{"ops"}, "nonce": nonce,
			"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		}).Serialize()
		if err != nil {
			i.t.Error(err)
			return
		}
		_, _ = fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","id_token":%q}`, i.access, token)
	}
}

// site is a console's pages behind a login, and an issuer, without a network.
type site struct {
	URL     string
	t       *testing.T
	gate    *access.Gate
	handler http.Handler
	issuer  *issuer
	token   string
	tokens  string        // the file
	lasts   time.Duration // the last session that began
	client  *http.Client
}

// RoundTrip implements http.RoundTripper.
func (s *site) RoundTrip(sent *http.Request) (*http.Response, error) {
	r := sent.Clone(sent.Context())
	r.Host, r.RemoteAddr = cmp.Or(r.Host, r.URL.Host), "127.0.0.1:1"
	w, handler := httptest.NewRecorder(), s.handler
	if r.URL.Host == "issuer.example" {
		handler = s.issuer
	}
	handler.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if c.Name == "__Host-march" && c.MaxAge > 0 {
			s.lasts = time.Duration(c.MaxAge) * time.Second
		}
	}
	answer := w.Result()
	answer.Request = sent
	return answer, nil
}

// withIssuer has logins at the site's issuer.
func withIssuer(cfg *web.LoginConfig, gate *access.Config) {
	cfg.ClientID, gate.Issuer, gate.Audience = "console", "https://issuer.example", "march"
}

// stay has a client follow no redirect.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// newSite serves a page that names its subject. cfg may be changed before.
func newSite(t *testing.T, change func(*web.LoginConfig, *access.Config)) *site {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s := &site{URL: "https://console.example", t: t, issuer: newIssuer(t)}
	token, line, err := access.NewToken("ops", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s.token, s.tokens = token, write("tokens", line)
	gateCfg := access.Config{Policy: write("policy.yaml",
		"grants: [{subjects: ['token:ops', 'group:ops'], roles: operator}]"), Tokens: s.tokens, Transport: s}
	cfg := web.LoginConfig{PublicURL: s.URL}
	if change != nil {
		change(&cfg, &gateCfg)
	}
	if s.gate, err = access.New(gateCfg); err != nil {
		t.Fatal(err)
	}
	h := must(web.NewLogin(cfg, s.gate, hclog.NewNullLogger()))(t)
	mux := http.NewServeMux()
	h.Routes(mux)
	mux.Handle("/", h.Pages(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "page of ", access.From(r.Context()).Name())
	})))
	s.handler = s.gate.HTTP(mux, h.Session, serve.WriteError)
	s.client = s.browser()
	return s
}

// browser returns a client with cookies of its own.
func (s *site) browser() *http.Client {
	jar := must(cookiejar.New(nil))(s.t)
	return &http.Client{Transport: s, Jar: jar}
}

// answered is an answer with its body, as it was read.
type answered struct {
	URL        *url.URL // of the last request
	Header     http.Header
	StatusCode int
	cookies    []*http.Cookie
}

func (s *site) get(c *http.Client, path string) (int, string, answered) {
	s.t.Helper()
	return s.send(c, http.MethodGet, path, "", func(*http.Request) {})
}

func (s *site) post(c *http.Client, path string, form url.Values) (int, string, answered) {
	s.t.Helper()
	return s.send(c, http.MethodPost, path, form.Encode(), func(*http.Request) {})
}

// send sends a request as change modifies it. A path may be a whole address.
func (s *site) send(c *http.Client, method, path, form string, change func(*http.Request)) (int, string, answered) {
	s.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = s.URL + path
	}
	request := must(http.NewRequest(method, path, strings.NewReader(form)))(s.t)
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	change(request)
	r, err := c.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body := must(io.ReadAll(r.Body))(s.t)
	return r.StatusCode, string(body), answered{r.Request.URL, r.Header, r.StatusCode, r.Cookies()}
}
