package access_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

const twoRules = `grants:
  - {subjects: ["jwt:bank/*", "jwt:shop/*", "spiffe://bank/*", "spiffe://shop/*"], roles: issuer}
  - {subjects: ["group:bank-admins", "spiffe://bank/admin"], roles: admin}
`

// twoOf writes a file of two issuers and returns a gate with it. Transport reaches the issuers.
func (w *world) twoOf(bank, shop *issuer, transport http.RoundTripper, more string) *access.Gate {
	w.t.Helper()
	w.write("policy.yaml", twoRules)
	w.write("identities.yaml", fmt.Sprintf(`issuers:
  - {url: %q, audience: march, names: ["jwt:bank/*", "group:bank-*"], required: {tenant: bank, email_verified: "true"}}
  - {url: %q, audience: ids, names: ["jwt:shop/*"], user: preferred_username, groups: roles}
`, bank.URL, shop.URL)+more)
	gate := must(access.New(access.Config{Policy: w.path("policy.yaml"), Identities: w.path("identities.yaml"),
		Transport: transport}))(w.t)
	return gate
}

// ofBank and ofShop return claims that each issuer's tokens need.
func (i *issuer) ofBank(subject string, groups ...string) map[string]any {
	claims := i.claims(subject, groups...)
	claims["tenant"], claims["email_verified"] = "bank", true
	return claims
}

func (i *issuer) ofShop(user string, groups ...string) map[string]any {
	claims := i.claims("0815")
	claims["preferred_username"], claims["roles"], claims["aud"] = user, groups, "ids"
	return claims
}

