package api_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// failing fails each call with the Kind that the tag names. For any other tag it
// issues ID 1.
type failing struct {
	marchv1.UnimplementedIDServiceServer
}

func (failing) Next(_ context.Context, req *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	for kind := range allocator.Kinds {
		if req.GetTag() == kind.Error() {
			return nil, allocator.Errorf(kind, "tag %s", req.GetTag())
		}
	}
	return &marchv1.NextResponse{Id: 1}, nil
}

func (s failing) Stream(stream marchv1.IDService_StreamServer) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		resp, err := s.Next(stream.Context(), req)
		if err != nil {
			return err
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func dial(t *testing.T) marchv1.IDServiceClient {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(
		grpc.UnaryInterceptor(api.UnaryServerInterceptor),
		grpc.StreamInterceptor(api.StreamServerInterceptor))
	marchv1.RegisterIDServiceServer(server, failing{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(api.UnaryClientInterceptor),
		grpc.WithStreamInterceptor(api.StreamClientInterceptor))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return marchv1.NewIDServiceClient(conn)
}

func TestInterceptors(t *testing.T) {
	client := dial(t)
	for kind := range allocator.Kinds {
		t.Run(kind.Error(), func(t *testing.T) {
			check := func(err error) {
				t.Helper()
				if !errors.Is(err, kind) || allocator.KindOf(err) != kind || err.Error() != "tag "+kind.Error() {
					t.Errorf("got %v of Kind %v", err, allocator.KindOf(err))
				}
			}
			_, err := client.Next(t.Context(), &marchv1.NextRequest{Tag: kind.Error()})
			check(err)

			stream, err := client.Stream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&marchv1.NextRequest{Tag: kind.Error()}); err != nil {
				t.Fatal(err)
			}
			_, err = stream.Recv()
			check(err)
		})
	}
}

func TestInterceptorsOnSuccess(t *testing.T) {
	client := dial(t)
	resp, err := client.Next(t.Context(), &marchv1.NextRequest{Tag: "order"})
	if err != nil || resp.GetId() != 1 {
		t.Errorf("Next: %v, %v", resp, err)
	}
	stream, err := client.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&marchv1.NextRequest{Tag: "order"}); err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || resp.GetId() != 1 {
		t.Errorf("Stream: %v, %v", resp, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != io.EOF { // exactly: callers compare it
		t.Errorf("end of stream: %v, want io.EOF", err)
	}
}

func TestCanceledCall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := dial(t).Next(ctx, &marchv1.NextRequest{Tag: "order"})
	if !errors.Is(err, context.Canceled) || errors.Is(err, allocator.Internal) {
		t.Errorf("got %v, want context.Canceled and no Kind", err)
	}
}

func TestUnknownMethod(t *testing.T) {
	_, err := dial(t).Decode(t.Context(), &marchv1.DecodeRequest{})
	if !errors.Is(err, allocator.Internal) {
		t.Errorf("got %v of Kind %v, want Internal", err, allocator.KindOf(err))
	}
}

func TestServerInterceptorAllocatesNothing(t *testing.T) {
	ctx, req, resp := context.Background(), &marchv1.NextRequest{}, &marchv1.NextResponse{}
	handler := func(context.Context, any) (any, error) { return resp, nil }
	info := &grpc.UnaryServerInfo{}
	if n := testing.AllocsPerRun(100, func() { _, _ = api.UnaryServerInterceptor(ctx, req, info, handler) }); n != 0 {
		t.Errorf("%v allocations a call, want 0", n)
	}
}
