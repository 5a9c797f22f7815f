package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/throttle"
)

// Config are the settings of a Gate.
type Config struct {
	Policy string `flag:"policy" help:"YAML file that says which caller may make which call; it is read again when it changes. Without it, every caller may make every call"`
	Tokens string `flag:"tokens" help:"with --policy: file with the hashes of the tokens that callers may give, from 'march token create'"`
	Issuer string `flag:"oidc-issuer" help:"with --policy: address of the OpenID Connect issuer whose tokens (JWT) callers may give"`
	// Audience must be set if Issuer or Keys is.
	Audience string `flag:"oidc-audience" help:"the audience that such a token must have"`
	// With issuers in the file, Issuer is the one of them at which browsers log in.
	Identities string `flag:"identities" help:"with --policy: YAML file with several issuers and CAs of clients' certificates, and the names that each may give; with it, --oidc-issuer says at which of them browsers log in"`
	Keys       string `flag:"jwks-file" help:"file with the public keys (JWKS) that sign such tokens, instead of asking the issuer for them"`
	// Certificates says that the server takes clients' certificates.
	Certificates bool
	// Room is the room of the server; empty for a console.
	Room string
	// Transport reaches the issuer; nil is the default one.
	Transport http.RoundTripper
	// Register shows metrics; nil shows none.
	Register func(...prometheus.Collector)
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// Validate checks which settings are given together. Its error is Invalid.
func (cfg Config) Validate() error {
	switch {
	case cfg.Policy == "" && (cfg.Tokens != "" || cfg.Issuer != "" || cfg.Keys != "" || cfg.Audience != "" ||
		cfg.Identities != ""):
		return allocator.Errorf(allocator.Invalid,
			"policy: none, so that tokens would count for nothing; give --policy FILE")
	case cfg.Identities != "" && (cfg.Audience != "" || cfg.Keys != ""):
		return allocator.Errorf(allocator.Invalid, "identities: given beside --oidc-audience or --jwks-file, whose "+
			"tokens may give any name; allowed: issuers in the file")
	case cfg.Identities == "" && cfg.Audience == "" && (cfg.Issuer != "" || cfg.Keys != ""):
		return allocator.Errorf(allocator.Invalid,
			"oidc-audience: none, so that tokens for other services would count; give --oidc-audience")
	case cfg.Audience != "" && cfg.Issuer == "" && cfg.Keys == "":
		return allocator.Errorf(allocator.Invalid,
			"oidc-audience: given without an issuer; give --oidc-issuer or --jwks-file")
	}
	return nil
}

// Gate finds out which subject makes a call, and checks it. Its methods are safe for
// concurrent use, and let everything pass if it is nil.
type Gate struct {
	cfg      Config
	log      hclog.Logger
	usages   policy.Usages
	attempts attempts
	unsure   throttle.Log // tokens that cannot be checked
	metrics  *metrics
	refusals refusals
	lasting  allLasting
	ended    ended
	checks   checks
	current  atomic.Pointer[state]
	files    []*file
}

// state is what the files say, and what was found under it. It is replaced as a whole when a
// file changes, so that nothing outlives the right to it.
type state struct {
	policy    *policy.Policy
	tokens    tokens
	keys      *issuer   // of a file; nil for none
	issuers   []*issuer // one of which a token names, if there are several
	cas       bound
	unbound   bool // issuers are bound to names, and CAs of clients' certificates are not
	anonymous *Subject

	byToken subjects[[sha256.Size]byte]
	byCert  subjects[*x509.Certificate]
}

// New returns a gate; nil, which lets everything pass, if no policy is given. Its error is
// Invalid, and names the mistakes of the files.
func New(cfg Config) (*Gate, error) {
	if err := cfg.Validate(); err != nil || cfg.Policy == "" {
		return nil, err
	}
	g := &Gate{cfg: cfg, log: cfg.Logger, metrics: newMetrics(cfg.Register)}
	if g.log == nil {
		g.log = hclog.NewNullLogger()
	}
	if cfg.Issuer != "" {
		if err := checkIssuer(cfg.Issuer); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "oidc-issuer: %w", err)
		}
	}
	g.watch("policy", cfg.Policy)
	g.watch("identities", cfg.Identities)
	g.watch("tokens", cfg.Tokens)
	g.watch("jwks-file", cfg.Keys)
	for _, f := range g.files {
		if _, err := f.read(); err != nil {
			return nil, err
		}
	}
	s, err := g.load()
	if err != nil {
		return nil, err
	}
	g.current.Store(s)
	g.metrics.loaded(time.Now())
	return g, nil
}

