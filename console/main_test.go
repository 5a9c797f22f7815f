package console_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

func TestMain(m *testing.M) {
	// Tests of processes wait more than they work. So this many run at once, however few
	// processors there are. A flag overrides it.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var bg = context.Background()

// consoleOf is a running console of a cluster.
type consoleOf struct {
	*testcluster.Cluster
	*testcluster.Console
}

// start starts a console over a store without a cluster.
func start(tb testing.TB) *consoleOf {
	tb.Helper()
	return startOver(testcluster.New(tb))
}

func startOver(c *testcluster.Cluster) *consoleOf {
	c.Helper()
	return &consoleOf{c, c.Console(nil)}
}

// startHalves starts a console of a cluster with rooms a [0, 50) and b [50, 100)
// mod 100.
func startHalves(tb testing.TB) *consoleOf {
	tb.Helper()
	c := testcluster.New(tb)
	c.Init(testcluster.Halves(), "test")
	return startOver(c)
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

// room starts an instance and waits until it is ready.
func (c *consoleOf) room(in allocator.Room, name allocator.Instance) *testcluster.Room {
	c.Helper()
	return c.Room(in, name, func(cfg *room.Config) { cfg.Build = "test-build" })
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
func (c *consoleOf) get(path string) (code int, body string) { return testcluster.Get(c.HTTP, path) }

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

// must returns the value of a call that may not fail: must(call())(t).
func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}
