package serve_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

const maxBody = 1000

// ids issues 1, 2, 3... for every tag, except for those that make it fail.
type ids struct {
	marchv1.UnimplementedIDServiceServer
	last, leased atomic.Int64
	lease        atomic.Pointer[marchv1.LeaseRequest] // the last one
}

func (s *ids) Next(ctx context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	if _, err := allocator.ParseTag(r.GetTag()); err != nil {
		return nil, err
	}
	switch r.GetTag() {
	case "unknown":
		return nil, allocator.Errorf(allocator.NotFound, "tag unknown does not exist")
	case "away":
		return nil, &allocator.AwayError{Tag: "away", Since: time.Unix(0, 0), Err: io.EOF}
	case "limit":
		return nil, allocator.Errorf(allocator.Exhausted, "tag limit is at its limit, 20")
	case "noRange", "no-range":
		return nil, allocator.Errorf(allocator.NoRange, "room a has no range in layout version 2")
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	case "panic":
		panic("at the disco")
	case "lost":
		return nil, errors.New("nobody foresaw this")
	case "last":
		return &marchv1.NextResponse{Id: math.MaxInt64}, nil
	}
	return &marchv1.NextResponse{Id: s.last.Add(1)}, nil
}

func (s *ids) NextBatch(ctx context.Context, r *marchv1.NextBatchRequest) (*marchv1.NextBatchResponse, error) {
	if n := r.GetCount(); n < 1 || n > api.MaxBatch {
		return nil, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, api.MaxBatch)
	}
	if _, err := s.Next(ctx, &marchv1.NextRequest{Tag: r.GetTag()}); err != nil {
		return nil, err
	}
	first := s.last.Add(r.GetCount()-1) - r.GetCount() + 1 // Next has taken one
	answer := &marchv1.NextBatchResponse{Runs: []*marchv1.Run{{First: first, Count: r.GetCount()}}}
	if r.GetTag() == "runs" && !r.GetContiguous() {
		answer.Runs = append(answer.Runs, &marchv1.Run{First: math.MaxInt64, Count: 1})
	}
	return answer, nil
}

func (s *ids) Lease(_ context.Context, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error) {
	if _, err := allocator.ParseTag(r.GetTag()); err != nil {
		return nil, err
	}
	if r.GetCount() < 1 {
		return nil, allocator.Errorf(allocator.Invalid, "count: %d", r.GetCount())
	}
	if r.GetTag() == "lost" {
		return nil, errors.New("nobody foresaw this")
	}
	s.leased.Add(r.GetCount())
	s.lease.Store(r)
	return &marchv1.LeaseResponse{Segment: &marchv1.Segment{First: math.MaxInt64 - 1, Count: r.GetCount()}}, nil
}

func (s *ids) Decode(_ context.Context, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	if _, err := allocator.ParseTag(r.GetTag()); err != nil {
		return nil, err
	}
	return &marchv1.DecodeResponse{Residue: r.GetId()}, nil
}

// room remembers its callers and their requests.
type room struct {
	marchv1.UnimplementedRoomServiceServer
	ctx    context.Context
	update *marchv1.UpdateTagRequest
	list   *marchv1.ListChainsRequest
}

func (s *room) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	s.ctx, s.update = ctx, r
	return &marchv1.UpdateTagResponse{Tag: r.GetTag()}, nil
}

func (s *room) ListChains(ctx context.Context, r *marchv1.ListChainsRequest) (*marchv1.ListChainsResponse, error) {
	s.ctx, s.list = ctx, r
	return &marchv1.ListChainsResponse{}, nil
}

func (s *room) GetChain(ctx context.Context, r *marchv1.GetChainRequest) (*marchv1.GetChainResponse, error) {
	switch r.GetTag() {
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	case "panic":
		panic("at the disco")
	}
	return nil, status.Error(codes.Unavailable, "from elsewhere")
}

// routed is the routes of a room.
type routed struct {
	*http.ServeMux
	ids  *ids
	room *room
	log  *bytes.Buffer
}

// inProcess is a connection to services without a gate.
func inProcess(i marchv1.IDServiceServer, r marchv1.RoomServiceServer, c marchv1.ConsoleServiceServer) *access.Conn {
	return (*access.Gate)(nil).Conn(func(s grpc.ServiceRegistrar) {
		marchv1.RegisterIDServiceServer(s, i)
		marchv1.RegisterRoomServiceServer(s, r)
		marchv1.RegisterConsoleServiceServer(s, c)
	})
}

func serveRoom(t testing.TB) *routed {
	t.Helper()
	s := &routed{ServeMux: http.NewServeMux(), ids: &ids{}, room: &room{}, log: &bytes.Buffer{}}
	conn := inProcess(s.ids, s.room, marchv1.UnimplementedConsoleServiceServer{})
	routes := must(serve.RoomRoutes(marchv1.NewIDServiceClient(conn), (*access.Gate)(nil).IDs(s.ids),
		marchv1.NewRoomServiceClient(conn), maxBody, hclog.New(&hclog.LoggerOptions{Output: s.log})))(t)
	routes(s.ServeMux)
	return s
}

// do sends a request, such as "POST /path body", with headers such as "Name: value".
func (s *routed) do(line string, headers ...string) *httptest.ResponseRecorder {
	method, rest, _ := strings.Cut(line, " ")
	target, body, _ := strings.Cut(rest, " ")
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
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
