package console_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/room"
)

// TestMain makes this test program a console if its environment says so, for the tests
// that kill processes.
func TestMain(m *testing.M) {
	if order := os.Getenv(consoleProcess); order != "" {
		if err := beConsole(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Parallel tests wait more than they work. So this many run at once, however few
	// processors there are. A flag overrides it.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var bg = context.Background()

// consoleOf is a running console over a real etcd.
type consoleOf struct {
	testing.TB
	marchv1.ConsoleServiceClient
	etcd *ledgertest.Etcd
	conn *grpc.ClientConn
	http string
}

// start starts a console over an etcd without a cluster.
func start(tb testing.TB) *consoleOf {
	tb.Helper()
	return startOver(tb, ledgertest.StartEtcd(tb))
}

func startOver(tb testing.TB, etcd *ledgertest.Etcd) *consoleOf {
	tb.Helper()
	c := &consoleOf{TB: tb, etcd: etcd}
	cfg := console.DefaultConfig()
	cfg.Ledger, cfg.GRPC, cfg.HTTP = c.ledger(), listen(tb), listen(tb)
	c.http = cfg.HTTP.Addr().String()
	server, err := console.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	run(tb, server.Run)
	c.conn, err = grpc.NewClient(cfg.GRPC.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.conn.Close() })
	c.ConsoleServiceClient = marchv1.NewConsoleServiceClient(c.conn)
	return c
}

// startHalves starts a console of a cluster with rooms a [0, 50) and b [50, 100)
// mod 100.
func startHalves(tb testing.TB) *consoleOf {
	tb.Helper()
	etcd := ledgertest.StartEtcd(tb)
	first, err := api.LayoutFromProto(halves())
	if err == nil {
		_, err = admin.New((&consoleOf{TB: tb, etcd: etcd}).ledger(), admin.DefaultConfig()).Init(bg, first, "test")
	}
	if err != nil {
		tb.Fatal(err)
	}
	return startOver(tb, etcd)
}

func halves() *marchv1.Layout {
	return layout(100, map[string][2]int64{"a": {0, 50}, "b": {50, 100}})
}

func layout(boundary int64, ranges map[string][2]int64) *marchv1.Layout {
	l := &marchv1.Layout{Boundary: boundary, Rooms: make(map[string]*marchv1.Range)}
	for name, r := range ranges {
		l.Rooms[name] = &marchv1.Range{Lower: r[0], Upper: r[1]}
	}
	return l
}

// ledger returns a new ledger over the console's etcd.
func (c *consoleOf) ledger() *ledger.Ledger {
	c.Helper()
	l, err := ledger.New(c.etcd.Store(c), ledger.DefaultConfig())
	if err != nil {
		c.Fatal(err)
	}
	return l
}

// room starts an instance and waits until it is ready.
func (c *consoleOf) room(in allocator.Room, name allocator.Instance) marchv1.IDServiceClient {
	c.Helper()
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC, cfg.Build = in, name, c.ledger(), listen(c), "test-build"
	server, err := room.New(cfg)
	if err != nil {
		c.Fatal(err)
	}
	run(c, server.Run)
	conn, err := grpc.NewClient(cfg.GRPC.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = conn.Close() })
	await(c, "room is ready", func() bool { return server.Ready() == nil })
	return marchv1.NewIDServiceClient(conn)
}

// create creates a tag.
func (c *consoleOf) create(tag *marchv1.Tag) *marchv1.Tag {
	c.Helper()
	r, err := c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: tag})
	if err != nil {
		c.Fatalf("create %v: %v", tag, err)
	}
	return r.GetTag()
}

// get asks the HTTP side.
func (c *consoleOf) get(path string) (code int, body string) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + c.http + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

// run runs a server until the test ends.
func run(tb testing.TB, server func(context.Context) error) {
	ctx, stop := context.WithCancel(bg)
	stopped := make(chan error, 1)
	go func() { stopped <- server(ctx) }()
	tb.Cleanup(func() {
		stop()
		select {
		case err := <-stopped:
			if err != nil {
				tb.Errorf("run: %v", err)
			}
		case <-time.After(patience):
			tb.Error("a server did not stop")
		}
	})
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

// patience is how long a test waits for an event. It detects an event that never happens,
// and does not measure how long an event takes.
const patience = time.Minute

// await polls until done or fails the test.
func await(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			tb.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// want describes a status.
type want struct {
	code   codes.Code
	reason string
	says   []string // in the message
}

func invalid(says ...string) want  { return want{codes.InvalidArgument, "invalid", says} }
func notFound(says ...string) want { return want{codes.NotFound, "not_found", says} }

// check fails the test unless err is as w describes.
func (w want) check(tb testing.TB, what string, err error) {
	tb.Helper()
	s := status.Convert(err)
	info := &errdetails.ErrorInfo{}
	for _, detail := range s.Details() {
		if found, ok := detail.(*errdetails.ErrorInfo); ok {
			info = found
		}
	}
	problem := ""
	if s.Code() != w.code || info.GetReason() != w.reason || info.GetDomain() != "march" {
		problem = fmt.Sprintf("want %v %q", w.code, w.reason)
	}
	for _, part := range w.says {
		if !strings.Contains(s.Message(), part) {
			problem += fmt.Sprintf(" does not say %q", part)
		}
	}
	if problem != "" {
		tb.Errorf("%s: got %v %q %q: %s", what, s.Code(), info.GetReason(), s.Message(), problem)
	}
}
