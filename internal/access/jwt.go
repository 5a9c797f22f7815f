package access

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
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

// Algorithms returns the signatures that a token of the issuer may have.
func Algorithms() []string { return slices.Clone(algorithms) }

const (
	// askIssuer bounds one request to the issuer.
	askIssuer = 5 * time.Second
	// issuerEvery is how often the issuer is asked, beyond the first few requests: the
	// library asks for the keys at each token that does not verify.
	issuerEvery = 10 * time.Second
	issuerBurst = 5
	// maxJWT bounds a token, in bytes.
	maxJWT = 12 << 10
	// maxGroups bounds the groups of a token that count.
	maxGroups = 200
)

// issuer verifies the tokens of an OpenID Connect issuer. It asks the issuer for its keys
// when the first token comes, so that a server starts without it.
type issuer struct {
	url, audience string
	client        *http.Client
	mu            struct {
		sync.Mutex
		provider *oidc.Provider // nil before it answered
		verifier *oidc.IDTokenVerifier
		err      error     // of the last try
		again    time.Time // when to try again
	}
}

func newIssuer(at, audience string, transport http.RoundTripper) (*issuer, error) {
	if u, err := url.Parse(at); err != nil || u.Host == "" ||
		u.Scheme != "https" && (u.Scheme != "http" || !api.Loopback(u.Hostname())) {
		return nil, allocator.Errorf(allocator.Invalid,
			"oidc-issuer: %.200q; allowed: the issuer's https:// address, or http:// on a loopback address", at)
	}
	if transport == nil {
		transport = http.DefaultTransport
	}
	return &issuer{url: at, audience: audience, client: &http.Client{
		Timeout: askIssuer, Transport: &limited{transport, rate.NewLimiter(rate.Every(issuerEvery), issuerBurst)},
	}}, nil
}

// limited bounds the requests to the issuer.
type limited struct {
	http.RoundTripper
	limiter *rate.Limiter
}

func (l *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && !l.limiter.Allow() {
		return nil, errors.New("the issuer was asked too often in the last seconds")
	}
	return l.RoundTripper.RoundTrip(r)
}

// provider returns the issuer's addresses, and what verifies its tokens. Its error is
// Unavailable. It asks the issuer again only some seconds after it failed.
func (i *issuer) provider() (*oidc.Provider, *oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.provider != nil {
		return i.mu.provider, i.mu.verifier, nil
	}
	if time.Now().Before(i.mu.again) {
		return nil, nil, i.mu.err
	}
	// The context stays with the provider: it has the client, and does not end.
	p, err := oidc.NewProvider(oidc.ClientContext(context.Background(), i.client), i.url)
	if err != nil {
		i.mu.err = allocator.Errorf(allocator.Unavailable,
			"the issuer of tokens (--oidc-issuer %s) does not answer: %w", i.url, err)
		i.mu.again = time.Now().Add(askIssuer)
		return nil, nil, i.mu.err
	}
	i.mu.provider = p
	i.mu.verifier = p.Verifier(&oidc.Config{ClientID: i.audience, SupportedSigningAlgs: algorithms})
	return p, i.mu.verifier, nil
}

// HasIssuer reports whether the gate has an issuer.
func (g *Gate) HasIssuer() bool { return g != nil && g.issuer != nil }

// Issuer returns the issuer's addresses and keys, and the client with which to ask it. The
// gate must have one. The error is Unavailable.
func (g *Gate) Issuer() (*oidc.Provider, *http.Client, error) {
	p, _, err := g.issuer.provider()
	return p, g.issuer.client, err
}

// verifier verifies a JWT.
type verifier interface {
	verify(ctx context.Context, token string) (Identity, error)
}

func (i *issuer) verify(ctx context.Context, token string) (Identity, error) {
	_, v, err := i.provider()
	if err != nil {
		return Identity{}, err
	}
	return verifyWith(ctx, v, token)
}

// keyFile verifies tokens with the keys of a JWKS file.
type keyFile struct{ verifier *oidc.IDTokenVerifier }

// parseKeys reads a JWKS file. from may be empty: then any issuer's tokens count, if the
// file's keys sign them.
func parseKeys(path string, content []byte, from, audience string) (*keyFile, error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(content, &set); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "jwks-file: %s: %w", path, err)
	}
	keys := &oidc.StaticKeySet{}
	for k, key := range set.Keys {
		if !key.Valid() || !key.IsPublic() {
			return nil, allocator.Errorf(allocator.Invalid,
				"jwks-file: %s: key %d (kid %.100q) is no public key; allowed: public keys of RSA, ECDSA and Ed25519",
				path, k+1, key.KeyID)
		}
		keys.PublicKeys = append(keys.PublicKeys, crypto.PublicKey(key.Key))
	}
	if len(keys.PublicKeys) == 0 {
		return nil, allocator.Errorf(allocator.Invalid,
			"jwks-file: %s has no keys; allowed: a JSON object with the list keys", path)
	}
	return &keyFile{oidc.NewVerifier(from, keys, &oidc.Config{
		ClientID: audience, SupportedSigningAlgs: algorithms, SkipIssuerCheck: from == "",
	})}, nil
}

func (f *keyFile) verify(ctx context.Context, token string) (Identity, error) {
	return verifyWith(ctx, f.verifier, token)
}

func verifyWith(ctx context.Context, v *oidc.IDTokenVerifier, token string) (Identity, error) {
	verified, err := v.Verify(ctx, token)
	if err != nil {
		return Identity{}, allocator.Errorf(allocator.Unauthenticated, "the token is not valid: %s", reason(err))
	}
	return IdentityOf(verified)
}

// reason returns why a token does not verify. The library's text may quote what the token
// claims, but never the token.
func reason(err error) string {
	if _, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
		return "it has expired"
	}
	return fmt.Sprintf("%.300s", err.Error())
}

// IdentityOf returns the identity of a verified token: its subject, then its groups.
func IdentityOf(t *oidc.IDToken) (Identity, error) {
	if t.Subject == "" {
		return Identity{}, allocator.Errorf(allocator.Unauthenticated, "the token has no subject (sub)")
	}
	id := Identity{Names: []string{policy.JWT + t.Subject}, Expires: t.Expiry}
	var claims struct {
		Groups json.RawMessage `json:"groups"`
	}
	if err := t.Claims(&claims); err != nil || len(claims.Groups) == 0 {
		return id, nil
	}
	var groups []string
	if json.Unmarshal(claims.Groups, &groups) != nil {
		groups = make([]string, 1)
		if json.Unmarshal(claims.Groups, &groups[0]) != nil {
			return id, nil
		}
	}
	for _, group := range groups[:min(len(groups), maxGroups)] {
		id.Names = append(id.Names, policy.Group+group)
	}
	return id, nil
}
