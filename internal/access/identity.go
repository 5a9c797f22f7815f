package access

import (
	"cmp"
	"context"
	"crypto/x509"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
)

// Identity is who a caller has proven to be.
type Identity struct {
	// Names are the subject's names, as policies have them. The first one is its own. None
	// for an anonymous caller.
	Names []string
	// Expires is when the proof ends; zero if it does not.
	Expires time.Time
}

// Subject is an identity with its rights.
type Subject struct {
	Identity
	caller *policy.Caller
	state  *state    // under which the rights were found
	again  time.Time // when the proof must be verified again; zero if that does not change
}

// Name returns the subject's own name, or anonymous.
func (s *Subject) Name() string { return s.caller.Name() }

// May reports whether some tag and room exists for which the subject may make a call with
// this full name.
func (s *Subject) May(method string) bool { return s.caller.May(policy.CallOf(method)) }

// Allows reports whether the subject may make a call with this full name for a tag and for
// rooms; no rooms stand for all where the call needs rooms.
func (s *Subject) Allows(method, tag string, rooms ...string) bool {
	return s.caller.Allows(policy.Request{Call: policy.CallOf(method), Tag: tag, Rooms: rooms})
}

// expired reports whether the proof has ended.
func (s *Subject) expired(now time.Time) bool { return !s.Expires.IsZero() && now.After(s.Expires) }

// current reports whether a subject was found under this state, and its proof has not ended and need not be verified
// again. It reads the clock only if the proof ends at all.
func (s *Subject) current(under *state) bool {
	return s.state == under && (s.Expires.IsZero() || s.counts(time.Now()))
}

func (s *Subject) counts(now time.Time) bool {
	return !s.expired(now) && (s.again.IsZero() || now.Before(s.again))
}

// Credentials are what a caller gives to prove its identity.
type Credentials struct {
	// Token is a bearer token; empty for none. It counts before the certificate.
	Token string
	// Certificate is a client certificate that TLS has verified; nil for none.
	Certificate *x509.Certificate
	// Session is a login to the console's page; nil for none.
	Session *Session
	// Address is where the caller is, without a port: wrong tokens are counted by it.
	Address string

	chains [][]*x509.Certificate // how TLS verified the certificate
	known  bool                  // the token was good before, so it is no guess
}

// proven is a context that has its caller: one allocation for each call. It does not change.
type proven struct {
	context.Context
	subject     *Subject
	credentials Credentials // that prove it
}

func (p *proven) Value(key any) any {
	if _, ok := key.(provenKey); ok {
		return p
	}
	return p.Context.Value(key)
}

// provenKey is the key of a context's caller, which is a *proven.
type provenKey struct{}

// Login authenticates a caller, and returns a context under which Take, Conn and IDs
// check it. Its errors are Unauthenticated, TooMany and Unavailable.
func (g *Gate) Login(ctx context.Context, c Credentials) (context.Context, error) {
	if g == nil {
		return ctx, nil
	}
	s, err := g.Authenticate(ctx, c)
	if err != nil {
		g.refused(ctx, unknown, nil, "", err)
		return nil, err
	}
	return with(ctx, s, c), nil
}

func with(ctx context.Context, s *Subject, c Credentials) context.Context {
	return &proven{ctx, s, c}
}

// of returns a context's caller; nil if there is none.
func of(ctx context.Context) *proven {
	p, _ := ctx.Value(provenKey{}).(*proven)
	return p
}

// From returns a context's subject; nil if there is none.
func From(ctx context.Context) *Subject {
	if p := of(ctx); p != nil {
		return p.subject
	}
	return nil
}

// LoggedIn returns the name of a context's subject if a login to the page proved it, and
// otherwise the empty text.
func LoggedIn(ctx context.Context) string {
	if p := of(ctx); p != nil && p.credentials.Session != nil {
		return p.subject.Name()
	}
	return ""
}

// ofCertificate returns the identity of a verified certificate: its SPIFFE URI, then its DNS
// names.
func ofCertificate(c *x509.Certificate) (Identity, error) {
	id := Identity{Expires: c.NotAfter}
	for _, uri := range c.URIs {
		if uri.Scheme != "spiffe" {
			continue
		}
		if len(id.Names) > 0 {
			return Identity{}, allocator.Errorf(allocator.Unauthenticated,
				"the client certificate has several SPIFFE URIs; allowed: one")
		}
		id.Names = append(id.Names, uri.String())
	}
	for _, name := range c.DNSNames {
		id.Names = append(id.Names, policy.DNS+strings.ToLower(name))
	}
	if len(id.Names) == 0 {
		return id, allocator.Errorf(allocator.Unauthenticated,
			"the client certificate has no SPIFFE URI and no DNS name, so it names no subject")
	}
	return id, nil
}

