package main

import (
	"slices"
	"testing"

	"google.golang.org/grpc"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

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
