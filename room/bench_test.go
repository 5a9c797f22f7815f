package room_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// The figures that matter are ratios of benchmarks in one run: Next to Health,
// StreamPipelined to EchoPipelined.

// callers is how many goroutines share the one connection.
const callers = 16

func benchRoom(b *testing.B) *instance {
	c := newCluster(b, testcluster.Halves())
	c.tag(func(s *record.TagSettings) { s.MinStep = 10_000_000 }, "order")
	return c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order"} })
}

// unary makes b.N calls from all callers.
func unary(b *testing.B, call func() error) {
	b.ReportAllocs()
	b.ResetTimer()
	var work sync.WaitGroup
	for k := range callers {
		work.Go(func() {
			for n := k; n < b.N; n += callers {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
}

func BenchmarkNext(b *testing.B) {
	a := benchRoom(b)
	unary(b, func() error {
		_, err := a.Next(bg, &marchv1.NextRequest{Tag: "order"})
		return err
	})
}

func BenchmarkHealth(b *testing.B) {
	client := healthpb.NewHealthClient(benchRoom(b).Conn)
	unary(b, func() error {
		_, err := client.Check(bg, &healthpb.HealthCheckRequest{})
		return err
	})
}

func BenchmarkStreamPipelined(b *testing.B) {
	pipeline(b, benchRoom(b), &marchv1.NextRequest{Tag: "order"})
}

func BenchmarkEchoPipelined(b *testing.B) {
	l := testcluster.Listen(b, "")
	testcluster.Start(b, func(ctx context.Context) error {
		return serve.Run(ctx, serve.Config{
			Settings: serve.Settings{GRPC: l, Drain: time.Second}, Health: health.NewServer(), MaxRequest: 64 << 10,
			Register: func(r grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(r, echo{}) },
		})
	})
	pipeline(b, marchv1.NewIDServiceClient(testcluster.Dial(b, l.Addr().String())), &marchv1.NextRequest{})
}

// echo answers each request of a stream with an empty message.
type echo struct {
	marchv1.UnimplementedIDServiceServer
}

func (echo) Stream(stream marchv1.IDService_StreamServer) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.Send(&marchv1.NextResponse{}); err != nil {
			return err
		}
	}
}

// pipeline sends b.N requests on one stream, without waiting for answers.
func pipeline(b *testing.B, client marchv1.IDServiceClient, request *marchv1.NextRequest) {
	stream, err := client.Stream(bg)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var sending sync.WaitGroup
	sending.Go(func() {
		for range b.N {
			if err := stream.Send(request); err != nil {
				b.Error(err)
				return
			}
		}
		_ = stream.CloseSend()
	})
	for range b.N {
		if _, err := stream.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	sending.Wait()
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		b.Error(err)
	}
}
