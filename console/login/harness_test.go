package login_test

import (
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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/console/login"
	"github.com/march-id/march/internal/access"
)

// issuer is an OpenID Connect issuer; its user always agrees.
type issuer struct {
	*httptest.Server
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{t: t, key: key, codes: make(map[string][2]string), access: "x",
		userInfo: http.StatusNotFound}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	return i
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

// site is a console's pages behind a login.
type site struct {
	*httptest.Server
	t      *testing.T
	gate   *access.Gate
	token  string
	tokens string // the file
	client *http.Client
}

// newSite serves a page that names its subject. cfg may be changed before.
func newSite(t *testing.T, change func(*login.Config, *access.Config)) *site {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s := &site{t: t}
	token, line, err := access.NewToken("ops", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s.token, s.tokens = token, write("tokens", line)
	gateCfg := access.Config{Policy: write("policy.yaml",
		"grants: [{subjects: ['token:ops', 'group:ops'], roles: operator}]"), Tokens: s.tokens}
	var cfg login.Config
	s.Server = httptest.NewUnstartedServer(nil)
	cfg.PublicURL = "https://" + s.Listener.Addr().String()
	if change != nil {
		change(&cfg, &gateCfg)
	}
	if s.gate, err = access.New(gateCfg); err != nil {
		t.Fatal(err)
	}
	h, err := login.New(cfg, s.gate, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	h.Routes(mux)
	mux.Handle("/", h.Pages(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "page of ", access.From(r.Context()).Name())
	})))
	s.Config.Handler = s.gate.HTTP(mux, h.Session)
	s.StartTLS()
	t.Cleanup(s.Close)
	s.client = s.browser()
	return s
}

// browser returns a client with cookies of its own.
func (s *site) browser() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &http.Client{Transport: s.Client().Transport, Jar: jar}
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
	request, err := http.NewRequest(method, path, strings.NewReader(form))
	if err != nil {
		s.t.Fatal(err)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	change(request)
	r, err := c.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r.StatusCode, string(body), answered{r.Request.URL, r.Header, r.StatusCode, r.Cookies()}
}
