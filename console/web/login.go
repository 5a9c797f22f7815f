package web

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/gorilla/securecookie"
	"github.com/hashicorp/go-hclog"
	"github.com/oklog/ulid/v2"
	"golang.org/x/oauth2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

// LoginConfig are the settings of logins. The zero value lets operators log in by tokens.
type LoginConfig struct {
	ClientID string `flag:"oidc-client-id" help:"this console's client ID at --oidc-issuer, for logins to the page; empty for logins by tokens only"`
	// ClientSecret may be empty: PKCE does without.
	ClientSecret string
	// PublicURL must be set if ClientID is.
	PublicURL string `flag:"public-url" help:"address at which browsers reach the page, such as https://march.example.com; it is served under this name only"`
	// Key encrypts and signs the cookies, 32 bytes or more; all consoles of a cluster have
	// the same. Default: a random one, so that logins end with the process.
	Key   []byte
	Lasts time.Duration `flag:"session-lasts" help:"how long a login to the page lasts"`
	// LoggedOut is called with each session that is logged out, and its subject; nil for nothing. The session has
	// ended in this process then.
	LoggedOut func(ctx context.Context, subject string, session ulid.ULID)
}

const (
	defaultLasts = 12 * time.Hour
	maxLasts     = access.MaxSession
	minKey       = 32
	maxToken     = 32 << 10 // bytes of the form
	// The names of the cookies. The prefix binds them to one host name and to TLS.
	sessionCookie = "__Host-march"
	attemptCookie = "__Host-march-login"
	// attemptLasts is how long a login at the issuer may take.
	attemptLasts = 10 * time.Minute
	// renewAfter is how old a login at the issuer is before its end sends the browser there again by itself: an
	// issuer that ends each login at once is not asked again and again.
	renewAfter = time.Minute
)

// Validate checks the settings. Its error is Invalid.
func (cfg LoginConfig) Validate() error {
	if cfg.PublicURL != "" {
		u, err := url.Parse(cfg.PublicURL)
		if err != nil || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" ||
			u.Scheme != "https" && (u.Scheme != "http" || !api.Loopback(u.Hostname())) {
			return allocator.Errorf(allocator.Invalid,
				"public-url: %.200q; allowed: https://HOST, or http:// on a loopback address, without a path",
				cfg.PublicURL)
		}
	}
	switch {
	case cfg.ClientID != "" && cfg.PublicURL == "":
		return allocator.Errorf(allocator.Invalid,
			"public-url: none, so that the issuer could not send browsers back; give --public-url https://HOST")
	case len(cfg.Key) > 0 && len(cfg.Key) < minKey:
		return allocator.Errorf(allocator.Invalid,
			"session-key-file: %d bytes; allowed: %d random bytes or more", len(cfg.Key), minKey)
	case cfg.Lasts < 0 || cfg.Lasts > maxLasts:
		return allocator.Errorf(allocator.Invalid, "session-lasts: %v; allowed: above 0 to %v", cfg.Lasts, maxLasts)
	}
	return nil
}

// Login lets operators log in, by a token or at an OpenID Connect issuer. A login ends in a cookie that the console
// encrypts and signs: it has what the login proved, and when it ends. So any console with the same key can answer, and
// none keeps a list but of sessions that were logged out. The cookie belongs to one host name, goes only over TLS (or
// to this machine), is not for scripts, and no form of another site sends it.
//
//  1. The cookie has no token of March: a login by a token of the file has the token's hash, so that it ends when the
//     token is taken out of the file. A login at the issuer has its access token, so that consoles can ask whether the
//     login still holds.
//  2. Where a browser is sent never comes from the Host header: paths of this console only, and the issuer goes back
//     to the address that the operator set.
//  3. A login at the issuer ends in the browser that began it: state, nonce and the PKCE verifier are in a cookie of
//     that browser.
type Login struct {
	cfg    LoginConfig
	gate   *access.Gate
	log    hclog.Logger
	host   string // of PublicURL; empty for any
	cookie *securecookie.SecureCookie
	page   *template.Template
}

