package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
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

// checkMessage returns nil if a subject may make a call with this message.
func (g *Gate) checkMessage(ctx context.Context, s *Subject, call *policy.Call, message any) error {
	if many, ok := message.(*marchv1.NextManyRequest); ok {
		return g.checkMany(ctx, s, call, many)
	}
	return g.Check(ctx, s, request(call, message))
}

// checkMany checks each tag of a call. A caller that has the right for no tag learns that
// first; then the message must be in order, which bounds the work of the rest.
func (g *Gate) checkMany(ctx context.Context, s *Subject, call *policy.Call, r *marchv1.NextManyRequest) error {
	if g == nil {
		return nil
	}
	if !s.caller.May(call) {
		return g.Check(ctx, s, policy.Request{Call: call, Tag: first(r.GetTags()).GetTag()})
	}
	if err := api.CheckMany(r); err != nil {
		return err
	}
	tags := make([]policy.TagIDs, len(r.GetTags()))
	for i, t := range r.GetTags() {
		tags[i] = policy.TagIDs{Tag: t.GetTag(), IDs: t.GetCount()}
	}
	refused, err := s.caller.CheckMany(time.Now(), policy.Request{Call: call, Room: g.cfg.Room}, tags)
	if err != nil {
		err = api.InMany(refused, tags[refused].Tag, err)
		g.refused(ctx, s.Name(), call, tags[refused].Tag, err)
	}
	return err
}

// first returns the first tag, or nil.
func first(tags []*marchv1.TagCount) *marchv1.TagCount {
	if len(tags) == 0 {
		return nil
	}
	return tags[0]
}

// request returns what a message asks for.
func request(call *policy.Call, message any) policy.Request {
	r := policy.Request{Call: call}
	switch m := message.(type) {
	case *marchv1.NextRequest:
		r.Tag, r.IDs = m.GetTag(), 1
	case *marchv1.NextBatchRequest:
		r.Tag, r.IDs = m.GetTag(), max(m.GetCount(), 1)
	case *marchv1.LeaseRequest:
		r.Tag, r.IDs = m.GetTag(), max(m.GetCount(), 1)
	case *marchv1.SkipTagRequest:
		r.Tag, r.Rooms = m.GetName(), m.GetRooms()
	case *marchv1.ForgetInstanceRequest:
		r.Rooms = one(m.GetRoom())
	case *marchv1.ConfirmInstanceRequest:
		r.Rooms = one(m.GetRoom())
	case interface{ GetTag() string }: // of ParseText, Decode and GetChain
		r.Tag = m.GetTag()
	case interface{ GetTag() *marchv1.Tag }: // of CreateTag and UpdateTag
		r.Tag = m.GetTag().GetName()
	case interface{ GetName() string }: // of GetTag, DeleteTag and PrescaleTag
		r.Tag = m.GetName()
	}
	return r
}

func one(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// addressOf returns where a call comes from, without the port.
func addressOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return tcp.IP.String()
	}
	return p.Addr.String()
}

// Take returns nil if a context's subject may take n IDs of a tag; a context without one is that
// of the peer's certificate, or an anonymous caller's. The doors for other systems' clients ask it before each call.
func (g *Gate) Take(ctx context.Context, tag string, n int64) error {
	if g == nil { // before the request is made: a door asks for each ID
		return nil
	}
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.IDService_NextBatch_FullMethodName),
		Tag: tag, IDs: n})
}

// Knows reports whether Take knows a context's subject without asking an issuer of tokens.
func (g *Gate) Knows(ctx context.Context) bool {
	if g == nil {
		return true
	}
	p := of(ctx)
	return p == nil || p.subject.current(g.current.Load())
}

// Barred reports whether a context's caller has proven nothing, and the policy lets anonymous callers do nothing at a
// door.
func (g *Gate) Barred(ctx context.Context) bool {
	s, _, err := g.caller(ctx)
	return err != nil || len(s.Names) == 0 && !s.May(marchv1.IDService_NextBatch_FullMethodName) &&
		!s.May(marchv1.IDService_Decode_FullMethodName)
}

// MayCreate returns nil if a context's subject may create a tag at a door.
func (g *Gate) MayCreate(ctx context.Context, tag string) error {
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.ConsoleService_CreateTag_FullMethodName), Tag: tag})
}

// MayRead returns nil if a context's subject may read where a tag is: it may decode the tag's
// IDs, as issuers and viewers may.
func (g *Gate) MayRead(ctx context.Context, tag string) error {
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.IDService_Decode_FullMethodName), Tag: tag})
}

func (g *Gate) door(ctx context.Context, r policy.Request) error {
	if g == nil {
		return nil
	}
	s, _, err := g.identify(ctx, r.Call, r.Tag)
	if err != nil {
		return err
	}
	return g.Check(ctx, s, r)
}

// Holder returns a context's caller by the name under which its workers are counted, with its quotas for a call with
// this full name. A caller that proved nothing is its address.
func (g *Gate) Holder(ctx context.Context, method, tag string) allocator.Holder {
	h := allocator.Holder{Share: allocator.DefaultShare}
	if g != nil {
		s, _, err := g.caller(ctx)
		if err != nil { // the proof has ended since the call was checked
			s = g.current.Load().anonymous
		}
		h = s.caller.Holder(policy.Request{Call: policy.CallOf(method), Tag: tag, Room: g.cfg.Room})
		if len(s.Names) > 0 {
			return h
		}
	}
	h.Name = "address " + cmp.Or(network(addressOf(ctx)), "unknown")
	return h
}

// OverQuota counts a call that was refused because of what its caller holds. It passes over other errors.
func (g *Gate) OverQuota(err error) {
	if _, is := errors.AsType[*allocator.WaitError](err); is && g != nil {
		g.metrics.refused(allocator.KindOf(err))
	}
}
