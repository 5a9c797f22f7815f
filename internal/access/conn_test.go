package access_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

// watched is a console whose migrations are watched: "two" has two lines, "panics" panics after
// its first one, and any other lasts until its caller goes.
type watched struct {
	marchv1.UnimplementedConsoleServiceServer
	left chan struct{} // closed when a watch that lasts ends
}

func (s watched) WatchMigration(r *marchv1.WatchMigrationRequest,
	stream marchv1.ConsoleService_WatchMigrationServer) error {
	line := &marchv1.WatchMigrationResponse{Migration: &marchv1.Migration{Id: r.GetId()}}
	for range 2 {
		if err := stream.Send(line); err != nil {
			close(s.left)
			return err
		}
		if r.GetId() == "panics" {
			panic("it broke")
		}
	}
	if r.GetId() == "two" {
		return nil
	}
	defer close(s.left)
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

// A call with many answers in the server's own process ends as its service does: well, with the
// end of the caller's context, or with the service's panic.
func TestConnStreams(t *testing.T) {
	service := watched{left: make(chan struct{})}
	console := marchv1.NewConsoleServiceClient((*access.Gate)(nil).Conn(func(r grpc.ServiceRegistrar) {
		marchv1.RegisterConsoleServiceServer(r, service)
	}))
	watch := func(ctx context.Context, id string, n int) grpc.ServerStreamingClient[marchv1.WatchMigrationResponse] {
		answers, err := console.WatchMigration(ctx, &marchv1.WatchMigrationRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if line, err := answers.Recv(); err != nil || line.GetMigration().GetId() != id {
				t.Fatalf("%s: %v, %v", id, line, err)
			}
		}
		return answers
	}
	if _, err := watch(bg, "two", 2).Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	ctx, cancel := context.WithCancel(bg)
	lasts := watch(ctx, "lasts", 2)
	cancel()
	if _, err := lasts.Recv(); !errors.Is(err, context.Canceled) {
		t.Errorf("after the caller's end: %v", err)
	}
	<-service.left
	defer func() {
		if p := recover(); p != "it broke" {
			t.Errorf("the caller saw the panic %v", p)
		}
	}()
	_, err := watch(bg, "panics", 1).Recv()
	t.Errorf("after a panic: %v", err)
}