// NewLogin returns a handler of logins to a gate, which must not be nil. Its error is Invalid.
func NewLogin(cfg LoginConfig, gate *access.Gate, log hclog.Logger) (*Login, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.ClientID != "" && !gate.HasIssuer() {
		return nil, allocator.Errorf(allocator.Invalid, "oidc-client-id: given without an issuer; give --oidc-issuer")
	}
	if cfg.Lasts == 0 {
		cfg.Lasts = defaultLasts
	}
	if len(cfg.Key) == 0 {
		cfg.Key = make([]byte, minKey)
		_, _ = rand.Read(cfg.Key) // never fails
	}
	keys, err := hkdf.Key(sha256.New, cfg.Key, nil, "march console session", 64)
	if err != nil {
		return nil, err
	}
	page, err := template.ParseFS(templates, "templates/login.html")
	if err != nil {
		return nil, err
	}
	h := &Login{cfg: cfg, gate: gate, log: log, page: page}
	if u, err := url.Parse(cfg.PublicURL); err == nil {
		h.host = u.Host
	}
	h.cookie = securecookie.New(keys[:32], keys[32:]).SetSerializer(securecookie.JSONEncoder{}).MaxAge(
		int(cfg.Lasts.Seconds()))
	return h, nil
}

// Session returns the login of a request; nil if there is none. A nil Login has none.
func (h *Login) Session(r *http.Request) *access.Session {
	cookie, err := r.Cookie(sessionCookie)
	if h == nil || err != nil {
		return nil
	}
	s := &access.Session{}
	if h.cookie.Decode(sessionCookie, cookie.Value, s) != nil || !time.Now().Before(s.Expires) || s.ID.IsZero() {
		return nil
	}
	return s
}

// Routes adds the routes of logins to a mux.
func (h *Login) Routes(mux *http.ServeMux) {
	guard := http.NewCrossOriginProtection()
	for pattern, answer := range map[string]http.HandlerFunc{
		"GET /login": h.form, "POST /login": h.byToken, "POST /logout": h.logout,
		"GET /login/issuer": h.toIssuer, "GET /login/callback": h.fromIssuer,
	} {
		mux.Handle(pattern, h.underItsName(guard.Handler(serve.Page("", answer))))
	}
}

// Pages returns a handler that serves the pages to browsers which are logged in, and sends
// others to the login. Where the policy lets anonymous callers read, they need no login.
func (h *Login) Pages(next http.Handler) http.Handler {
	// The guard stands before the form is shown: what another site sent must not become a form of this one.
	keep := http.NewCrossOriginProtection().Handler(serve.Page("", http.HandlerFunc(h.keep)))
	ask := serve.Page("", http.HandlerFunc(h.ask))
	return h.underItsName(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := access.From(r.Context())
		if s == nil || len(s.Names) > 0 || s.May(marchv1.ConsoleService_GetOverview_FullMethodName) ||
			strings.HasPrefix(r.URL.Path, "/static/") {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method == http.MethodPost {
			keep.ServeHTTP(w, r)
			return
		}
		ask.ServeHTTP(w, r)
	}))
}

// ask sends a browser without a login to the login.
func (h *Login) ask(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || strings.HasPrefix(r.URL.Path, "/live/") {
		http.Error(w, "log in first: the login has ended, or there was none", http.StatusUnauthorized)
		return
	}
	at, last := "/login", h.Session(r)
	if last != nil {
		_, err := h.gate.Authenticate(r.Context(), access.Credentials{Session: last})
		if allocator.KindOf(err) == allocator.Unavailable { // it may not have ended
			h.show(w, r, err)
			return
		}
	}
	if last != nil && last.Access != "" && time.Since(last.ID.Timestamp()) > renewAfter {
		at = "/login/issuer" // which asks nothing where the browser is still logged in
	}
	http.Redirect(w, r, at+"?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
}

// underItsName refuses requests under another host name than PublicURL's.
func (h *Login) underItsName(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host := r.Host; h.host != "" && !strings.EqualFold(host, h.host) {
			if name, _, err := net.SplitHostPort(host); err == nil {
				host = name
			}
			if !api.Loopback(strings.Trim(host, "[]")) {
				http.Error(w, "this console is served under another name (--public-url)", http.StatusMisdirectedRequest)
				return
			}
		}
		if strings.HasPrefix(h.cfg.PublicURL, "https:") {
			w.Header().Set("Strict-Transport-Security", "max-age=31536000")
		}
		next.ServeHTTP(w, r)
	})
}

