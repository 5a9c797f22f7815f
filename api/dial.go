package api

import (
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/march-id/march/allocator"
)

// Dial returns a connection to a room or console at HOST:PORT whose errors have
// Kinds. It connects when it is first used. It tries again at least each second, while
// gRPC's own pauses grow to two minutes, so it soon reaches a server that comes back. A
// server that is far away, or busy, has 5 s for the handshake. options come before those
// that Dial sets itself.
func Dial(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(UnaryClientInterceptor),
		grpc.WithChainStreamInterceptor(StreamClientInterceptor),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6,
				Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDisableServiceConfig(), // a name server must not decide how calls are retried
	}, options...)...)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "address: %q: %w", address, err)
	}
	return conn, nil
}

// CheckAddress checks HOST:PORT. Its error is Invalid and names the field.
func CheckAddress(field, address string) error {
	_, port, err := net.SplitHostPort(address)
	if n, badPort := strconv.ParseUint(port, 10, 16); err != nil || badPort != nil || n == 0 {
		return allocator.Errorf(allocator.Invalid,
			"%s: %q; allowed: HOST:PORT, with a port of 1 to 65535", field, address)
	}
	return nil
}
