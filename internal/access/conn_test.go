package access_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

// watched is a console whose migrations are watched: "two" has two lines, "panics" panics after
// these, and any other lasts until its caller goes.
type watched struct {
	marchv1.UnimplementedConsoleServiceServer
}

func (watched) WatchMigration(r *marchv1.WatchMigrationRequest,
	stream marchv1.ConsoleService_WatchMigrationServer) error {
	for range 2 {
		line := &marchv1.WatchMigrationResponse{Migration: &marchv1.Migration{Id: r.GetId()}}
		if err := stream.Send(line); err != nil {
			return err
		}
	}
	switch r.GetId() {
	case "two":
		return nil
	case "panics":
		panic("it broke")
	}
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

// A call with many answers in the server's own process ends as its service does: well, with the
// end of the caller's context, or with the service's panic.
func TestConnStreams(t *testing.T) {
	conn := (*access.Gate)(nil).Conn(func(r grpc.ServiceRegistrar) {
		marchv1.RegisterConsoleServiceServer(r, watched{})
	})
	n := 0
	watch := func(id string) error {
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		n = 0
		return conn.Stream(ctx, marchv1.ConsoleService_WatchMigration_FullMethodName,
			&marchv1.WatchMigrationRequest{Id: id}, func(answer any) error {
				if line, ok := answer.(*marchv1.WatchMigrationResponse); !ok || line.GetMigration().GetId() != id {
					t.Errorf("%s: %v", id, answer)
				}
				if n++; n == 2 && id == "lasts" {
					cancel()
				}
				return nil
			})
	}
	for id, want := range map[string]error{"two": nil, "lasts": context.Canceled} {
		if err := watch(id); !errors.Is(err, want) || n != 2 {
			t.Errorf("%s: %v after %d answers", id, err, n)
		}
	}
	defer func() {
		if p := recover(); p != "it broke" || n != 2 {
			t.Errorf("the caller saw the panic %v after %d answers", p, n)
		}
	}()
	t.Errorf("after a panic: %v", watch("panics"))
}
