package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/room"
)

// workers is the concurrency of all figures of gRPC, Redis and PostgreSQL.
const workers = 16

// served is a running room and an echo server with the same settings.
type served struct {
	room, echo         []*grpc.ClientConn
	address            string // the room's
	roomHTTP, echoHTTP string
	stop               func() error
}

func (c *cluster) serve(ctx context.Context, name allocator.Instance, metrics bool,
	warm ...allocator.Tag) (*served, error) {
	return c.serveWith(ctx, name, metrics, func(*room.Config) {}, warm...)
}

// serveWith is serve for a room whose settings change modifies.
func (c *cluster) serveWith(ctx context.Context, name allocator.Instance, metrics bool, change func(*room.Config),
	warm ...allocator.Tag) (*served, error) {
	l, _, err := c.ledger()
	if err != nil {
		return nil, err
	}
	var listeners [4]net.Listener
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	rooms, echoes, roomHTTP, echoHTTP := listeners[0], listeners[1], listeners[2], listeners[3]
	cfg := room.DefaultConfig()
	change(&cfg)
	cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC, cfg.HTTP, cfg.WarmTags = "a", name, l, rooms, roomHTTP, warm
	var echoMetrics *observe.Metrics
	if metrics {
		cfg.Metrics, echoMetrics = observe.New("bench", prometheus.Labels{"room": "a"}), observe.New("bench", nil)
	}
	s, err := room.New(cfg)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return s.Run(running) })
	group.Go(func() error {
		return serve.Run(running, serve.Config{
			GRPC: echoes, HTTP: echoHTTP, Health: health.NewServer(), MaxRequest: 64 << 10,
			Drain: time.Second, Metrics: echoMetrics,
			Register: func(r grpc.ServiceRegistrar) { r.RegisterService(&echoService, nil) },
			Ready:    func(context.Context) []serve.Check { return nil },
			Routes: func(mux *http.ServeMux) {
				mux.HandleFunc("POST /v1/tags/{tag}/empty", func(http.ResponseWriter, *http.Request) {})
			},
		})
	})
	result := &served{address: rooms.Addr().String(), roomHTTP: roomHTTP.Addr().String(),
		echoHTTP: echoHTTP.Addr().String()}
	for range 2 {
		for address, conns := range map[string]*[]*grpc.ClientConn{rooms.Addr().String(): &result.room,
			echoes.Addr().String(): &result.echo} {
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				cancel()
				return nil, err
			}
			*conns = append(*conns, conn)
		}
	}
	result.stop = func() error {
		for _, conn := range slices.Concat(result.room, result.echo) {
			_ = conn.Close()
		}
		cancel()
		err := group.Wait()
		_ = l.Close()
		return err
	}
	for s.Ready() != nil {
		select {
		case <-running.Done():
			return nil, result.stop()
		case <-time.After(time.Millisecond):
		}
	}
	return result, nil
}

// echoService answers each empty message of a stream with another one.
var echoService = grpc.ServiceDesc{
	ServiceName: "bench.Echo", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Echo", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				if err := s.RecvMsg(&emptypb.Empty{}); err != nil {
					return nil //nolint:nilerr // the client is done
				}
				if err := s.SendMsg(&emptypb.Empty{}); err != nil {
					return err
				}
			}
		},
	}},
}

type echoStream struct{ grpc.ClientStream }

func (s echoStream) Send() error { return s.SendMsg(&emptypb.Empty{}) }
func (s echoStream) Recv() error { return s.RecvMsg(&emptypb.Empty{}) }

func echoStreams(conns []*grpc.ClientConn) func(context.Context, int) (load.Stream, error) {
	return func(ctx context.Context, i int) (load.Stream, error) {
		s, err := conns[i%len(conns)].NewStream(ctx, &echoService.Streams[0], "/bench.Echo/Echo")
		return echoStream{s}, err
	}
}

