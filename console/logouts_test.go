package console

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

// site is a console with logins in a bubble.
type site struct {
	t      *testing.T
	server *Server
	routes http.Handler
}

// site begins a console whose files of rights and key are those of dir.
func (b *bubble) site(dir string) *site {
	b.Helper()
	gate, err := access.New(access.Config{Policy: filepath.Join(dir, "policy"), Tokens: filepath.Join(dir, "tokens")})
	if err != nil {
		b.t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.Ledger, cfg.Access = ledgertest.Open(b, b.Mem.Open()), gate
	cfg.GRPC, cfg.HTTP = nowhere{}, nowhere{}
	cfg.Login.Key = []byte(strings.Repeat("k", 32))
	s := must(New(cfg))(b.t)
	mux := http.NewServeMux()
	s.routes(mux)
	return &site{b.t, s, gate.HTTP(mux, s.login.Session, serve.WriteError)}
}

// send returns where the answer leads, and its cookie.
func (s *site) send(method, path string, form url.Values, with *http.Cookie) (to string, set *http.Cookie) {
	s.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if with != nil {
		r.AddCookie(with)
	}
	w := httptest.NewRecorder()
	s.routes.ServeHTTP(w, r)
	if cookies := w.Result().Cookies(); len(cookies) > 0 {
		set = cookies[0]
	}
	return w.Header().Get("Location"), set
}

// open reports whether a console takes a session.
func (s *site) open(session *http.Cookie) bool {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(session)
	return s.server.cfg.Access.SubjectOf(s.server.login.Session(r)) != ""
}

// exchange lets consoles exchange logouts, until stop is called.
func exchange(of ...*site) (stop func()) {
	ctx, cancel := context.WithCancel(bg)
	var work sync.WaitGroup
	for _, s := range of {
		work.Go(func() { s.server.logouts.run(ctx) })
	}
	return func() {
		cancel()
		work.Wait()
	}
}

// A logout ends the session at all consoles within a minute: also if etcd is away at first, at a console that starts
// later, and where one subject logs out again and again. That writes few entries, and ends no session of others.
func TestLogoutsEndSessionsEverywhere(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ann, line, _ := access.NewToken("ann", time.Time{})
	bob, other, _ := access.NewToken("bob", time.Time{})
	write("policy", "grants: [{subjects: ['token:*'], roles: operator}]")
	write("tokens", line+"\n"+other+"\n")
	synctest.Test(t, func(t *testing.T) {
		cluster := newBubble(t)
		a, b := cluster.site(dir), cluster.site(dir)
		login := func(token string) *http.Cookie {
			_, set := a.send(http.MethodPost, "/login", url.Values{"token": {token}}, nil)
			if set == nil {
				t.Fatal("no login")
			}
			return set
		}
		defer exchange(a, b)()

		first, stays := login(ann), login(ann)
		if !b.open(first) {
			t.Fatal("the other console does not take the session")
		}
		a.send(http.MethodPost, "/logout", nil, first)
		if a.open(first) {
			t.Error("the session goes on at the console of the logout")
		}
		time.Sleep(time.Minute)
		if b.open(first) || !b.open(stays) {
			t.Errorf("at the other console: %v, the subject's other session %v", b.open(first), b.open(stays))
		}

		second := login(bob)
		cluster.Mem.Stop()
		a.send(http.MethodPost, "/logout", nil, second)
		time.Sleep(time.Minute)
		cluster.Mem.Start()
		time.Sleep(time.Minute)
		if b.open(second) {
			t.Error("the session goes on at the other console a minute after etcd came back")
		}

		before := len(cluster.Mem.Keys("/march/default/audit/"))
		var last *http.Cookie
		for range 1000 {
			last = login(bob)
			a.send(http.MethodPost, "/logout", nil, last)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if b.open(last) || !b.open(stays) || !b.open(login(bob)) {
			t.Errorf("after many logouts: %v, another subject's %v", b.open(last), b.open(stays))
		}
		if n := len(cluster.Mem.Keys("/march/default/audit/")) - before; n > 3 {
			t.Errorf("1,000 logouts in 10 s wrote %d entries", n)
		}
		late := cluster.site(dir)
		defer exchange(late)()
		time.Sleep(time.Second)
		if late.open(first) || late.open(second) || late.open(last) || !late.open(stays) {
			t.Error("a console that starts later takes sessions that were logged out, or not those that were not")
		}
	})
}
