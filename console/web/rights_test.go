package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/access"
)

// guardedConsole starts a console with a policy. It returns the address of its pages, and a
// browser's login of each token.
func (w *world) guardedConsole(policy string, names ...string) (at string, tokens map[string]string) {
	w.Helper()
	dir, tokens, lines := w.TempDir(), make(map[string]string), ""
	w.policy = filepath.Join(dir, "policy.yaml")
	for _, name := range names {
		token, line, err := access.NewToken(name, time.Time{})
		if err != nil {
			w.Fatal(err)
		}
		tokens[name] = token
		lines += line + "\n"
	}
	for name, content := range map[string]string{"policy.yaml": policy, "tokens": lines} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			w.Fatal(err)
		}
	}
	gate := must(access.New(access.Config{Policy: filepath.Join(dir, "policy.yaml"),
		Tokens: filepath.Join(dir, "tokens")}))(w)
	at, _ = w.consoleWith("", func(cfg *console.Config) { cfg.Access = gate })
	return at, tokens
}

// login logs a browser in, and returns the header with its cookie.
func login(t *testing.T, at, token string) map[string]string {
	t.Helper()
	answer, page := send(t, http.MethodPost, at+"/login", nil, url.Values{"token": {token}})
	cookie, _, _ := strings.Cut(answer.Header.Get("Set-Cookie"), ";")
	if answer.StatusCode != http.StatusSeeOther || cookie == "" {
		t.Fatalf("login: %s\n%s", answer.Status, page)
	}
	return map[string]string{"Cookie": cookie}
}

// TestRights: a page offers no change that the policy refuses, the console refuses it anyway,
// and each page has a way to log out.
func TestRights(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	w.tag("order", "stock")
	w.server("a", "host-1")
	at, tokens := w.guardedConsole(`grants:
  - {subjects: "token:reader", roles: viewer}
  - {subjects: "token:ops", roles: operator}
  - {subjects: "token:clerk", roles: viewer}
  - {subjects: "token:clerk", roles: operator, tags: [order]}
`, "reader", "ops", "clerk")
	const plan = "/migrations?boundary=100&room=a&lower=0&upper=25&room=b&lower=50&upper=100"
	offers := map[string]map[string]string{ // by page: what each button does, and a part of its HTML
		"/tags": {"create": `aria-labelledby="new"`, "search": `role="search"`},
		"/tags/order": {"settings": `name="do" value="settings"`, "skip": `name="do" value="skip"`,
			"prescale": `name="do" value="prescale"`},
		"/tags/stock": {"settings": `name="do" value="settings"`, "skip": `name="do" value="skip"`,
			"prescale": `name="do" value="prescale"`},
		"/instances": {"forget": `do=forget`},
		plan:         {"apply": `id="apply"`, "plan": `id="planform"`},
	}
	all := "apply create forget plan prescale search settings skip"
	for _, c := range []struct{ name, page, want string }{
		{"reader", "", "plan search"}, {"ops", "", all},
		{"clerk", "/tags/order", all}, {"clerk", "/tags/stock", ""}, {"clerk", "/tags", "search create"},
		{"clerk", "/instances", all}, {"clerk", plan, all},
	} {
		cookie := login(t, at, tokens[c.name])
		for page, buttons := range offers {
			if c.page != "" && c.page != page {
				continue
			}
			answer, text := send(t, http.MethodGet, at+page, cookie, nil)
			if answer.StatusCode != http.StatusOK {
				t.Fatalf("%s for %s: %s\n%s", page, c.name, answer.Status, text)
			}
			for button, html := range buttons {
				if want := strings.Contains(c.want, button); strings.Contains(text, html) != want {
					t.Errorf("%s for %s: %s is there: %v", page, c.name, button, !want)
				}
			}
			if out := fmt.Sprintf(`action="/logout"><span>token:%s</span>`, c.name); !strings.Contains(text, out) {
				t.Errorf("%s for %s has no way to log out", page, c.name)
			}
		}
	}
	reader := login(t, at, tokens["reader"])
	for path, button := range map[string]string{
		"/tags/order?do=settings&limit=5": "<button", "/find": "do=new", "/capacity": "<button", "/": "<button",
	} {
		if _, text := send(t, http.MethodGet, at+path, reader, nil); strings.Contains(strings.ReplaceAll(
			strings.ReplaceAll(text, `<button type="button" class="copy"`, ""), "<button>Log out", ""), button) {
			t.Errorf("%s offers a reader %s:\n%s", path, button, text)
		}
	}
	if _, text := send(t, http.MethodGet, at+"/find", login(t, at, tokens["ops"]), nil); !strings.Contains(text,
		"do=new") {
		t.Errorf("an operator does not find the form of a new tag:\n%s", text)
	}
	for path, form := range map[string]url.Values{
		"/tags": {"name": {"mine"}}, "/tags/order/settings": {"limit": {"10"}}, "/tags/order/skip": {"to": {"1000"},
			"room": {"a"}}, "/tags/order/prescale": {"step": {"10"}, "duration": {"1m"}},
		"/instances/forget": {"of": {"a"}, "name": {"host-1"}},
	} {
		if answer, text := send(t, http.MethodPost, at+path, reader, form); answer.StatusCode != http.StatusForbidden ||
			strings.Count(text, "token:reader may not call") != 1 {
			t.Errorf("%s: %s\n%s", path, answer.Status, text)
		}
	}
}

