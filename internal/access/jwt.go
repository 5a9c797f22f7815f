package access

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"golang.org/x/time/rate"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/access/policy"
)

// algorithms are the signatures that a JWT may have: all with a private key. There is none
// without a signature, and none whose key the verifier must keep secret.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256,
	oidc.ES384, oidc.ES512, oidc.EdDSA,
}

const (
	// askIssuer bounds one request to the issuer.
	askIssuer = 5 * time.Second
	// issuerEvery is how often the issuer is asked, beyond the first few requests: the
	// library asks for the keys at each token that does not verify.
	issuerEvery = 10 * time.Second
	issuerBurst = 5
	// keysAge is after how long the issuer's keys are asked for again, and verified tokens are verified again: a key
	// that the issuer took out counts no longer than that. keysMost is how long keys count while the issuer is away.
	keysAge, keysMost = 5 * time.Minute, time.Hour
	// maxKeys bounds the issuer's answer, in bytes.
	maxKeys = 1 << 20
	// maxJWT bounds a token, in bytes.
	maxJWT = 12 << 10
	// maxIssuerKeys bounds the keys of an issuer: each may be tried for a token.
	maxIssuerKeys = 100
	// maxGroups bounds the groups of a token that count.
	maxGroups = 200
)

// issuer verifies the tokens of an OpenID Connect issuer. It asks the issuer for its addresses and keys
// when the first token comes, so that a server starts without it.
type issuer struct {
	issuerSettings
	client *http.Client
	file   *oidc.StaticKeySet // the keys of a file, instead of the issuer's; nil for none
	mu     struct {
		sync.Mutex
		provider *oidc.Provider     // its addresses; nil before it gave them
		keys     *oidc.StaticKeySet // nil before it gave them
		at       time.Time          // when it did
		err      error              // of the last try
		again    time.Time          // when to try again
		flight   chan struct{}      // closed when the try under way has ended; nil for none
	}
}

// checkIssuer checks an issuer's address. Its error is Invalid.
func checkIssuer(at string) error {
	if u, err := url.Parse(at); err != nil || u.Host == "" ||
		u.Scheme != "https" && (u.Scheme != "http" || !api.Loopback(u.Hostname())) {
		return allocator.Errorf(allocator.Invalid,
			"%.200q; allowed: the issuer's https:// address, or http:// on a loopback address", at)
	}
	return nil
}

// newIssuer returns an issuer. Its error is Invalid.
func newIssuer(of issuerSettings, transport http.RoundTripper) (*issuer, error) {
	if transport == nil {
		transport = http.DefaultTransport
	}
	if of.CA != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(of.Roots) {
			return nil, allocator.Errorf(allocator.Invalid, "identities: %s has no certificate in PEM", of.CA)
		}
		own := http.DefaultTransport.(*http.Transport).Clone() //nolint:errcheck // nothing replaces it
		own.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
		transport = own
	}
	return &issuer{issuerSettings: of, client: &http.Client{
		Timeout: askIssuer, Transport: &limited{transport, rate.NewLimiter(rate.Every(issuerEvery), issuerBurst),
			strings.HasPrefix(of.URL, "http:")},
	}}, nil
}

// limited bounds the requests to the issuer, and its answers: the library reads some to their end. What an issuer names
// or redirects to is asked over TLS as the issuer is: else who listens would read tokens, or give keys.
type limited struct {
	http.RoundTripper
	limiter *rate.Limiter
	plain   bool // the issuer is at http:// on a loopback address
}

func (l *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && (!l.plain || !api.Loopback(r.URL.Hostname())) {
		return nil, fmt.Errorf("the issuer names %.200q; allowed: addresses that begin with https://", r.URL)
	}
	if r.Method == http.MethodGet && !l.limiter.Allow() {
		return nil, errors.New("the issuer was asked too often in the last seconds")
	}
	answer, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = http.MaxBytesReader(nil, answer.Body, maxKeys)
	}
	return answer, err
}

func (i *issuer) away(err error) error {
	return allocator.Errorf(allocator.Unavailable, "the issuer of tokens %s does not answer: %w", i.URL,
		err)
}

// answer returns what the issuer answers to a request. status is 0 if it does not.
func (i *issuer) answer(r *http.Request) (status int, content []byte, err error) {
	answer, err := i.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	content, err = io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: HTTP status %d", r.URL.Path, answer.StatusCode)
	}
	return answer.StatusCode, content, err
}

