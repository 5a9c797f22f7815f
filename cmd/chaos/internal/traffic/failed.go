package traffic

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
)

// kindOf names the way in which a call failed: by its allocator.Kind if March returned it, in a
// status with its ErrorInfo or from the Go client itself. An error of gRPC's own is different,
// though its codes stand for Kinds, too: a link that was cut may be INTERNAL.
func kindOf(err error) string {
	kind := allocator.KindOf(err)
	s, ok := status.FromError(err)
	switch {
	case ok && marchs(s):
		return kind.Error()
	case ok:
		return "grpc " + s.Code().String()
	case kind != allocator.Internal || errors.Is(err, allocator.Internal):
		return kind.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	}
	return "other"
}

// marchs reports whether March made a status.
func marchs(s *status.Status) bool {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == api.Domain {
			return true
		}
	}
	return false
}
