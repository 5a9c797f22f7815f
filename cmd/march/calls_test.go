package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestPagesAreOneList: a list that comes in pages is printed as one, with each unreadable key once. Where enough of it
// was read, no other page is asked for.
func TestPagesAreOneList(t *testing.T) {
	bad := func(key string) *marchv1.Unreadable { return &marchv1.Unreadable{Key: key} }
	pages := map[string]*marchv1.ListTagsResponse{
		"": {Tags: []*marchv1.Tag{{Name: "a"}}, NextPageToken: "b", Unreadable: []*marchv1.Unreadable{bad("x")}},
		"b": {Tags: []*marchv1.Tag{{Name: "b"}}, NextPageToken: "c",
			Unreadable: []*marchv1.Unreadable{bad("x"), bad("y")}},
		"c": {Tags: []*marchv1.Tag{{Name: "c"}}},
	}
	for _, test := range []struct {
		enough func(*marchv1.ListTagsResponse) bool
		want   *marchv1.ListTagsResponse
	}{
		{nil, &marchv1.ListTagsResponse{Tags: []*marchv1.Tag{{Name: "a"}, {Name: "b"}, {Name: "c"}},
			Unreadable: []*marchv1.Unreadable{bad("x"), bad("y")}}},
		{func(l *marchv1.ListTagsResponse) bool { return len(l.GetTags()) >= 1 },
			&marchv1.ListTagsResponse{Tags: []*marchv1.Tag{{Name: "a"}}, Unreadable: []*marchv1.Unreadable{bad("x")}}},
	} {
		read := allPages(func(_ marchv1.ConsoleServiceClient, _ context.Context, request *marchv1.ListTagsRequest,
			_ ...grpc.CallOption) (*marchv1.ListTagsResponse, error) {
			return proto.CloneOf(pages[request.GetPageToken()]), nil
		}, test.enough)
		got, err := read(nil, t.Context(), &marchv1.ListTagsRequest{})
		if err != nil || !proto.Equal(got, test.want) {
			t.Errorf("got %v, %v; want %v", got, err, test.want)
		}
	}
}

// A room of a release without NextMany answers that it has no such method. The command says
// what to do.
func TestNextManyOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	service := marchv1.IDService_ServiceDesc
	service.Methods = slices.DeleteFunc(slices.Clone(service.Methods), func(m grpc.MethodDesc) bool {
		return m.MethodName == "NextMany"
	})
	s := grpc.NewServer()
	s.RegisterService(&service, marchv1.UnimplementedIDServiceServer{})
	stdout, stderr, code := march(t, "id", "next", "order", "item=2", "--room", testcluster.Serve(t, s))
	want := "march id next: the room's release does not support several tags in one call; upgrade the room, " +
		"or ask for one tag at a time\n"
	if stdout != "" || stderr != want || code != exitFailed {
		t.Errorf("exit code %d, %q, %q; want %q", code, stdout, stderr, want)
	}
}

// Of several consoles the first that answers is asked, and an error names all. Before, --console took one address.
func TestSeveralConsoles(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := l.Addr().String()
	_ = l.Close()
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	up := testcluster.Serve(t, s)
	for _, test := range []struct{ consoles, fails string }{
		{up, ""}, {down + "," + up, ""}, {up + "," + down, ""}, {down + "," + down + "," + up, ""},
		{down, "no answer from the console at " + down + " (--console): connect: connection refused"},
		{down + "," + down,
			"no answer from the console at " + down + "," + down + " (--console): connect: connection refused"},
		{up + ",", `console: ""; allowed: HOST:PORT`},
		{up + ",two", `console: "two"; allowed: HOST:PORT`},
	} {
		to := &target{what: "console", address: test.consoles, timeout: time.Minute}
		err := to.call(t.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			return err
		})
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %v, want %q", test.consoles, err, test.fails)
		}
	}
}
