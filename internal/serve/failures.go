package serve

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/throttle"
)

// failures turns the errors of handlers into statuses, and logs unforeseen ones
// (api.Unforeseen). All others are only in the metrics.
type failures struct {
	log  hclog.Logger
	line throttle.Log
}

func (f *failures) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	resp, err := api.UnaryServerInterceptor(ctx, req, info, handler)
	if err != nil {
		f.note(ctx, info.FullMethod, err)
	}
	return resp, err
}

func (f *failures) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	err := api.StreamServerInterceptor(srv, stream, info, handler)
	if err != nil {
		f.note(stream.Context(), info.FullMethod, err)
	}
	return err
}

func (f *failures) note(ctx context.Context, method string, err error) {
	if api.Unforeseen(err) {
		f.line.Log(time.Now(), f.log.Error, "call failed",
			append(observe.TraceID(observe.Incoming(ctx)), "method", method, "error", err)...)
	}
}