// TestPagesOfSomeTags: who may see some tags only sees their pages. Another page says that it is refused, and does not
// promise to appear.
func TestPagesOfSomeTags(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	w.tag("order", "stock")
	at, tokens := w.guardedConsole(`grants: [{subjects: "token:shop", roles: viewer, tags: [order]}]`, "shop")
	cookie := login(t, at, tokens["shop"])
	for _, path := range []string{"/tags/order", "/migrations", "/instances"} {
		if answer, text := send(t, http.MethodGet, at+path, cookie, nil); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s\n%s", path, answer.Status, text)
		}
	}
	for _, path := range []string{"/", "/tags", "/tags/stock", "/history", "/capacity"} {
		answer, text := send(t, http.MethodGet, at+path, cookie, nil)
		if answer.StatusCode != http.StatusForbidden || !strings.Contains(text, "You may not see this page") ||
			!strings.Contains(text, "token:shop may not") || strings.Contains(text, "by itself") ||
			strings.Contains(text, "sse:connect") {
			t.Errorf("%s: %s\n%s", path, answer.Status, text)
		}
	}
}

// TestRightsOfMigration: the buttons of a migration are in its live part.
func TestRightsOfMigration(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	silent, err := w.Ledger().Join(t.Context(), ledger.Registration{Room: "a", Name: "mute", Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	open := w.Console(nil)
	to := &marchv1.Layout{Boundary: 100, Rooms: map[string]*marchv1.Range{"a": {Lower: 0, Upper: 25},
		"b": {Lower: 50, Upper: 100}}}
	plan := must(open.PlanMigration(t.Context(), &marchv1.PlanMigrationRequest{Target: to}))(t)
	m := must(open.ApplyMigration(t.Context(), &marchv1.ApplyMigrationRequest{Plan: plan.GetPlan()}))(t)
	at, tokens := w.guardedConsole(
		`grants: [{subjects: "token:reader", roles: viewer}, {subjects: "token:ops", roles: operator}]`,
		"reader", "ops")
	path := at + "/migrations/" + m.GetMigration().GetId()
	for name, may := range map[string]bool{"reader": false, "ops": true} {
		cookie := login(t, at, tokens[name])
		if _, page := send(t, http.MethodGet, path, cookie, nil); strings.Contains(page, `id="pause"`) != may ||
			strings.Contains(page, `id="abort"`) != may {
			t.Errorf("%s: not as the policy says: %v\n%s", name, may, page)
		}
	}
	reader := login(t, at, tokens["reader"])
	for _, action := range []string{"pause", "resume", "abort", "continue"} {
		answer, page := send(t, http.MethodPost, path+"/"+action, reader, url.Values{"without": {"a/mute"}})
		if answer.StatusCode != http.StatusForbidden || !strings.Contains(page, "token:reader may not call") {
			t.Errorf("%s: %s\n%s", action, answer.Status, page)
		}
	}
}