// load makes a state of the files' contents. Its error is Invalid.
func (g *Gate) load() (*state, error) {
	s := &state{}
	ids, err := &identities{}, error(nil)
	for _, f := range g.files {
		switch f.flag {
		case "policy":
			s.policy, err = policy.Parse(f.path, f.content)
		case "tokens":
			s.tokens, err = parseTokens(f.path, f.content)
		case "jwks-file":
			s.keys, err = parseKeys(f.path, f.content, g.cfg.Issuer, g.cfg.Audience)
		case "identities":
			ids, err = parseIdentities(f.path, f.content)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := g.take(s, ids); err != nil {
		return nil, err
	}
	s.anonymous = g.subject(s, Identity{})
	return s, nil
}

// take adds the issuers and CAs to a state: those of a file, or else the one of the flags. Its error is Invalid.
func (g *Gate) take(s *state, ids *identities) (err error) {
	s.cas = ids.CAs
	if s.unbound = g.cfg.Certificates && len(ids.Issuers) > 0 && len(ids.CAs) == 0; s.unbound {
		g.log.Warn("CAs of clients' certificates may give any name, as client_cas is not in the file, and issuers are",
			"flag", "identities", "file", g.cfg.Identities)
	}
	if g.cfg.Issuer != "" && g.cfg.Audience != "" {
		one := byFlags
		one.URL, one.Audience = g.cfg.Issuer, g.cfg.Audience
		ids.Issuers = append(ids.Issuers, one)
	}
	var before []*issuer
	if current := g.current.Load(); current != nil {
		before = current.issuers
	}
	for _, of := range ids.Issuers {
		var i *issuer
		same := func(i *issuer) bool { return reflect.DeepEqual(i.issuerSettings, of) }
		if at := slices.IndexFunc(before, same); at >= 0 {
			i = before[at] // with its keys
		} else if i, err = newIssuer(of, g.cfg.Transport); err != nil {
			return err
		}
		s.issuers = append(s.issuers, i)
	}
	if g.cfg.Identities != "" && g.cfg.Issuer != "" &&
		!slices.ContainsFunc(s.issuers, func(i *issuer) bool { return i.URL == g.cfg.Issuer }) {
		return allocator.Errorf(allocator.Invalid, "oidc-issuer: %s, at which browsers log in, is no issuer of "+
			"--identities; allowed: one of them", g.cfg.Issuer)
	}
	return nil
}

func (g *Gate) subject(s *state, id Identity) *Subject {
	return &Subject{Identity: id, caller: s.policy.Rights(&g.usages, id.Names...), state: s}
}

// Authenticate returns the subject that credentials prove; an anonymous one if there are
// none. Its errors are Unauthenticated, TooMany and Unavailable.
func (g *Gate) Authenticate(ctx context.Context, c Credentials) (*Subject, error) {
	s := g.current.Load()
	switch {
	case c.Token != "":
		return g.byToken(ctx, s, c)
	case c.Certificate != nil:
		return g.byCertificate(s, c)
	case c.Session != nil:
		return g.bySession(ctx, s, c.Session)
	}
	return s.anonymous, nil
}

func (g *Gate) byToken(ctx context.Context, s *state, c Credentials) (*Subject, error) {
	key := sha256.Sum256([]byte(c.Token))
	known, now := s.byToken.get(key), time.Now()
	if known != nil && known.counts(now) {
		return known, nil
	}
	id, isOurs := s.tokens[key]
	if !isOurs {
		var err error
		if !c.known && known == nil {
			err = g.attempts.admit(c.Address, now)
		}
		if err != nil {
			return nil, err
		}
		if id, err = s.verify(ctx, c.Token); err != nil {
			switch kind := allocator.KindOf(err); {
			case kind == allocator.Unavailable:
				g.unsure.Log(now, g.log.Warn, "tokens cannot be checked", "error", err)
				err = errIssuerAway
			case kind == allocator.Unauthenticated && !c.known && known == nil:
				g.attempts.failed(c.Address, now)
			}
			return nil, err
		}
	}
	found := g.subject(s, id)
	if !isOurs && s.keys == nil {
		found.again = now.Add(keysAge)
	}
	if found.expired(now) {
		return nil, allocator.Errorf(allocator.Unauthenticated, "the token of %s expired at %s; give a new one",
			found.Name(), id.Expires.UTC().Format(time.RFC3339))
	}
	s.byToken.put(key, found, now)
	return found, nil
}

// errIssuerAway is what callers hear of it: they can mend neither the issuer nor its address.
var errIssuerAway = allocator.Errorf(allocator.Unavailable,
	"the token cannot be checked now, as its issuer does not answer; retry later")

// SessionOf returns the session of a login with a token.
func (g *Gate) SessionOf(ctx context.Context, token, address string) (*Session, error) {
	s, err := g.Authenticate(ctx, Credentials{Token: token, Address: address})
	if err != nil {
		g.refused(ctx, unknown, nil, "", err)
		return nil, err
	}
	session := &Session{Expires: s.Expires}
	if hash := sha256.Sum256([]byte(token)); len(s.state.tokens[hash].Names) > 0 {
		session.Hash = hash[:]
	} else {
		session.Names = s.Names
	}
	return session, nil
}

// verify verifies a token that is not in the file.
func (s *state) verify(ctx context.Context, token string) (Identity, error) {
	if s.keys == nil && len(s.issuers) == 0 || strings.HasPrefix(token, tokenPrefix) ||
		strings.Count(token, ".") != 2 || len(token) > maxJWT {
		return Identity{}, allocator.Errorf(allocator.Unauthenticated,
			"the token is not known; `march token create` makes one")
	}
	if s.keys != nil {
		return s.keys.verify(ctx, token)
	}
	from := issuerOf(token)
	for _, i := range s.issuers {
		if len(s.issuers) == 1 || i.URL == from {
			return i.verify(ctx, token)
		}
	}
	return Identity{}, allocator.Errorf(allocator.Unauthenticated, "the token is not valid: its issuer is %.200q; "+
		"allowed: the issuers of --identities", from)
}

func (g *Gate) byCertificate(s *state, c Credentials) (*Subject, error) {
	found, now := s.byCert.get(c.Certificate), time.Now()
	if found == nil {
		id, err := ofCertificate(c.Certificate)
		if err == nil {
			id.Names, err = s.cas.may(id.Names, c.chains)
		}
		if err != nil {
			return nil, err
		}
		found = g.subject(s, id)
		s.byCert.put(c.Certificate, found, now)
	}
	if found.expired(now) {
		return nil, allocator.Errorf(allocator.Unauthenticated, "the client certificate of %s expired at %s",
			found.Name(), found.Expires.UTC().Format(time.RFC3339))
	}
	return found, nil
}

// Check returns nil if a subject may make a request. It notes refusals.
func (g *Gate) Check(ctx context.Context, s *Subject, r policy.Request) error {
	if g == nil {
		return nil
	}
	r.Room = g.cfg.Room
	err := s.caller.Check(time.Now(), r)
	if err != nil {
		g.refused(ctx, s.Name(), r.Call, r.Tag, err)
	}
	return err
}

// fresh returns a subject under the present files, if they changed since it was found or its
// proof expired, and otherwise the subject itself.
func (g *Gate) fresh(ctx context.Context, s *Subject, c Credentials) (*Subject, error) {
	if s.current(g.current.Load()) {
		return s, nil
	}
	return g.Authenticate(ctx, c)
}