// ask asks the issuer for its addresses, unless it gave them, and for its keys.
func (i *issuer) ask(p *oidc.Provider) (*oidc.Provider, *oidc.StaticKeySet, error) {
	if p == nil {
		// The context stays with the provider: it has the client, and does not end.
		var err error
		if p, err = oidc.NewProvider(oidc.ClientContext(context.Background(), i.client), i.URL); err != nil {
			return nil, nil, err
		}
	}
	var at struct {
		Keys string `json:"jwks_uri"`
	}
	if err := p.Claims(&at); err != nil {
		return p, nil, err
	}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, at.Keys, http.NoBody)
	if err != nil {
		return p, nil, err
	}
	_, content, err := i.answer(r)
	if err != nil {
		return p, nil, err
	}
	keys, err := publicKeys(content, true)
	return p, keys, err
}

// fetch asks the issuer, once for all callers that wait, and returns when that has ended; or at once, if it failed
// in the last seconds.
func (i *issuer) fetch() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.flight != nil {
		return i.mu.flight
	}
	done := make(chan struct{})
	if time.Now().Before(i.mu.again) {
		close(done)
		return done
	}
	before := i.mu.provider
	i.mu.flight = done
	go func() { // it ends within two times askIssuer
		p, keys, err := i.ask(before)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.mu.provider, i.mu.err, i.mu.flight = p, nil, nil
		if err == nil {
			i.mu.keys, i.mu.at = keys, time.Now()
		} else {
			i.mu.err, i.mu.again = i.away(err), time.Now().Add(askIssuer)
		}
		close(done)
	}()
	return done
}

// known returns the issuer's keys, how old they are, and why the last try to ask for them failed.
func (i *issuer) known() (keys *oidc.StaticKeySet, age time.Duration, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.keys, time.Since(i.mu.at), i.mu.err
}

// provider returns the issuer's addresses. Its error is Unavailable.
func (i *issuer) provider() (*oidc.Provider, error) {
	for asked := false; ; asked = true {
		i.mu.Lock()
		p, err := i.mu.provider, i.mu.err
		i.mu.Unlock()
		if p != nil {
			return p, nil
		}
		if asked {
			return nil, err
		}
		<-i.fetch()
	}
}

// asked are the issuer's keys for one token.
type asked struct {
	*issuer
	unsure error // why it is not known whether the issuer has the key of the token
}

// VerifySignature implements oidc.KeySet. It asks again for keys that are old, meanwhile with the ones that are known,
// and at once for those of a token that none of them signed.
func (a *asked) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	if a.file != nil {
		return a.file.VerifySignature(ctx, token)
	}
	set, age, _ := a.known()
	wait := set == nil || age > keysMost
	if age > keysAge {
		done := a.fetch()
		if wait {
			if err := a.until(ctx, done); err != nil {
				return nil, err
			}
			set, age, _ = a.known()
		}
	}
	payload, err := set.VerifySignature(ctx, token)
	if err == nil || age < issuerEvery {
		return payload, err
	}
	if err := a.until(ctx, a.fetch()); err != nil {
		return nil, err
	}
	set, _, _ = a.known()
	return set.VerifySignature(ctx, token)
}

// until waits until the issuer was asked. Its error, which is Unavailable, is also that of the token.
func (a *asked) until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		_, _, a.unsure = a.known()
	case <-ctx.Done():
		a.unsure = a.away(ctx.Err())
	}
	return a.unsure
}

// HasIssuer reports whether the gate has an issuer at which browsers log in.
func (g *Gate) HasIssuer() bool { return g != nil && g.cfg.Issuer != "" }

// login returns the issuer at which browsers log in. Its error is Unavailable.
func (g *Gate) login() (*issuer, error) {
	for _, v := range g.current.Load().issuers {
		if v.URL == g.cfg.Issuer {
			return v, nil
		}
	}
	return nil, allocator.Errorf(allocator.Unavailable, "the issuer of logins (--oidc-issuer %s) is not in "+
		"--identities", g.cfg.Issuer)
}

// Issuer returns the addresses and keys of the issuer at which browsers log in, and the client with which to ask it.
// The error is Unavailable.
func (g *Gate) Issuer() (*oidc.Provider, *http.Client, error) {
	i, err := g.login()
	if err != nil {
		return nil, nil, err
	}
	p, err := i.provider()
	return p, i.client, err
}

// VerifyLogin returns the nonce and the identity of a login for a client. Its errors are Unauthenticated and
// Unavailable.
func (g *Gate) VerifyLogin(ctx context.Context, client, token string) (nonce string, id Identity, err error) {
	i, err := g.login()
	if err != nil {
		return "", id, err
	}
	verified, err := i.verifyFor(ctx, client, token)
	if err != nil {
		return "", id, err
	}
	id, err = i.identity(verified)
	return verified.Nonce, id, err
}

