package access_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/credentials"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/serve"
)

func serverTLS(w *world) credentials.TransportCredentials { return credentials.NewTLS(w.ca.server()) }

// may returns the error of a check, or of the token.
func (w *world) may(token, name, tag string) error {
	s, err := w.gate.Authenticate(bg, access.Credentials{Token: token, Address: "192.0.2.1"})
	if err != nil {
		return err
	}
	return w.gate.Check(bg, s, policy.Request{Call: call(name), Tag: tag, IDs: 1})
}

// JWTs of the issuer count, with their groups, and its keys are asked for once.
func TestJWT(t *testing.T) {
	w := newWorld(t)
	alice, admin := w.issuer.token(w.issuer.claims("alice")), w.issuer.token(w.issuer.claims("bob", "dev", "admins"))
	for range 10 {
		if err := w.may(alice, "IDService/Next", "order"); err != nil {
			t.Error(err)
		}
		if err := w.may(admin, "ConsoleService/DeleteTag", "order"); err != nil {
			t.Error(err)
		}
	}
	if err := w.may(alice, "ConsoleService/DeleteTag", "order"); allocator.KindOf(err) != allocator.Denied {
		t.Errorf("alice: %v", err)
	}
	if n := w.issuer.asks.Load(); n != 1 {
		t.Errorf("the issuer was asked for its keys %d times, want once", n)
	}
	// The verified tokens stay good while the issuer is away.
	w.issuer.Close()
	if err := w.may(alice, "IDService/Next", "order"); err != nil {
		t.Error(err)
	}
}

// An issuer that is away refuses nobody for good, and is asked again.
func TestIssuerAway(t *testing.T) {
	w := newWorld(t)
	token := w.issuer.token(w.issuer.claims("alice"))
	w.issuer.Close()
	if err := w.may(token, "IDService/Next", "order"); allocator.KindOf(err) != allocator.Unavailable {
		t.Errorf("%v", err)
	}
	if err := w.may(w.tokens["issuer"], "IDService/Next", "order"); err != nil {
		t.Errorf("a token of the file: %v", err)
	}
}

// A JWKS file does without the issuer.
func TestKeyFile(t *testing.T) {
	w := newWorld(t)
	w.write("keys.json", string(w.issuer.keys()))
	cfg := access.Config{Policy: w.path("policy.yaml"), Keys: w.path("keys.json"),
		Issuer: w.issuer.URL, Audience: "march"}
	var err error
	if w.gate, err = access.New(cfg); err != nil {
		t.Fatal(err)
	}
	token := w.issuer.token(w.issuer.claims("alice"))
	w.issuer.Close()
	if err := w.may(token, "IDService/Next", "order"); err != nil {
		t.Error(err)
	}
	other := newIssuer(t)
	if err := w.may(other.token(other.claims("alice")), "IDService/Next",
		"order"); allocator.KindOf(err) != allocator.Unauthenticated {
		t.Errorf("another key: %v", err)
	}
	for content, want := range map[string]string{
		"{}": "has no keys", "x": "jwks-file:", `{"keys":[{"kty":"oct","k":"AAAA"}]}`: "is no public key",
	} {
		w.write("keys.json", content)
		if _, err := access.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", content, err, want)
		}
	}
}

// 10,000 wrong tokens: few are verified, the issuer is hardly asked, and other callers and
// known tokens go on.
func TestWrongTokens(t *testing.T) {
	w := newWorld(t)
	good := w.issuer.token(w.issuer.claims("alice"))
	if err := w.may(good, "IDService/Next", "order"); err != nil {
		t.Fatal(err)
	}
	other := newIssuer(t)
	forged := other.claims("alice")
	forged["iss"] = w.issuer.URL
	verified, waits := 0, 0
	start := time.Now()
	for k := range 10_000 {
		forged["n"] = k
		token := "march_wrong"
		if k < 100 {
			token = other.token(forged)
		}
		err := w.may(token, "IDService/Next", "order")
		var wait *allocator.WaitError
		switch {
		case allocator.KindOf(err) == allocator.Unauthenticated:
			verified++
		case errors.As(err, &wait) && wait.After > 0:
			waits++
		default:
			t.Fatal(err)
		}
	}
	if took := time.Since(start); verified > 21+int(took/time.Second) { // 20, and one each second
		t.Errorf("%d wrong tokens were looked at in %v, %d were told to wait", verified, took, waits)
	}
	if n := w.issuer.asks.Load(); n > 5 {
		t.Errorf("the issuer was asked %d times", n)
	}
	for _, token := range []string{good, w.tokens["issuer"]} {
		if err := w.may(token, "IDService/Next", "order"); err != nil {
			t.Errorf("a good token from the same address: %v", err)
		}
	}
	if _, err := w.gate.Authenticate(bg, access.Credentials{Token: w.issuer.token(w.issuer.claims("carol")),
		Address: "192.0.2.2"}); err != nil {
		t.Errorf("another address: %v", err)
	}
}

