package login_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/console/login"
	"github.com/march-id/march/internal/access"
)

// RoundTrip implements http.RoundTripper: it answers without a network.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, r)
	return w.Result(), nil
}

// visit is a browser at a console, without a network.
type visit struct {
	t       *testing.T
	issuer  *issuer
	console http.Handler
	cookies map[string]*http.Cookie
}

// get returns the status and the body of a page, and where it sends the browser.
func (v *visit) get(path string) (status int, body, to string) {
	r := httptest.NewRequest(http.MethodGet, "https://console.example"+path, http.NoBody)
	for _, c := range v.cookies {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	v.console.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if v.cookies[c.Name] = c; c.MaxAge < 0 {
			delete(v.cookies, c.Name)
		}
	}
	return w.Code, w.Body.String(), w.Header().Get("Location")
}

// logIn goes through the issuer, and returns how long the session lasts.
func (v *visit) logIn(to string) time.Duration {
	v.t.Helper()
	_, _, at := v.get("/login/issuer?to=" + url.QueryEscape(to))
	r := httptest.NewRequest(http.MethodGet, at, http.NoBody)
	w := httptest.NewRecorder()
	v.issuer.ServeHTTP(w, r)
	back, err := url.Parse(w.Header().Get("Location"))
	if err != nil {
		v.t.Fatal(err)
	}
	if status, body, at := v.get(back.RequestURI()); status != http.StatusSeeOther || at != to {
		v.t.Fatalf("%d, to %q: %s", status, at, body)
	}
	return time.Duration(v.cookies["__Host-march"].MaxAge) * time.Second
}

func visiting(t *testing.T, test func(t *testing.T, v *visit)) {
	t.Helper()
	i := newIssuer(t)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte("grants: [{subjects: 'group:ops', roles: operator}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		gate, err := access.New(access.Config{Policy: path, Issuer: i.URL, Audience: "march", Transport: i})
		if err != nil {
			t.Fatal(err)
		}
		h, err := login.New(login.Config{ClientID: "console", PublicURL: "https://console.example"}, gate,
			hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		h.Routes(mux)
		mux.Handle("/", h.Pages(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, "page of ", access.From(r.Context()).Name())
		})))
		test(t, &visit{t, i, gate.HTTP(mux, h.Session), make(map[string]*http.Cookie)})
	})
}

// A login at an issuer that is asked about it lasts as long as the console lets it, and ends when the issuer says so.
// Then a browser goes through the issuer again by itself, unless the login has ended at once.
func TestLoginEndsAtTheIssuer(t *testing.T) {
	visiting(t, func(t *testing.T, v *visit) {
		v.issuer.userInfo = http.StatusOK
		if lasts := v.logIn("/tags"); lasts != 12*time.Hour {
			t.Errorf("the login lasts %v", lasts)
		}
		if _, body, _ := v.get("/tags"); body != "page of jwt:alice" {
			t.Error(body)
		}
		time.Sleep(2 * time.Hour)
		if _, body, _ := v.get("/tags"); body != "page of jwt:alice" {
			t.Error(body)
		}
		v.issuer.userInfo = http.StatusUnauthorized
		time.Sleep(time.Minute)
		status, _, to := v.get("/tags?a=b")
		if status != http.StatusSeeOther || to != "/login/issuer?to=%2Ftags%3Fa%3Db" {
			t.Errorf("%d, to %q", status, to)
		}
		v.issuer.userInfo = http.StatusOK
		v.logIn("/tags")
		v.issuer.userInfo = http.StatusUnauthorized
		time.Sleep(30 * time.Second)
		if status, _, to := v.get("/tags"); status != http.StatusSeeOther || to != "/login?to=%2Ftags" {
			t.Errorf("a login that ended at once: %d, to %q", status, to)
		}
	})
}

// A login lasts as long as its id_token where the issuer says nothing of it, or its access token is too large.
func TestLoginEndsWithItsToken(t *testing.T) {
	visiting(t, func(t *testing.T, v *visit) {
		if lasts := v.logIn("/"); lasts > time.Hour {
			t.Errorf("without UserInfo the login lasts %v", lasts)
		}
		v.issuer.userInfo, v.issuer.access = http.StatusOK, strings.Repeat("x", 5000)
		if lasts := v.logIn("/"); lasts > time.Hour {
			t.Errorf("with a large token the login lasts %v", lasts)
		}
		if _, body, _ := v.get("/"); body != "page of jwt:alice" {
			t.Error(body)
		}
	})
}

// While the issuer does not say whether a login still holds, and did not say so to this console before, the console
// shows no page: it says that it cannot check the login, and goes on with it when the issuer answers.
func TestLoginThatCannotBeChecked(t *testing.T) {
	visiting(t, func(t *testing.T, v *visit) {
		v.issuer.userInfo = http.StatusOK
		v.logIn("/tags")
		v.issuer.userInfo = http.StatusBadGateway
		r := httptest.NewRequest(http.MethodGet, "https://console.example/tags", http.NoBody)
		r.AddCookie(v.cookies["__Host-march"])
		w := httptest.NewRecorder()
		v.console.ServeHTTP(w, r)
		if p := w.Header().Get("Content-Security-Policy"); !strings.Contains(p, "frame-ancestors 'none'") {
			t.Errorf("the page may be framed: %q", p)
		}
		if status, body, _ := v.get("/tags"); status != http.StatusServiceUnavailable ||
			!strings.Contains(body, "the login cannot be checked now") {
			t.Errorf("%d %s", status, body)
		}
		v.issuer.userInfo = http.StatusOK
		time.Sleep(10 * time.Second)
		if _, body, _ := v.get("/tags"); body != "page of jwt:alice" {
			t.Error(body)
		}
	})
}
