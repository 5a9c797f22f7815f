package access

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access/policy"
)

// HTTP returns a handler that finds out the subject of each request, for Conn and IDs, and
// checks /metrics. Health checks need no identity. session returns the login
// of a browser, nil for none; it may be nil. Only pages take a login: programs, which call
// /v1/, give a token or a certificate with each request. refuse answers with an error.
func (g *Gate) HTTP(next http.Handler, session func(*http.Request) *Session,
	refuse func(http.ResponseWriter, error)) http.Handler {
	if g == nil {
		return next
	}
	metrics := policy.CallOf(policy.Metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if path == "/livez" || path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		s, c, err := g.prove(r, session)
		if err != nil {
			g.refused(r.Context(), unknown, nil, "", err)
		} else if path == "/metrics" {
			err = g.Check(r.Context(), s, policy.Request{Call: metrics})
		}
		if err != nil {
			w.Header().Set("Cache-Control", "no-store")
			refuse(w, err)
			return
		}
		known := r.WithContext(with(r.Context(), s, c))
		next.ServeHTTP(w, known)
		r.Pattern = known.Pattern // for metrics and traces
	})
}

// prove returns the caller of a request. Its errors are those of Authenticate.
func (g *Gate) prove(r *http.Request, session func(*http.Request) *Session) (s *Subject, c Credentials, err error) {
	if c, err = ofRequest(r); err != nil {
		return nil, c, err
	}
	if path := r.URL.Path; session != nil && c.Token == "" && c.Certificate == nil &&
		!strings.HasPrefix(path, "/v1/") && path != "/metrics" {
		c.Session = session(r)
	}
	s, err = g.Authenticate(r.Context(), c)
	if err != nil && c.Session != nil { // the login has ended: the page asks for another one
		c.Session = nil
		return g.current.Load().anonymous, c, nil
	}
	return s, c, err
}

// ofRequest returns the credentials of a request over HTTP.
func ofRequest(r *http.Request) (Credentials, error) {
	var chains [][]*x509.Certificate
	if r.TLS != nil {
		chains = r.TLS.VerifiedChains
	}
	return credentialsOf(AddressOf(r), chains, r.Header["Authorization"])
}

// AddressOf returns where a request comes from, without the port.
func AddressOf(r *http.Request) string {
	if address, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return address
	}
	return r.RemoteAddr
}

// Unary is an interceptor that checks calls. It must be inside the one that turns errors into
// statuses.
func (g *Gate) Unary(ctx context.Context, message any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	call := policy.CallOf(info.FullMethod)
	if g == nil || call != nil && call.Open() {
		return handler(ctx, message)
	}
	s, c, err := g.identify(ctx, call, "")
	if err == nil {
		err = g.checkMessage(ctx, s, call, message)
	}
	if err != nil {
		return nil, err
	}
	return handler(with(ctx, s, c), message)
}

// identify returns the subject of a call, and notes that it has none.
func (g *Gate) identify(ctx context.Context, call *policy.Call, tag string) (*Subject, Credentials, error) {
	s, c, err := g.caller(ctx)
	if err != nil {
		g.refused(ctx, unknown, call, tag, err)
	}
	return s, c, err
}

// caller returns a context's subject under the present files: of a Conn and of a door that logged in the one that it
// found, otherwise the one that the credentials of the call prove, or an anonymous one.
func (g *Gate) caller(ctx context.Context) (s *Subject, c Credentials, err error) {
	if p := of(ctx); p != nil {
		c = p.credentials
		s, err = g.fresh(ctx, p.subject, c)
	} else if c, err = ofCall(ctx); err == nil {
		s, err = g.Authenticate(ctx, c)
	}
	return s, c, err
}

// Stream is an interceptor that checks each message of a stream: a stream loses a right with
// the next message after the files or the proof of its identity changed. If no message comes,
// Run ends the stream's context, and so the stream.
func (g *Gate) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	call := policy.CallOf(info.FullMethod)
	if g == nil || call != nil && call.Open() {
		return handler(server, stream)
	}
	s, c, err := g.identify(stream.Context(), call, "")
	if err != nil {
		return err
	}
	if !s.caller.May(call) { // before anything is read
		return g.Check(stream.Context(), s, policy.Request{Call: call})
	}
	ctx, lasting := g.last(stream.Context(), s, c, call)
	guarded := &guardedStream{ServerStream: stream, ctx: with(ctx, s, c), gate: g, lasting: lasting, subject: s,
		credentials: c, asked: policy.Request{Call: call}, answers: !info.IsClientStream}
	defer guarded.close()
	return g.over(ctx, lasting, handler(server, guarded))
}

// guardedStream checks the messages of a stream. One goroutine reads from it, and another may
// write.
type guardedStream struct {
	grpc.ServerStream
	ctx         context.Context
	gate        *Gate
	lasting     *lasting
	subject     *Subject
	credentials Credentials
	asked       policy.Request // the last one
	answers     bool           // the client sends one request: each answer is checked instead
	counted     bool           // in the quota of streams: from the first request on
	mu          struct {
		sync.Mutex
		end    func() // ends counting; nil before the first request
		closed bool   // the call has returned; its reader may still be at it
	}
}

func (g *guardedStream) Context() context.Context { return g.ctx }

func (g *guardedStream) RecvMsg(m any) error {
	if err := g.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	tag := g.asked.Tag
	g.asked = request(g.asked.Call, m)
	if next, ok := m.(*marchv1.NextRequest); ok && next.GetTag() == "" {
		g.asked.Tag = tag // that of the message before
	}
	g.lasting.asks(g.asked.Tag)
	if err := g.check(); err != nil || g.counted {
		return err
	}
	end, err := g.subject.caller.Stream(g.asked)
	if err != nil {
		g.gate.metrics.refused(allocator.KindOf(err))
		return err
	}
	g.counted = true
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed {
		end()
	} else {
		g.mu.end = end
	}
	return nil
}