// wrapped is a connection's AuthInfo around that of TLS.
type wrapped interface{ Unwrap() credentials.AuthInfo }

// ofCall returns the credentials of a call over gRPC.
func ofCall(ctx context.Context) (Credentials, error) {
	var chains [][]*x509.Certificate
	if p, ok := peer.FromContext(ctx); ok {
		info := p.AuthInfo
		if w, ok := info.(wrapped); ok {
			info = w.Unwrap()
		}
		if tls, ok := info.(credentials.TLSInfo); ok {
			chains = tls.State.VerifiedChains
		}
	}
	return credentialsOf(addressOf(ctx), chains, metadata.ValueFromIncomingContext(ctx, "authorization"))
}

// credentialsOf returns the credentials of a caller at an address: of its certificate, as TLS verified it, and of the
// headers Authorization that it gave.
func credentialsOf(address string, chains [][]*x509.Certificate, given []string) (c Credentials, err error) {
	c.Address = address
	if len(chains) > 0 && len(chains[0]) > 0 {
		c.Certificate, c.chains = chains[0][0], chains
	}
	switch len(given) {
	case 0:
	case 1:
		c.Token, err = bearer(given[0])
	default:
		err = allocator.Errorf(allocator.Unauthenticated, "authorization: given %d times; allowed: once", len(given))
	}
	return c, err
}

// bearer returns the token of an Authorization header.
func bearer(header string) (string, error) {
	const scheme = "bearer "
	if len(header) <= len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", allocator.Errorf(allocator.Unauthenticated,
			"authorization: a scheme that is not Bearer; allowed: Bearer TOKEN")
	}
	return strings.TrimSpace(header[len(scheme):]), nil
}

// subjects are the subjects that were found, by what proved them. The zero value has none.
type subjects[K comparable] struct {
	mu struct {
		sync.RWMutex
		found map[K]*Subject
	}
}

// maxRemembered bounds the subjects of one kind of proof.
const maxRemembered = 10_000

// get returns the subject of a proof, or nil if it was not found yet.
func (l *subjects[K]) get(proof K) *Subject {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.found[proof]
}

// put remembers the subject of a proof. If there are too many, it forgets the expired ones, or
// else any.
func (l *subjects[K]) put(proof K, s *Subject, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.found == nil {
		l.mu.found = make(map[K]*Subject)
	}
	if len(l.mu.found) >= maxRemembered {
		l.forget(now)
	}
	l.mu.found[proof] = s
}

// forget makes room for one subject. The lock is held.
func (l *subjects[K]) forget(now time.Time) {
	for proof, s := range l.mu.found {
		if s.expired(now) {
			delete(l.mu.found, proof)
		}
	}
	for proof := range l.mu.found {
		if len(l.mu.found) < maxRemembered {
			return
		}
		delete(l.mu.found, proof)
	}
}

// A wrong token costs a lookup, or the verification of a signature. Each address may give
// some wrong tokens, then as many as failEvery lets pass. Callers whose tokens are known do
// not come here.
const (
	failBurst = 20
	failEvery = time.Second
	// maxAddresses bounds the addresses that are told apart; the others share one bound.
	maxAddresses = 10_000
)

// attempts bounds wrong tokens by address, of IPv6 by network: a caller has all addresses of one.
type attempts struct {
	mu struct {
		sync.Mutex
		by    map[string]*rate.Limiter
		swept time.Time
	}
}

// of returns by which address a caller's attempts are counted: empty for the one bound that those share who come when
// all others are in use. The lock is held.
func (a *attempts) of(address string) string {
	if address = network(address); a.mu.by[address] == nil && len(a.mu.by) >= maxAddresses {
		return ""
	}
	return address
}

// admit returns an error, which is TooMany, if an address gave too many wrong tokens.
func (a *attempts) admit(address string, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.of(address)
	l := a.mu.by[of]
	if l == nil || l.TokensAt(now) >= 1 {
		return nil
	}
	return &allocator.WaitError{After: failEvery, Err: allocator.Errorf(allocator.TooMany,
		"too many wrong tokens from %s; allowed: %d, then one every %v", cmp.Or(of, "very many addresses"), failBurst,
		failEvery)}
}

// failed counts a wrong token.
func (a *attempts) failed(address string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.by == nil {
		a.mu.by = make(map[string]*rate.Limiter)
	}
	if len(a.mu.by) >= maxAddresses && now.Sub(a.mu.swept) >= failEvery {
		a.mu.swept = now
		for other, l := range a.mu.by {
			if l.TokensAt(now) >= failBurst {
				delete(a.mu.by, other)
			}
		}
	}
	of := a.of(address)
	l := a.mu.by[of]
	if l == nil {
		l = rate.NewLimiter(rate.Every(failEvery), failBurst)
		a.mu.by[of] = l
	}
	l.AllowN(now, 1)
}