func healthCalls(conns []*grpc.ClientConn) func(int) load.Caller {
	return func(i int) load.Caller {
		client, request := healthpb.NewHealthClient(conns[i%len(conns)]), &healthpb.HealthCheckRequest{}
		return func(ctx context.Context) (int64, error) {
			_, err := client.Check(ctx, request)
			return 1, err
		}
	}
}

// measure makes load and returns the result. A failed call is an error.
func measure(ctx context.Context, cfg load.Config) (load.Result, error) {
	cfg.Workers = workers
	r, err := load.Run(ctx, cfg)
	if err == nil && r.Errors > 0 {
		err = fmt.Errorf("%d calls failed, the first with: %w", r.Errors, r.FirstError)
	}
	return r, err
}

func p999(r load.Result) float64 { return float64(r.Latency.ValueAtQuantile(99.9)) / 1000 }

func grpcRows(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	s, err := c.serve(ctx, "bench", true, tag)
	if err != nil {
		return err
	}
	calls := b.add(row{what: "gRPC Next vs empty unary call", unit: "/s", goal: 0.95})
	tail := b.add(row{what: "gRPC Next p99.9 vs empty unary call", unit: "us", goal: 1.1, atMost: true})
	stream := b.add(row{what: "Stream, IDs, vs empty messages echoed", unit: "/s", goal: 0.9})
	batch := b.add(row{what: "NextBatch(1000), IDs", unit: "/s"})
	lease := b.add(row{what: "Lease(1000), IDs", unit: "/s"})
	for range b.rounds {
		for _, m := range []struct {
			cfg load.Config
			to  func(load.Result)
		}{
			{load.Config{New: healthCalls(s.room)}, func(r load.Result) {
				calls.yard, tail.yard = append(calls.yard, r.CallsPerSecond()), append(tail.yard, p999(r))
			}},
			{load.Config{New: load.Unary(s.room, tag)}, func(r load.Result) {
				calls.measured, tail.measured = append(calls.measured, r.CallsPerSecond()),
					append(tail.measured, p999(r))
			}},
			{load.Config{NewStream: echoStreams(s.echo)}, func(r load.Result) {
				stream.yard = append(stream.yard, r.CallsPerSecond())
			}},
			{load.Config{NewStream: load.Streams(s.room, tag)}, func(r load.Result) {
				stream.measured = append(stream.measured, r.IDsPerSecond())
			}},
			{load.Config{New: load.Batch(s.room, tag, 1000)}, func(r load.Result) {
				batch.measured = append(batch.measured, r.IDsPerSecond())
			}},
			{load.Config{New: load.Lease(s.room, tag, 1000)}, func(r load.Result) {
				lease.measured = append(lease.measured, r.IDsPerSecond())
			}},
		} {
			m.cfg.Duration = 2 * b.unit
			r, err := measure(ctx, m.cfg)
			if err != nil {
				_ = s.stop()
				return err
			}
			m.to(r)
		}
	}
	b.stream = stream.measured
	return s.stop()
}

// firstRows compares the first Next of a tag in warm_tags, after a room said that it is ready,
// with the hundredth. Another tag has warmed up the connection and the code, so that only the
// cost of the tag's first call is left. Two equal calls differ by some percent from round to
// round, so the goal is 1.05.
func firstRows(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	first := b.add(row{what: "first Next of a warm tag vs its hundredth", unit: "us", goal: 1.05, atMost: true})
	for range max(b.rounds, 15) { // single calls: more rounds for a steady median
		s, err := c.serve(ctx, "bench", true, tag, otherTag)
		if err != nil {
			return err
		}
		other, call := load.Unary(s.room[:1], otherTag)(0), load.Unary(s.room[:1], tag)(0)
		for range 100 {
			if _, err := other(ctx); err != nil {
				return err
			}
		}
		hundredth := math.NaN()
		for i := range 100 {
			start := time.Now()
			if _, err := call(ctx); err != nil {
				return err
			}
			took := float64(time.Since(start)) / 1000
			if i == 0 {
				first.measured = append(first.measured, took)
			}
			hundredth = took
		}
		first.yard = append(first.yard, hundredth)
		if err := s.stop(); err != nil {
			return err
		}
	}
	return nil
}