func (g *guardedStream) SendMsg(m any) error {
	if g.answers {
		if err := g.check(); err != nil {
			return err
		}
	}
	return g.ServerStream.SendMsg(m)
}

func (g *guardedStream) check() (err error) {
	if g.subject, err = g.gate.fresh(g.ctx, g.subject, g.credentials); err != nil {
		g.gate.refused(g.ctx, unknown, g.asked.Call, g.asked.Tag, err)
		return err
	}
	return g.gate.Check(g.ctx, g.subject, g.asked)
}

func (g *guardedStream) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.closed = true
	if g.mu.end != nil {
		g.mu.end()
	}
}

// Conn calls services of this process as a client calls them over a network: each call passes the
// gate's interceptors, for the subject of its context. HTTP and the pages have no other way to a
// service, so no method can be forgotten. Requests and answers are copied. Errors are those of the
// service, not yet statuses.
type Conn struct {
	gate    *Gate
	unary   map[string]unary  // by full name of the method
	streams map[string]stream // likewise
}

// errUnproven is the error of a call whose handler did not ask for an identity.
var errUnproven = &allocator.Error{Kind: allocator.Unauthenticated, Msg: "no identity was proven"}

type unary func(ctx context.Context, decode func(any) error) (any, error)

type stream func(grpc.ServerStream) error

// Conn returns a connection to the services that register adds.
func (g *Gate) Conn(register func(grpc.ServiceRegistrar)) *Conn {
	c := &Conn{gate: g, unary: make(map[string]unary), streams: make(map[string]stream)}
	register(c)
	return c
}

// RegisterService implements grpc.ServiceRegistrar.
func (c *Conn) RegisterService(d *grpc.ServiceDesc, service any) {
	for _, m := range d.Methods {
		c.unary["/"+d.ServiceName+"/"+m.MethodName] = func(ctx context.Context, decode func(any) error) (any, error) {
			return m.Handler(service, ctx, decode, c.gate.Unary)
		}
	}
	for _, m := range d.Streams {
		info := &grpc.StreamServerInfo{FullMethod: "/" + d.ServiceName + "/" + m.StreamName,
			IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams}
		c.streams[info.FullMethod] = func(s grpc.ServerStream) error {
			return c.gate.Stream(service, s, info, m.Handler)
		}
	}
}

// arrives returns the context that a service has of a call: what the caller sends has come in.
func (c *Conn) arrives(ctx context.Context) (context.Context, error) {
	if c.gate != nil && of(ctx) == nil {
		return nil, errUnproven
	}
	sent, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, sent), nil
}

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, request, answer any, _ ...grpc.CallOption) error {
	call, served := c.unary[method]
	if !served {
		return notServed(method)
	}
	ctx, err := c.arrives(ctx)
	if err != nil {
		return err
	}
	made, err := call(ctx, func(m any) error {
		transfer(m, request)
		return nil
	})
	if err == nil {
		transfer(answer, made)
	}
	return err
}

func notServed(method string) error {
	return status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

// transfer copies a message into an empty one.
func transfer(to, from any) {
	proto.Merge(to.(proto.Message), from.(proto.Message)) //nolint:errcheck // services have no other messages
}

// NewStream implements grpc.ClientConnInterface: no call has it, as Stream has the calls with many answers.
func (c *Conn) NewStream(_ context.Context, _ *grpc.StreamDesc, method string,
	_ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, notServed(method)
}

// Stream makes a call with one request and many answers, which it gives to send. It returns when the service does.
func (c *Conn) Stream(ctx context.Context, method string, request any, send func(any) error) error {
	serve, served := c.streams[method]
	if !served {
		return notServed(method)
	}
	ctx, err := c.arrives(ctx)
	if err != nil {
		return err
	}
	return serve(&answers{ctx: ctx, request: request, send: send})
}

// answers is a call with one request and many answers, as the service has it.
type answers struct {
	grpc.ServerStream // nil: there are no headers
	ctx               context.Context
	request           any
	send              func(any) error
}

func (a *answers) Context() context.Context { return a.ctx }

func (a *answers) RecvMsg(m any) error {
	transfer(m, a.request)
	return nil
}

func (a *answers) SendMsg(m any) error { return a.send(m) }

// Issuer issues IDs for the hot route of HTTP. The zero value is that of a server without the route.
type Issuer struct {
	Next      func(context.Context, *marchv1.NextRequest) (*marchv1.NextResponse, error)
	NextBatch func(context.Context, *marchv1.NextBatchRequest) (*marchv1.NextBatchResponse, error)
}

// IDs returns an issuer whose calls the gate checks, for the subject of their context, without
// the copies of a Conn.
func (g *Gate) IDs(i marchv1.IDServiceServer) Issuer {
	return Issuer{checked(g, marchv1.IDService_Next_FullMethodName, i.Next),
		checked(g, marchv1.IDService_NextBatch_FullMethodName, i.NextBatch)}
}

func checked[Q, A any](g *Gate, method string, call func(context.Context, *Q) (*A, error)) func(context.Context,
	*Q) (*A, error) {
	if g == nil {
		return call
	}
	rule := policy.CallOf(method)
	return func(ctx context.Context, request *Q) (*A, error) {
		p := of(ctx)
		if p == nil {
			return nil, errUnproven
		}
		s, err := g.fresh(ctx, p.subject, p.credentials)
		if err == nil {
			err = g.checkMessage(ctx, s, rule, request)
		}
		if err != nil {
			return nil, err
		}
		return call(ctx, request)
	}
}