// Wrong tokens from very many addresses are bounded, too: those of one network of IPv6 as those of one address, and
// those of more than 10,000 addresses by a bound that the further ones share.
func TestWrongTokensOfManyAddresses(t *testing.T) {
	w := newWorld(t)
	for name, test := range map[string]struct {
		address func(k int) string
		most    int // that are looked at
	}{
		"of a network": {func(k int) string { return fmt.Sprintf("2001:db8:1:2::%x", k) }, 20},
		"of the world": {func(k int) string { return fmt.Sprintf("10.%d.%d.%d", k>>16, k>>8&255, k&255) }, 10_020},
	} {
		synctest.Test(t, func(t *testing.T) { // where no time passes
			w.gate.ForgetAttempts()
			looked := 0
			for k := range 11_000 {
				_, err := w.gate.Authenticate(bg, access.Credentials{Token: "march_wrong", Address: test.address(k)})
				if allocator.KindOf(err) != allocator.TooMany {
					looked++
				}
			}
			if looked > test.most {
				t.Errorf("%s: %d were looked at, at most %d", name, looked, test.most)
			}
		})
	}
}

// A broken file changes nothing, and is a problem until it is mended.
func TestReload(t *testing.T) {
	w := newWorld(t)
	var log bytes.Buffer
	m := serve.NewMetrics("test", nil)
	var err error
	if w.gate, err = access.New(access.Config{
		Policy: w.path("policy.yaml"), Tokens: w.path("tokens"), Register: m.Register,
		Logger: hclog.New(&hclog.LoggerOptions{Output: &log}),
	}); err != nil {
		t.Fatal(err)
	}
	next := func() error { return w.may(w.tokens["issuer"], "IDService/Next", "order") }
	problems := func() int { return len(w.gate.Problems()) }
	alarm := func(want string, lines int) {
		t.Helper()
		if got := metric(t, m, "march_access_broken"); got != want {
			t.Errorf("the metric is %s, want %s", got, want)
		}
		if n := strings.Count(log.String(), "[ERROR] file of rights is broken"); n != lines {
			t.Errorf("%d lines of the log, want %d: %s", n, lines, &log)
		}
	}
	alarm("0", 0)
	for _, broken := range []string{"grants: [", "grants: [{subjects: bob}]", ""} {
		w.write("policy.yaml", broken)
		w.reload()
		if err := next(); err != nil || problems() != 1 {
			t.Errorf("%q: %v, %d problems", broken, err, problems())
		}
		w.reload() // once is enough for the log
	}
	alarm("1", 3)
	w.write("tokens", "root march_plain")
	w.reload()
	if err := next(); err != nil || problems() != 2 {
		t.Errorf("two broken files: %v, %v", err, w.gate.Problems())
	}
	if strings.Contains(w.gate.Problems()[1].GetWhat(), "march_plain") {
		t.Errorf("a problem has a token: %v", w.gate.Problems())
	}
	w.write("policy.yaml", "grants: []")
	w.reload()
	if err := next(); allocator.KindOf(err) != allocator.Denied || problems() != 1 {
		t.Errorf("no grants: %v, %v", err, w.gate.Problems())
	}
	w.write("policy.yaml", rules)
	w.write("tokens", "# none")
	w.reload()
	if err := next(); allocator.KindOf(err) != allocator.Unauthenticated || problems() != 0 {
		t.Errorf("a token that was taken out: %v, %v", err, w.gate.Problems())
	}
	alarm("0", 4)
	if strings.Contains(log.String(), "march_plain") {
		t.Errorf("the log has a token: %s", &log)
	}
}

// metric returns the value of a metric; those of one name are summed.
func metric(t *testing.T, m *serve.Metrics, name string) string {
	t.Helper()
	families := must(m.Gatherer().Gather())(t)
	for _, f := range families {
		if f.GetName() == name {
			sum := 0.0
			for _, one := range f.GetMetric() {
				sum += one.GetGauge().GetValue() + one.GetCounter().GetValue()
			}
			return strconv.FormatFloat(sum, 'f', -1, 64)
		}
	}
	return "missing"
}

// HTTP: health needs nothing, metrics a viewer, and a bad token is no anonymous caller.
func TestHTTP(t *testing.T) {
	w := newWorld(t)
	h := w.gate.HTTP(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		name := "none"
		if s := access.From(r.Context()); s != nil {
			name = s.Name()
		}
		_, _ = rw.Write([]byte(name))
	}), func(r *http.Request) *access.Session {
		if r.Header.Get("Cookie") == "" {
			return nil
		}
		return &access.Session{Names: []string{"jwt:alice"}, Expires: time.Now().Add(time.Hour)}
	}, serve.WriteError)
	for _, c := range []struct {
		path, token, cookie string
		status              int
		want                string
	}{
		{"/livez", "wrong", "", 200, "none"},
		{"/readyz", "", "", 200, "none"},
		{"/metrics", "", "", 401, "unauthenticated"},
		{"/metrics", w.tokens["issuer"], "", 403, "denied"},
		{"/metrics", w.tokens["viewer"], "", 200, "token:viewer"},
		{"/metrics", "", "yes", 401, "unauthenticated"},
		{"/v1/tags", "", "", 200, "anonymous"}, // the service itself refuses
		{"/v1/tags", "march_x", "", 401, "unauthenticated"},
		{"/v1/tags", w.tokens["root"], "", 200, "token:root"},
		{"/v1/tags", "", "yes", 200, "anonymous"}, // a login is for pages only
		{"/tags", "", "yes", 200, "jwt:alice"},
		{"/tags", "", "", 200, "anonymous"},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		r.Header.Set("Cookie", c.cookie)
		rw := httptest.NewRecorder()
		h.ServeHTTP(rw, r)
		if rw.Code != c.status || !strings.Contains(rw.Body.String(), c.want) {
			t.Errorf("%s with %q: %d %s, want %d %s", c.path, c.token, rw.Code, rw.Body, c.status, c.want)
		}
	}
}

