package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
)

// translate turns an error of etcd's client into one with a Kind.
func translate(endpoint string, err error) *allocator.Error {
	kind := allocator.Internal
	s, ok := status.FromError(err)
	code := s.Code()
	e := rpctypes.Error(err)
	if !ok {
		if etcdErr, isEtcd := e.(rpctypes.EtcdError); isEtcd {
			code, ok = etcdErr.Code(), true
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, clientv3.ErrNoAvailableEndpoints):
		kind = allocator.Unavailable
	case !ok:
	default:
		switch code {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
			kind = allocator.Unavailable
		case codes.ResourceExhausted: // NOSPACE, or too many requests: an operator or time mends it
			kind = allocator.Unavailable
		case codes.PermissionDenied:
			kind = allocator.Denied
		case codes.Unauthenticated:
			kind = allocator.Unauthenticated
		case codes.InvalidArgument, codes.FailedPrecondition:
			if errors.Is(e, rpctypes.ErrAuthFailed) || errors.Is(e, rpctypes.ErrUserEmpty) {
				kind = allocator.Unauthenticated
			}
		}
	}
	cause := plain(err)
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		cause = ErrNoSpace
	case errors.Is(e, rpctypes.ErrCompacted):
		cause = ErrCompacted
	case kind == allocator.Unauthenticated:
		cause = fmt.Errorf("%w; give --etcd-user and --etcd-password-file", cause)
	}
	return allocator.Errorf(kind, "%w", &EndpointError{endpoint, cause})
}

// EndpointError is an error of etcd, or of the way to it. Its text has addresses.
type EndpointError struct {
	Endpoint string
	Err      error
}

func (e *EndpointError) Error() string { return "etcd at " + e.Endpoint + ": " + e.Err.Error() }

// Unwrap returns the error.
func (e *EndpointError) Unwrap() error { return e.Err }

// plainError is an error of gRPC, told without gRPC's codes and the names of its parts.
type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }

// Unwrap returns gRPC's error.
func (e *plainError) Unwrap() error { return e.err }

// plain returns an error with a text for people.
func plain(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return &plainError{"no answer in time", err}
		}
		return err // of etcd, or of the caller's context
	}
	text := allocator.ConnectionText(s.Message())
	// gRPC closes a connection on which the server does not greet within its time.
	if s.Code() == codes.DeadlineExceeded || strings.Contains(text, net.ErrClosed.Error()) {
		text = "no answer in time"
	}
	return &plainError{text, err}
}
