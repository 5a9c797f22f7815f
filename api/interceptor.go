package api

import (
	"context"

	"google.golang.org/grpc"
)

// ActorHeader is the metadata key with which a client names the actor of a call.
// The audit records it unchecked.
const ActorHeader = "march-actor"

// UnaryServerInterceptor turns a handler's error into a status. It is on the
// hot path: without an error it does nothing.
func UnaryServerInterceptor(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, ToStatus(err)
	}
	return resp, nil
}

// StreamServerInterceptor turns the error that ends a stream into a status.
func StreamServerInterceptor(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	return ToStatus(handler(srv, stream))
}

// UnaryClientInterceptor turns a call's status into an error with its Kind.
func UnaryClientInterceptor(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := invoker(ctx, method, req, reply, conn, opts...); err != nil {
		return FromStatus(err)
	}
	return nil
}

// StreamClientInterceptor turns every status of a stream into an error with its
// Kind. io.EOF stays io.EOF.
func StreamClientInterceptor(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, FromStatus(err)
	}
	return clientStream{stream}, nil
}

// clientStream converts the errors of all methods that may return a status.
type clientStream struct{ grpc.ClientStream }

func (s clientStream) SendMsg(m any) error {
	if err := s.ClientStream.SendMsg(m); err != nil {
		return FromStatus(err)
	}
	return nil
}

func (s clientStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return FromStatus(err)
	}
	return nil
}

func (s clientStream) CloseSend() error {
	if err := s.ClientStream.CloseSend(); err != nil {
		return FromStatus(err)
	}
	return nil
}
