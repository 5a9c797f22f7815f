package access

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access/policy"
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

// Context implements grpc.ServerStream.
func (a *answers) Context() context.Context { return a.ctx }

// RecvMsg implements grpc.ServerStream.
func (a *answers) RecvMsg(m any) error {
	transfer(m, a.request)
	return nil
}

// SendMsg implements grpc.ServerStream.
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
