package serve_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// slow is a service whose calls last until released is closed. Calls for the tag "deaf" outlast
// their context.
type slow struct {
	marchv1.UnimplementedIDServiceServer
	begun    chan struct{}
	released chan struct{}
	ended    atomic.Int64
}

func (s *slow) Next(ctx context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	switch r.GetTag() {
	case "fast":
		return &marchv1.NextResponse{Id: 1}, nil
	case "bad":
		return nil, allocator.Errorf(allocator.Invalid, "tag: bad")
	case "lost":
		return nil, errors.New("a bug")
	}
	defer s.ended.Add(1)
	s.begun <- struct{}{}
	if r.GetTag() == "deaf" {
		<-ctx.Done()
		time.Sleep(200 * time.Millisecond) // outlasts its context
		return nil, ctx.Err()
	}
	select {
	case <-s.released:
		return &marchv1.NextResponse{Id: 2}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Stream answers each request with its number.
func (s *slow) Stream(stream marchv1.IDService_StreamServer) error {
	for n := int64(1); ; n++ {
		if _, err := stream.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.Send(&marchv1.NextResponse{Id: n}); err != nil {
			return err
		}
	}
}

// running is a running server.
type running struct {
	*slow
	client     marchv1.IDServiceClient
	conn       *grpc.ClientConn
	grpc, http string
	ready      atomic.Pointer[error]
	drained    atomic.Int64
	stop       context.CancelFunc
	stopped    chan error
}

func start(t *testing.T, drain time.Duration) *running {
	t.Helper()
	return startWith(t, func(cfg *serve.Config) { cfg.Drain = drain })
}

// startWith starts a server with a configuration that change modifies.
func startWith(t *testing.T, change func(*serve.Config)) *running {
	t.Helper()
	g, h := testcluster.Listen(t, ""), testcluster.Listen(t, "")
	r := &running{
		slow: &slow{begun: make(chan struct{}, 10), released: make(chan struct{})},
		grpc: g.Addr().String(), http: h.Addr().String(), stopped: make(chan error, 1),
	}
	var none error
	r.ready.Store(&none)
	health := health.NewServer()
	health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	ctx, stop := context.WithCancel(bg)
	r.stop = stop
	cfg := serve.Config{
		Settings: serve.Settings{GRPC: g, HTTP: h}, Health: health, MaxRequest: 1000,
		Register: func(s grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(s, r.slow) },
		Ready:    func(context.Context) []serve.Check { return []serve.Check{{Name: "ready", Err: *r.ready.Load()}} },
		Draining: func() { r.drained.Add(1) },
	}
	change(&cfg)
	go func() {
		r.stopped <- serve.Run(ctx, cfg)
		close(r.stopped)
	}()
	r.conn = testcluster.Dial(t, r.grpc)
	r.client = marchv1.NewIDServiceClient(r.conn)
	t.Cleanup(func() {
		_ = r.conn.Close()
		stop()
		<-r.stopped
	})
	return r
}

func (r *running) next(tag string) error {
	_, err := r.client.Next(bg, &marchv1.NextRequest{Tag: tag})
	return err
}

// end waits for Run and returns how long it took.
func (r *running) end(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	select {
	case err := <-r.stopped:
		if err != nil {
			t.Errorf("run: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the server did not stop")
	}
	return time.Since(began)
}

// TestDrain stops a server with a call under way, which is answered.
func TestDrain(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const drain = 20 * time.Second
		r := start(t, drain)
		answer := make(chan error, 1)
		go func() { answer <- r.next("slow") }()
		<-r.begun
		watch := must(healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{}))(t)
		for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING,
			healthpb.HealthCheckResponse_NOT_SERVING} {
			if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
				t.Errorf("health: %v, %v, want %v", got, err, want)
			}
			r.stop()
		}
		if got := r.get(t, "/livez"); got != http.StatusOK {
			t.Errorf("livez while it drains: %d", got)
		}
		close(r.released)
		if err := <-answer; err != nil {
			t.Errorf("the call under way: %v", err)
		}
		_ = r.conn.Close() // and with it the watch, which never ends by itself
		if took := r.end(t); took > drain/2 {
			t.Errorf("it stopped %v after the last call", took)
		}
		if r.drained.Load() != 1 {
			t.Errorf("Draining was called %d times", r.drained.Load())
		}
	})
}