func (i *issuer) verify(ctx context.Context, token string) (Identity, error) {
	verified, err := i.verifyFor(ctx, i.Audience, token)
	if err != nil {
		return Identity{}, err
	}
	return i.identity(verified)
}

// issuerOf returns the issuer that a JWT names; empty if that cannot be read. It proves nothing.
func issuerOf(token string) string {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	var claims struct {
		Issuer string `json:"iss"`
	}
	if raw, err := base64.RawURLEncoding.DecodeString(payload); err != nil || json.Unmarshal(raw, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

func (i *issuer) verifyFor(ctx context.Context, audience, token string) (*oidc.IDToken, error) {
	keys := &asked{issuer: i}
	verified, err := oidc.NewVerifier(i.URL, keys, &oidc.Config{ClientID: audience,
		SupportedSigningAlgs: algorithms, SkipIssuerCheck: i.file != nil && i.URL == ""}).Verify(ctx, token)
	switch {
	case keys.unsure != nil:
		return nil, keys.unsure
	case err != nil:
		return nil, allocator.Errorf(allocator.Unauthenticated, "the token is not valid: %s", reason(err))
	}
	return verified, nil
}

// parseKeys reads a JWKS file. from may be empty: then any issuer's tokens count, if the
// file's keys sign them.
func parseKeys(path string, content []byte, from, audience string) (*issuer, error) {
	keys, err := publicKeys(content, false)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "jwks-file: %s: %w", path, err)
	}
	i := &issuer{issuerSettings: byFlags, file: keys}
	i.URL, i.Audience = from, audience
	return i, nil
}

// publicKeys reads a JSON object with a list of keys. Others than public keys are passed over, or refused.
func publicKeys(content []byte, passOver bool) (*oidc.StaticKeySet, error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(content, &set); err != nil {
		return nil, err
	}
	keys := &oidc.StaticKeySet{}
	for k, key := range set.Keys {
		switch {
		case key.Valid() && key.IsPublic():
			keys.PublicKeys = append(keys.PublicKeys, crypto.PublicKey(key.Key))
		case !passOver:
			return nil, fmt.Errorf("key %d (kid %.100q) is no public key; allowed: public keys of RSA, ECDSA and "+
				"Ed25519", k+1, key.KeyID)
		}
	}
	switch n := len(keys.PublicKeys); {
	case n == 0:
		return nil, errors.New("it has no keys; allowed: a JSON object with the list keys")
	case n > maxIssuerKeys:
		return nil, fmt.Errorf("it has %d keys; allowed: 1 to %d", n, maxIssuerKeys)
	}
	return keys, nil
}

// reason returns why a token does not verify. The library's text may quote what the token
// claims, but never the token.
func reason(err error) string {
	if _, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
		return "it has expired"
	}
	return fmt.Sprintf("%.300s", err.Error())
}

// identity returns the identity of a verified token: its subject, then its groups. Its error is Unauthenticated.
func (of issuerSettings) identity(t *oidc.IDToken) (Identity, error) {
	claims := make(map[string]json.RawMessage)
	_ = t.Claims(&claims) // of a token without claims nothing is found
	user := texts(claims[of.User])
	if len(user) != 1 || user[0] == "" {
		return Identity{}, allocator.Errorf(allocator.Unauthenticated, "the token has no subject (%s)", of.User)
	}
	for claim, want := range of.Required {
		if !slices.Contains(texts(claims[claim]), want) {
			return Identity{}, allocator.Errorf(allocator.Unauthenticated, "the token's claim %s is not %q, which its "+
				"issuer's tokens need here", claim, want)
		}
	}
	name := policy.JWT + user[0]
	if !of.Names.Match(name) {
		return Identity{}, allocator.Errorf(allocator.Unauthenticated, "the issuer %s may not give the name %.200q; "+
			"allowed: its names in --identities", of.URL, name)
	}
	return Identity{Names: of.withGroups(name, claims), Expires: t.Expiry}, nil
}

// withGroups returns a subject's name, then its groups of these claims that the issuer may give.
func (of issuerSettings) withGroups(name string, claims map[string]json.RawMessage) []string {
	names, groups := []string{name}, texts(claims[of.Groups])
	for _, group := range groups[:min(len(groups), maxGroups)] {
		if group = policy.Group + group; of.Names.Match(group) {
			names = append(names, group)
		}
	}
	return names
}

// texts returns a claim's texts: one, or a list of them; true and false are texts here. None for another claim.
func texts(claim json.RawMessage) []string {
	var list []string
	if json.Unmarshal(claim, &list) == nil {
		return list
	}
	var one string
	if json.Unmarshal(claim, &one) == nil {
		return []string{one}
	}
	if s := string(claim); s == "true" || s == "false" {
		return []string{s}
	}
	return nil
}