type loginView struct {
	To, User string
	Issuer   bool
	Err      string
	Kept     *keptForm
}

// keptForm is a form that was sent after its login had ended.
type keptForm struct {
	To     string
	Fields url.Values
}

// keep answers a form that came without a login: with the form, so that it can be sent again after a login in another
// window of the browser. So the console keeps nothing, and the browser sends the form by a person's hand only.
func (h *Login) keep(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		http.Error(w, "log in first: the login has ended, or there was none, and the form cannot be read",
			http.StatusUnauthorized)
		return
	}
	h.write(w, http.StatusUnauthorized, loginView{Kept: &keptForm{localPath(r.URL.RequestURI()), r.PostForm}})
}

func (h *Login) form(w http.ResponseWriter, r *http.Request) { h.show(w, r, nil) }

// show answers with the form, and why a login failed.
func (h *Login) show(w http.ResponseWriter, r *http.Request, failed error) {
	v := loginView{To: localPath(r.FormValue("to")), Issuer: h.cfg.ClientID != ""}
	if s := access.From(r.Context()); s != nil && len(s.Names) > 0 {
		v.User = s.Name()
	}
	status := http.StatusOK
	if failed != nil {
		v.Err, status = failed.Error(), serve.StatusOf(failed)
	}
	h.write(w, status, v)
}

func (h *Login) write(w http.ResponseWriter, status int, v loginView) {
	var text bytes.Buffer
	if err := h.page.Execute(&text, v); err != nil {
		h.log.Error("page not rendered", "page", "login", "error", err)
		http.Error(w, "this page could not be drawn", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes())
}

func (h *Login) byToken(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxToken)
	if err := r.ParseForm(); err != nil {
		h.show(w, r, allocator.Errorf(allocator.Invalid, "the form cannot be read"))
		return
	}
	token := strings.TrimSpace(r.PostForm.Get("token"))
	if token == "" {
		h.show(w, r, allocator.Errorf(allocator.Unauthenticated, "no token was given"))
		return
	}
	s, err := h.gate.SessionOf(r.Context(), token, access.AddressOf(r))
	if err != nil {
		h.show(w, r, err)
		return
	}
	h.enter(w, r, s, r.PostForm.Get("to"))
}

// enter sets the cookie of a login, and goes on to a page.
func (h *Login) enter(w http.ResponseWriter, r *http.Request, s *access.Session, to string) {
	proven, ends := s.Expires, time.Now().Add(h.cfg.Lasts)
	if proven.IsZero() || proven.After(ends) {
		proven = ends
	}
	if s.Expires = proven; s.Access != "" {
		s.Expires = ends
	}
	s.ID = ulid.Make()
	err := h.set(w, sessionCookie, s, time.Until(s.Expires))
	if err != nil && s.Access != "" { // it is too large for a cookie: the issuer cannot be asked
		s.Access, s.Expires = "", proven
		err = h.set(w, sessionCookie, s, time.Until(s.Expires))
	}
	if err != nil {
		h.show(w, r, err)
		return
	}
	http.Redirect(w, r, localPath(to), http.StatusSeeOther)
}

// logout ends the session, so that copies of its cookie end as well.
func (h *Login) logout(w http.ResponseWriter, r *http.Request) {
	if s := h.Session(r); s != nil {
		if subject := h.gate.SubjectOf(s); subject != "" {
			h.gate.EndSessions(time.Now(), map[string][]ulid.ULID{subject: {s.ID}})
			if h.cfg.LoggedOut != nil {
				h.cfg.LoggedOut(r.Context(), subject, s.ID)
			}
		}
	}
	dropCookie(w, sessionCookie)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

func (h *Login) set(w http.ResponseWriter, name string, value any, lasts time.Duration) error {
	text, err := h.cookie.Encode(name, value)
	if err != nil { // a user of very many groups
		return allocator.Errorf(allocator.Invalid, "the identity is too large for a cookie: %d KiB at most", 4)
	}
	http.SetCookie(w, &http.Cookie{
		Name: name, Value: text, Path: "/", MaxAge: max(int(lasts.Seconds()), 1), Secure: true, HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	})
	return nil
}

func dropCookie(w http.ResponseWriter, name string) {
	http.SetCookie(w, &http.Cookie{Name: name, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true,
		SameSite: http.SameSiteLaxMode})
}

// localPath returns a path of this console, or its first page: never another site's address.
func localPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") ||
		strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	return to
}