// TestDrainEnds stops a server with calls that do not end. The end of the drain ends them, and Run
// returns only after they have returned.
func TestDrainEnds(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		for _, drain := range []time.Duration{0, 200 * time.Millisecond} {
			r := start(t, drain)
			answers := make(chan error, 2)
			for _, tag := range []string{"slow", "deaf"} {
				go func() { answers <- r.next(tag) }()
				<-r.begun
			}
			r.stop()
			if took := r.end(t); took < drain {
				t.Errorf("drain %v took %v", drain, took)
			}
			if got := r.ended.Load(); got != 2 {
				t.Errorf("Run returned with %d of 2 calls ended", got)
			}
			for range 2 {
				if code := status.Code(<-answers); code != codes.Unavailable && code != codes.Canceled {
					t.Errorf("a call that the drain ended: %v", code)
				}
			}
		}
	})
}

// TestDrainIsOne has calls hang on both sides: together they get one drain.
func TestDrainIsOne(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const drain = 3 * time.Second
		r := start(t, drain)
		go func() { _ = r.next("slow") }()
		<-r.begun
		conn := must(testcluster.DialContext(t.Context(), r.http))(t)
		defer conn.Close()
		fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") // one answered, then half of another
		must(bufio.NewReader(conn).ReadString('\n'))(t)
		fmt.Fprint(conn, "GET /livez HT")
		r.stop()
		if took := r.end(t); took >= drain*3/2 {
			t.Errorf("a drain of %v took %v", drain, took)
		}
	})
}

// TestStopsAtOnce ends the context before Run, or just as Run begins. That is no error, and
// nothing is left listening.
func TestStopsAtOnce(t *testing.T) {
	for k := range 50 {
		ctx, stop := context.WithCancel(bg)
		g, h := testcluster.Listen(t, ""), testcluster.Listen(t, "")
		if k%2 == 0 {
			stop()
		} else {
			go stop()
		}
		err := serve.Run(ctx, serve.Config{
			Settings: serve.Settings{GRPC: g, HTTP: h, Drain: time.Second}, Health: health.NewServer(), MaxRequest: 100,
			Register: func(grpc.ServiceRegistrar) {}, Ready: func(context.Context) []serve.Check { return nil },
		})
		stop()
		if err != nil {
			t.Fatalf("run: %v", err)
		}
		for _, l := range []net.Listener{g, h} {
			if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
				conn.Close()
				t.Fatal("the server still listens")
			}
		}
	}
}

// TestListenerFails closes a listener: Run ends with an error.
func TestListenerFails(t *testing.T) {
	for _, which := range []string{"grpc", "http"} {
		g, h := testcluster.Listen(t, ""), testcluster.Listen(t, "")
		taken := map[string]net.Listener{"grpc": g, "http": h}[which]
		_ = taken.Close()
		err := serve.Run(bg, serve.Config{
			Settings: serve.Settings{GRPC: g, HTTP: h, Drain: time.Second}, Health: health.NewServer(), MaxRequest: 100,
			Register: func(grpc.ServiceRegistrar) {}, Ready: func(context.Context) []serve.Check { return nil },
		})
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: got %v", which, err)
		}
	}
}

func TestErrorsHaveReasons(t *testing.T) {
	r := start(t, time.Second)
	s := status.Convert(r.next("bad"))
	if s.Code() != codes.InvalidArgument || len(s.Details()) != 1 {
		t.Errorf("got %v %v", s, s.Details())
	}
}

// TestChecks reads the answers of /livez and /readyz.
func TestChecks(t *testing.T) {
	r := start(t, time.Second)
	why := error(nil)
	for _, tt := range []struct {
		path string
		why  error
		want string
	}{
		{"/livez", nil, "200 ok\n"},
		{"/livez?verbose", nil, "200 [+]ping ok\nlivez check passed\n"},
		{"/readyz", nil, "200 ok\n"},
		{"/readyz?verbose=1", nil, "200 [+]ready ok\nreadyz check passed\n"},
		{"/readyz", errors.Join(errors.New("one"), errors.New("two")),
			"503 [-]ready failed: one; two\nreadyz check failed\n"},
		{"/livez", errors.New("not ready"), "200 ok\n"},
	} {
		why = tt.why
		r.ready.Store(&why)
		answer, err := http.Get("http://" + r.http + tt.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if got := fmt.Sprintf("%d %s", answer.StatusCode, body); err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v, want %q", tt.path, got, err, tt.want)
		}
		if got := answer.Header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s: Cache-Control %q", tt.path, got)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