// Refused attempts are told once with their number, with nothing that is secret.
func TestRefusalsAreTold(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) { refusalsAreTold(t, w) })
}

func refusalsAreTold(t *testing.T, w *world) {
	t.Helper()
	var log bytes.Buffer
	var err error
	m := serve.NewMetrics("test", nil)
	w.gate, err = access.New(access.Config{Policy: w.path("policy.yaml"), Tokens: w.path("tokens"),
		Register: m.Register, Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
	if err != nil {
		t.Fatal(err)
	}
	all := told(w, 3*time.Minute, func(second int) {
		if second > 0 {
			return
		}
		for k := range 10_000 {
			_ = w.may(w.tokens["viewer"], "ConsoleService/SkipTag", "order")
			_ = w.may(w.tokens["viewer"], "ConsoleService/SkipTag", "tag-"+string(rune('a'+k%26)))
			// the first 2,000 are looked at
			from := access.Credentials{Token: "march_wrong", Address: "192.0.2." + strconv.Itoa(k%100)}
			if _, err := w.gate.Login(peerAt(from.Address), from); err == nil {
				t.Fatal("a wrong token")
			}
		}
	}, func(access.Refusal) error { return nil })
	if all[0] != (access.Refusal{Subject: "token:viewer", Address: "", Call: "ConsoleService/SkipTag",
		Why: allocator.Denied, Times: 20_000}) {
		t.Errorf("%+v", all[0])
	}
	wrong := 0
	for _, r := range all[1:] {
		if wrong += r.Times; r.Subject != "unknown" || r.Why != allocator.Unauthenticated {
			t.Errorf("%+v", r)
		}
	}
	if wrong != 2000 { // the others had to wait
		t.Errorf("%d wrong tokens are told", wrong)
	}
	if n := metric(t, m, "march_access_refused_total"); n != "30000" {
		t.Errorf("%s refusals are counted", n)
	}
	if n := strings.Count(log.String(), "\n"); n > 20 || strings.Contains(log.String(), "march_wrong") ||
		strings.Contains(log.String(), w.tokens["viewer"]) {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}

// A nil gate lets everything pass.
func TestNoPolicy(t *testing.T) {
	g, err := access.New(access.Config{})
	if g != nil || err != nil {
		t.Fatalf("%v, %v", g, err)
	}
	if err := errors.Join(g.Take(bg, "order", 1), g.MayCreate(bg, "order"),
		g.Check(bg, nil, policy.Request{})); err != nil || g.Problems() != nil {
		t.Error(err)
	}
	g.Run(bg, nil)
	for _, cfg := range []access.Config{{Tokens: "x"}, {Policy: "x", Issuer: "https://a"}, {Policy: "x", Audience: "a"},
		{Issuer: "https://a", Audience: "b"}} {
		if _, err := access.New(cfg); allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// Doors check the subject of their context; without one the caller is anonymous.
func TestDoors(t *testing.T) {
	w := newWorld(t)
	if err := w.gate.Take(bg, "order", 1); allocator.KindOf(err) != allocator.Unauthenticated {
		t.Errorf("anonymous: %v", err)
	}
	ctx := must(w.gate.Login(bg, access.Credentials{Token: w.tokens["issuer"]}))(t)
	if err := errors.Join(w.gate.Take(ctx, "order", 1), w.gate.MayRead(ctx, "order")); err != nil {
		t.Error(err)
	}
	for _, err := range []error{w.gate.Take(ctx, "other", 1), w.gate.MayCreate(ctx, "order")} {
		if allocator.KindOf(err) != allocator.Denied {
			t.Error(err)
		}
	}
	w.write("tokens", "")
	w.reload()
	if err := w.gate.Take(ctx, "order", 1); err != nil { // a file that was cut off revokes nothing, and is a problem
		t.Errorf("with an empty file: %v", err)
	}
	w.write("tokens", "# none\n")
	w.reload()
	if err := w.gate.Take(ctx, "order", 1); allocator.KindOf(err) != allocator.Unauthenticated {
		t.Errorf("a token that was taken out: %v", err)
	}
}
