package serve_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/metadata"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// broken fails in the way that the tag names.
type broken struct {
	marchv1.UnimplementedIDServiceServer
}

func (broken) Next(_ context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	if r.GetTag() == "missing" {
		return nil, allocator.Errorf(allocator.NotFound, "there is no tag missing")
	}
	return nil, errors.New("a bug")
}

func (broken) Stream(marchv1.IDService_StreamServer) error { return errors.New("a bug in a stream") }

// An unforeseen failure of a call is logged, with its trace. A failure that the caller can handle
// is not. Repeated failures are one line.
func TestFailures(t *testing.T) {
	g := testcluster.Listen(t, "")
	var log bytes.Buffer
	stop := testcluster.Run(t, func(ctx context.Context) error {
		return serve.Run(ctx, serve.Config{
			GRPC: g, Health: health.NewServer(), MaxRequest: 1 << 10, Drain: time.Second,
			Register: func(r grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(r, broken{}) },
			Logger:   hclog.New(&hclog.LoggerOptions{Output: &log}),
		})
	})
	conn := testcluster.Dial(t, g.Addr().String())
	client := marchv1.NewIDServiceClient(conn)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	traced := metadata.AppendToOutgoingContext(bg, "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	for _, tag := range []string{"missing", "order", "order", "missing", "order"} {
		if _, err := client.Next(traced, &marchv1.NextRequest{Tag: tag}); err == nil {
			t.Errorf("%s: no error", tag)
		}
	}
	if stream, err := client.Stream(bg); err != nil {
		t.Error(err)
	} else if _, err := stream.Recv(); err == nil {
		t.Error("no error from the stream")
	}
	_ = conn.Close()
	stop()
	got := log.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, "call failed") ||
		!strings.Contains(got, "trace_id="+trace) ||
		!strings.Contains(got, "method=/march.v1.IDService/Next") || !strings.Contains(got, "a bug") {
		t.Errorf("logged:\n%s", got)
	}
}