// attempt is a login at the issuer under way, in a cookie of the browser that began it.
type attempt struct {
	State    string    `json:"s"`
	Nonce    string    `json:"n"`
	Verifier string    `json:"v"` // of PKCE
	To       string    `json:"t"`
	Expires  time.Time `json:"e"`
}

// oauth returns the settings of a login at the issuer.
func (h *Login) oauth(p *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: h.cfg.ClientID, ClientSecret: h.cfg.ClientSecret, Endpoint: p.Endpoint(),
		RedirectURL: strings.TrimSuffix(h.cfg.PublicURL, "/") + "/login/callback",
		Scopes:      []string{oidc.ScopeOpenID, "profile", "groups"},
	}
}

func (h *Login) toIssuer(w http.ResponseWriter, r *http.Request) {
	if h.cfg.ClientID == "" {
		http.NotFound(w, r)
		return
	}
	p, _, err := h.gate.Issuer()
	if err != nil {
		h.show(w, r, err)
		return
	}
	a := attempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(),
		To: localPath(r.FormValue("to")), Expires: time.Now().Add(attemptLasts)}
	if err := h.set(w, attemptCookie, a, attemptLasts); err != nil {
		h.show(w, r, err)
		return
	}
	http.Redirect(w, r, h.oauth(p).AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)),
		http.StatusSeeOther)
}

// fromIssuer logs in a browser that comes back from the issuer.
func (h *Login) fromIssuer(w http.ResponseWriter, r *http.Request) {
	if h.cfg.ClientID == "" {
		http.NotFound(w, r)
		return
	}
	var a attempt
	cookie, err := r.Cookie(attemptCookie)
	if err == nil {
		err = h.cookie.Decode(attemptCookie, cookie.Value, &a)
	}
	dropCookie(w, attemptCookie) // it counts once
	if err != nil || !time.Now().Before(a.Expires) ||
		subtle.ConstantTimeCompare([]byte(a.State), []byte(r.FormValue("state"))) != 1 {
		h.show(w, r, allocator.Errorf(allocator.Unauthenticated,
			"this browser did not begin the login, or took longer than %v; log in again", attemptLasts))
		return
	}
	session, err := h.exchange(r.Context(), a, r.FormValue("code"))
	if err != nil {
		h.log.Warn("login at the issuer failed", "from", access.AddressOf(r), "error", err)
		h.show(w, r, allocator.Errorf(allocator.KindOf(err),
			"the login at the issuer failed; the console's log says why"))
		return
	}
	h.enter(w, r, session, a.To)
}

// exchange returns the session that the issuer's code is good for.
func (h *Login) exchange(ctx context.Context, a attempt, code string) (*access.Session, error) {
	p, client, err := h.gate.Issuer()
	if err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) error {
		return allocator.Errorf(allocator.Unauthenticated, format, args...)
	}
	ctx = oidc.ClientContext(ctx, client)
	answer, err := h.oauth(p).Exchange(ctx, code, oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return nil, refuse("the issuer does not take the code: %.300s", err.Error())
	}
	raw, ok := answer.Extra("id_token").(string)
	if !ok {
		return nil, refuse("the issuer gave no id_token")
	}
	nonce, id, err := h.gate.VerifyLogin(ctx, h.cfg.ClientID, raw)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare([]byte(nonce), []byte(a.Nonce)) != 1 {
		return nil, refuse("the issuer's id_token is of another login")
	}
	return h.gate.NewLogin(ctx, id, answer.AccessToken), nil
}
