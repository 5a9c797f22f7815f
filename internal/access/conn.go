package access

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/rest"
)

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
	var check grpc.UnaryServerInterceptor
	if c.gate != nil {
		check = c.gate.Unary
	}
	for _, m := range d.Methods {
		c.unary["/"+d.ServiceName+"/"+m.MethodName] = func(ctx context.Context, decode func(any) error) (any, error) {
			return m.Handler(service, ctx, decode, check)
		}
	}
	for _, m := range d.Streams {
		info := &grpc.StreamServerInfo{FullMethod: "/" + d.ServiceName + "/" + m.StreamName,
			IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams}
		c.streams[info.FullMethod] = func(s grpc.ServerStream) error {
			if c.gate == nil {
				return m.Handler(service, s)
			}
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

// NewStream implements grpc.ClientConnInterface for a call with one request and many answers.
func (c *Conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string,
	_ ...grpc.CallOption) (grpc.ClientStream, error) {
	serve, served := c.streams[method]
	if !served {
		return nil, notServed(method)
	}
	ctx, err := c.arrives(ctx)
	if err != nil {
		return nil, err
	}
	return &answers{ctx: ctx, serve: serve, next: make(chan any), ended: make(chan struct{})}, nil
}

// answers is a call with one request and many answers, as the caller has it. The service runs from
// CloseSend until it returns, at the latest soon after ctx ends.
type answers struct {
	grpc.ClientStream // nil: there are no headers
	ctx               context.Context
	serve             stream
	request           any
	next              chan any
	ended             chan struct{}
	err               error // why it ended, and
	panicked          any   // what the service panicked with, nil for nothing: both once ended is closed
}

// Context implements grpc.ClientStream.
func (a *answers) Context() context.Context { return a.ctx }

// SendMsg implements grpc.ClientStream.
func (a *answers) SendMsg(m any) error {
	a.request = m
	return nil
}

// CloseSend implements grpc.ClientStream: it begins the call.
func (a *answers) CloseSend() error {
	go func() {
		defer close(a.ended)
		defer func() { a.panicked = recover() }()
		a.err = a.serve(answering{a: a, ctx: a.ctx})
	}()
	return nil
}

// RecvMsg implements grpc.ClientStream. A panic of the service goes on here, where the caller's
// server answers it like any other.
func (a *answers) RecvMsg(m any) error {
	select {
	case answer := <-a.next:
		transfer(m, answer)
		return nil
	case <-a.ended:
	}
	switch {
	case a.panicked != nil:
		panic(a.panicked)
	case a.err != nil:
		return a.err
	}
	return io.EOF
}

// answering is the same call, as the service has it.
type answering struct {
	grpc.ServerStream // nil: there are no headers
	a                 *answers
	ctx               context.Context
}

// Context implements grpc.ServerStream.
func (s answering) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s answering) RecvMsg(m any) error {
	transfer(m, s.a.request)
	return nil
}

// SendMsg implements grpc.ServerStream.
func (s answering) SendMsg(m any) error {
	select {
	case s.a.next <- m:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// IDs returns an issuer whose calls the gate checks, for the subject of their context, without
// the copies of a Conn.
func (g *Gate) IDs(i rest.Issuer) rest.Issuer {
	if g == nil {
		return i
	}
	return checkedIssuer{g, i}
}

type checkedIssuer struct {
	gate   *Gate
	issuer rest.Issuer
}

// Next implements rest.Issuer.
func (c checkedIssuer) Next(ctx context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	if err := c.check(ctx, marchv1.IDService_Next_FullMethodName, r); err != nil {
		return nil, err
	}
	return c.issuer.Next(ctx, r)
}

// NextBatch implements rest.Issuer.
func (c checkedIssuer) NextBatch(ctx context.Context, r *marchv1.NextBatchRequest) (*marchv1.NextBatchResponse, error) {
	if err := c.check(ctx, marchv1.IDService_NextBatch_FullMethodName, r); err != nil {
		return nil, err
	}
	return c.issuer.NextBatch(ctx, r)
}

func (c checkedIssuer) check(ctx context.Context, method string, message any) error {
	p := of(ctx)
	if p == nil {
		return errUnproven
	}
	s, err := c.gate.fresh(ctx, p.subject, p.credentials)
	if err != nil {
		return err
	}
	return c.gate.checkMessage(ctx, s, policy.CallOf(method), message)
}