// Each of two issuers gives its own names alone, by its own claims, to its own audience.
func TestIssuersGiveTheirNames(t *testing.T) {
	w := newWorld(t)
	bank, shop := newIssuer(t), newIssuer(t)
	w.gate = w.twoOf(bank, shop, bank.Client().Transport, "")
	for name, good := range map[string]string{
		"bank": bank.token(bank.ofBank("bank/alice")), "shop": shop.token(shop.ofShop("shop/bob")),
	} {
		if err := w.may(good, "IDService/Next", "order"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	root := bank.token(bank.ofBank("bank/root", "bank-admins"))
	if err := w.may(root, "ConsoleService/DeleteTag", "order"); err != nil {
		t.Error(err)
	}
	if err := w.may(shop.token(shop.ofShop("shop/bob", "bank-admins")), "ConsoleService/DeleteTag", "order"); allocator.
		KindOf(err) != allocator.Denied {
		t.Errorf("a group of the other issuer: %v", err)
	}
	without, other, forged := bank.ofBank("bank/alice"), bank.ofBank("bank/alice"), bank.ofBank("bank/alice")
	delete(without, "tenant")
	other["tenant"] = "shop"
	forged["iss"] = shop.URL
	unverified := bank.ofBank("bank/alice")
	unverified["email_verified"] = false
	stranger := newIssuer(t)
	for says, bad := range map[string]string{
		"may not give the name \"jwt:shop/bob\"":   bank.token(bank.ofBank("shop/bob")),
		"may not give the name \"jwt:bank/alice\"": shop.token(shop.ofShop("bank/alice")),
		"claim tenant is not \"bank\", which":      bank.token(without),
		"claim tenant is not \"bank\"":             bank.token(other),
		"claim email_verified is not \"true\"":     bank.token(unverified),
		"the token is not valid":                   bank.token(forged),
		"audience":                                 shop.token(shop.claims("shop/bob")),
		"allowed: the issuers of --identities":     stranger.token(stranger.claims("bank/alice")),
	} {
		if err := w.may(bad, "IDService/Next", "order"); allocator.KindOf(err) != allocator.Unauthenticated ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

// An issuer that hangs, or is away, makes its own tokens wait and no other's.
func TestOneIssuerHangs(t *testing.T) {
	w := newWorld(t)
	bank, shop := newIssuer(t), newIssuer(t)
	synctest.Test(t, func(t *testing.T) {
		gate := w.twoOf(bank, shop, hosts{bank.URL: &moody{bank, hangs}, shop.URL: &moody{shop, nil}}, "")
		w.gate = gate
		asked := make(chan allocator.Kind, 1)
		go func() { asked <- w.kind(bank.token(bank.ofBank("bank/alice"))) }()
		synctest.Wait()
		began := time.Now()
		for k := range 20 {
			if err := w.may(shop.token(shop.ofShop(fmt.Sprint("shop/", k))), "IDService/Next", "order"); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the other issuer's tokens waited %v", took)
		}
		if kind := <-asked; kind != allocator.Unavailable {
			t.Errorf("a token of the issuer that hangs: %v", kind)
		}
	})
}

// An issuer that stays as it is in a changed file keeps its keys, so its tokens count while it is away.
func TestIssuerThatStaysKeepsItsKeys(t *testing.T) {
	w := newWorld(t)
	bank, shop := newIssuer(t), newIssuer(t)
	synctest.Test(t, func(t *testing.T) {
		reached := &moody{issuer: bank}
		w.gate = w.twoOf(bank, shop, hosts{bank.URL: reached, shop.URL: &moody{shop, nil}}, "")
		if err := w.may(bank.token(bank.ofBank("bank/alice")), "IDService/Next", "order"); err != nil {
			t.Fatal(err)
		}
		reached.mood = away
		text := must(os.ReadFile(w.path("identities.yaml")))(t)
		w.write("identities.yaml", strings.Replace(string(text), "preferred_username", "sub", 1))
		w.reload()
		if err := w.may(bank.token(bank.ofBank("bank/bob")), "IDService/Next", "order"); err != nil {
			t.Errorf("a token of the issuer that stays: %v", err)
		}
		if kind := w.kind(shop.token(shop.ofShop("shop/bob"))); kind != allocator.Unauthenticated {
			t.Errorf("a token of the issuer that changed: %v", kind)
		}
	})
}

// hosts reaches each issuer in its own way.
type hosts map[string]*moody

func (h hosts) RoundTrip(r *http.Request) (*http.Response, error) {
	return h[r.URL.Scheme+"://"+r.URL.Host].RoundTrip(r)
}

// An issuer whose certificate only its own CA signed is asked with that CA.
func TestIssuerOfItsOwnCA(t *testing.T) {
	w := newWorld(t)
	over := httptest.NewUnstartedServer(w.issuer.Config.Handler)
	over.StartTLS()
	defer over.Close()
	w.issuer.Server.Close()
	w.issuer.Server = over
	w.write("policy.yaml", twoRules)
	w.write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: over.Certificate().Raw})))
	token := w.issuer.token(w.issuer.claims("bank/alice"))
	for ca, want := range map[string]allocator.Kind{"": allocator.Unavailable, ", ca: ca.pem": 0} {
		w.write("identities.yaml", fmt.Sprintf("issuers: [{url: %q, audience: march, names: [\"jwt:bank/*\"]%s}]\n",
			over.URL, ca))
		var err error
		if w.gate, err = access.New(access.Config{Policy: w.path("policy.yaml"),
			Identities: w.path("identities.yaml")}); err != nil {
			t.Fatal(err)
		}
		if err := w.may(token, "IDService/Next", "order"); want == 0 && err != nil ||
			want != 0 && allocator.KindOf(err) != want {
			t.Errorf("%q: %v", ca, err)
		}
	}
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// A second CA of clients' certificates, which TLS trusts as the first, gives its own names alone. A change of the
// file, or of a CA's file, counts without a restart, and a broken one changes nothing.
func TestClientCAsGiveTheirNames(t *testing.T) {
	w := newWorld(t)
	bank, shop, other := newAuthority(t), newAuthority(t), newAuthority(t)
	w.write("bank.pem", bank.pem())
	w.write("shop.pem", shop.pem())
	w.gate = w.twoOf(w.issuer, newIssuer(t), nil, `client_cas:
  - {ca: bank.pem, names: ["spiffe://bank/*"]}
  - {ca: shop.pem, names: ["spiffe://shop/*", "dns:*.shop.example"]}
`)
	pool := bank.pool()
	pool.AddCert(shop.cert)
	pool.AddCert(other.cert)
	server := bank.server()
	server.ClientCAs = pool
	at := w.serve(plainly, w.intercepted(grpc.Creds(credentials.NewTLS(server)))...)
	ask := func(of *authority, name string) codes.Code {
		t.Helper()
		conn := w.dial(at, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: bank.pool(),
			Certificates: []tls.Certificate{of.pair(name, time.Time{})}})
		_, err := marchv1.NewIDServiceClient(conn).Next(context.Background(), &marchv1.NextRequest{Tag: "order"})
		return status.Code(err)
	}
	for _, tt := range []struct {
		of   *authority
		name string
		want codes.Code
	}{
		{bank, "spiffe://bank/admin", codes.Unimplemented}, {shop, "spiffe://shop/x", codes.Unimplemented},
		{shop, "spiffe://bank/admin", codes.Unauthenticated}, {bank, "spiffe://shop/x", codes.Unauthenticated},
		{shop, "spiffe://bank.evil/x", codes.Unauthenticated}, {shop, "a.bank.example", codes.Unauthenticated},
		{shop, "a.shop.example", codes.PermissionDenied}, {other, "spiffe://bank/admin", codes.Unauthenticated},
	} {
		if got := ask(tt.of, tt.name); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	w.write("shop.pem", other.pem())
	w.reload()
	if got := ask(other, "spiffe://shop/x"); got != codes.Unimplemented {
		t.Errorf("the new CA: %v", got)
	}
	if got := ask(shop, "spiffe://shop/x"); got != codes.Unauthenticated {
		t.Errorf("the old CA: %v", got)
	}
	w.write("shop.pem", "junk")
	w.reload()
	if got := ask(other, "spiffe://shop/x"); got != codes.Unimplemented || len(w.gate.Problems()) != 1 {
		t.Errorf("with a broken file: %v, %v", got, w.gate.Problems())
	}
}

// A file that binds issuers to names, and CAs of clients' certificates to none, leaves these free to give any name. A
// server that takes certificates says so, until the file has client_cas.
func TestUnboundCAs(t *testing.T) {
	w := newWorld(t)
	bank := newAuthority(t)
	w.write("bank.pem", bank.pem())
	const issuers = `issuers: [{url: "https://login.example", audience: march, names: ["jwt:*"]}]` + "\n"
	const cas = `client_cas: [{ca: bank.pem, names: ["spiffe://bank/*"]}]` + "\n"
	for content, unbound := range map[string]bool{issuers: true, issuers + "client_cas: []": true, cas: false,
		issuers + cas: false} {
		w.write("identities.yaml", content)
		for _, certificates := range []bool{true, false} {
			var log bytes.Buffer
			cfg := access.Config{Policy: w.path("policy.yaml"), Identities: w.path("identities.yaml"),
				Certificates: certificates, Logger: hclog.New(&hclog.LoggerOptions{Output: &log})}
			gate := must(access.New(cfg))(t)
			if got, said := len(gate.Problems()), strings.Contains(log.String(), "may give any name"); (got == 1) !=
				(unbound && certificates) || said != (got == 1) {
				t.Errorf("%s with certificates %v: %v\n%s", content, certificates, gate.Problems(), log.String())
			}
			w.write("identities.yaml", issuers+cas)
			w.gate = gate
			w.reload()
			if list := gate.Problems(); len(list) > 0 {
				t.Errorf("once CAs are bound: %v", list)
			}
			w.write("identities.yaml", content)
		}
	}
}

// A CA below another one gives its own names alone, whichever chain the client sends, and in whatever certificate.
func TestClientCABelowAnother(t *testing.T) {
	w := newWorld(t)
	root, below := newAuthority(t), newAuthority(t)
	cross := root.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign},
		root.cert, &below.key.PublicKey)
	w.write("root.pem", root.pem())
	w.write("below.pem", below.pem())
	w.gate = w.twoOf(w.issuer, newIssuer(t), nil, `client_cas:
  - {ca: root.pem, names: ["spiffe://bank/*", "spiffe://shop/*"]}
  - {ca: below.pem, names: ["spiffe://shop/*"]}
`)
	server := root.server()
	at := w.serve(plainly, w.intercepted(grpc.Creds(credentials.NewTLS(server)))...)
	for name, want := range map[string]codes.Code{"spiffe://shop/x": codes.Unimplemented,
		"spiffe://bank/admin": codes.Unauthenticated} {
		below.cert = cross
		pair := below.pair(name, time.Time{})
		pair.Certificate = append(pair.Certificate, cross.Raw)
		conn := w.dial(at, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: root.pool(),
			Certificates: []tls.Certificate{pair}})
		_, err := marchv1.NewIDServiceClient(conn).Next(context.Background(), &marchv1.NextRequest{Tag: "order"})
		if status.Code(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Mistakes of the file are shown with their lines.
func TestIdentitiesRefused(t *testing.T) {
	w := newWorld(t)
	w.write("policy.yaml", twoRules)
	for content, says := range map[string]string{
		"":                           "the file is empty",
		"issuers: [{url: http://x}]": "allowed: the issuer's https:// address",
		"issuers: [{url: https://x, names: [jwt:a]}]":      "no audience",
		"issuers: [{url: https://x, audience: march}]":     "no names",
		"issuers: [{names: ['token:x']}]":                  "begin with jwt: or group:",
		"client_cas: [{ca: x, names: ['spiffe://bank*']}]": "no whole trust domain",
		"client_cas: [{ca: x, names: ['spiffe://b*/x']}]":  "no whole trust domain",
		"client_cas: [{ca: nosuch, names: ['dns:x']}]":     "nosuch",
		"client_cas: [{names: ['dns:x']}]":                 "no ca",
		"other: 1":                                         "client_cas, issuers",
	} {
		w.write("identities.yaml", content)
		_, err := access.New(access.Config{Policy: w.path("policy.yaml"), Identities: w.path("identities.yaml")})
		if allocator.KindOf(err) != allocator.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", content, err, says)
		}
	}
	w.write("identities.yaml", "client_cas: []")
	for says, cfg := range map[string]access.Config{
		"identities: given beside --oidc-audience": {Issuer: "https://x", Audience: "march"},
		"is no issuer of --identities":             {Issuer: "https://x"},
	} {
		cfg.Policy, cfg.Identities = w.path("policy.yaml"), w.path("identities.yaml")
		if _, err := access.New(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

// The example in the documentation is a file of identities.
func TestIdentitiesInDoc(t *testing.T) {
	content := must(os.ReadFile("../../docs/access.md"))(t)
	_, section, _ := strings.Cut(string(content), "## Several issuers and CAs\n")
	_, text, _ := strings.Cut(section, "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	if err := access.CheckIdentities("identities.yaml", []byte(text)); err != nil {
		t.Error(err)
	}
}
