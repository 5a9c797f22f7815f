package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api/tlsfiles"
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

// Credentials say how a process knows the servers that it calls, and what it gives to prove
// who it is. With the zero value connections have no TLS, and calls no token.
type Credentials struct {
	// TLS has the CAs of servers and the own certificate; nil for connections without TLS.
	TLS *tlsfiles.Files
	// TokenFile is a file with the token to give with each call; empty for none.
	TokenFile string
}

// Options are those of a connection to an address, whose host the server's certificate must
// name.
func (c Credentials) Options() []grpc.DialOption {
	options := c.token()
	if c.TLS != nil {
		options = append(options, grpc.WithTransportCredentials(c.TLS.Credentials()))
	}
	return options
}

// InstanceOptions are those of a connection to an instance of a room, which the server's
// certificate must name. The address may come from a place that is not to be trusted.
func (c Credentials) InstanceOptions(room, name string) []grpc.DialOption {
	options := c.token()
	if c.TLS != nil {
		options = append(options, grpc.WithTransportCredentials(c.TLS.InstanceCredentials(room, name)))
	}
	return options
}

func (c Credentials) token() []grpc.DialOption {
	if c.TokenFile == "" {
		return nil
	}
	return []grpc.DialOption{grpc.WithPerRPCCredentials(TokenFile(c.TokenFile))}
}

const (
	// maxToken bounds a file with a token, in bytes.
	maxToken = 16 << 10
	// rereadToken is how often a file with a token is read again.
	rereadToken = time.Second
)

// TokenFile gives the token in a file with each call, as a bearer token. It reads the file
// again when it changes, so that a token can be replaced under a running process. It sends
// the token only over TLS, or to this machine. It is safe for concurrent use.
func TokenFile(path string) credentials.PerRPCCredentials { return &tokenFile{path: path} }

type tokenFile struct {
	path string
	mu   struct {
		sync.Mutex
		read   time.Time // when the file was read last
		header map[string]string
	}
}

func (f *tokenFile) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	if credentials.CheckSecurityLevel(info.AuthInfo, credentials.PrivacyAndIntegrity) != nil && !local(uri) {
		// Without the ErrorInfo of an answer: see FromServer.
		return nil, status.Errorf(codes.Unauthenticated,
			"token-file: the connection to %.300q has no TLS, so the token is not sent", uri)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); f.mu.header == nil || now.Sub(f.mu.read) >= rereadToken {
		token, err := ReadToken(f.path)
		if err != nil && f.mu.header == nil {
			return nil, status.Error(status.Code(ToStatus(err)), err.Error()) // likewise
		}
		if err == nil {
			f.mu.header = map[string]string{"authorization": "Bearer " + token}
		}
		f.mu.read = now
	}
	return f.mu.header, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Each call checks it.
func (f *tokenFile) RequireTransportSecurity() bool { return false }

// local reports whether all addresses are on this machine.
func local(uris []string) bool {
	for _, uri := range uris {
		u, err := url.Parse(uri)
		if err != nil {
			return false
		}
		if !Loopback(u.Hostname()) {
			return false
		}
	}
	return len(uris) > 0
}

// Loopback reports whether a URL's host, without a port, is this machine by its name or address.
// It asks no name server.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// ReadToken reads a file that has a token, and nothing else. Its error is Invalid.
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid, "token-file: %w", err)
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid, "token-file: %w", err)
	}
	content = bytes.TrimSpace(content)
	if len(content) == 0 || len(content) > maxToken || bytes.ContainsAny(content, " \t\r\n\x00") {
		return "", allocator.Errorf(allocator.Invalid,
			"token-file: %s has no token; allowed: a file with one token and nothing else", path)
	}
	return string(content), nil
}

// ActorHeader is the metadata key with which a client names the actor of a call.
// The audit records it unchecked.
const ActorHeader = "march-actor"

// UnaryServerInterceptor turns a handler's error into a status. It is on the
// hot path: without an error it does nothing.
func UnaryServerInterceptor(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, ToStatus(err)
	}
	return resp, nil
}

// StreamServerInterceptor turns the error that ends a stream into a status.
func StreamServerInterceptor(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	return ToStatus(handler(srv, stream))
}

// UnaryClientInterceptor turns a call's status into an error with its Kind.
func UnaryClientInterceptor(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := invoker(ctx, method, req, reply, conn, opts...); err != nil {
		return FromStatus(err)
	}
	return nil
}

// StreamClientInterceptor turns every status of a stream into an error with its
// Kind. io.EOF stays io.EOF.
func StreamClientInterceptor(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, FromStatus(err)
	}
	return clientStream{stream}, nil
}

// clientStream converts the errors of all methods that may return a status.
type clientStream struct{ grpc.ClientStream }

func (s clientStream) SendMsg(m any) error {
	if err := s.ClientStream.SendMsg(m); err != nil {
		return FromStatus(err)
	}
	return nil
}

func (s clientStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return FromStatus(err)
	}
	return nil
}

func (s clientStream) CloseSend() error {
	if err := s.ClientStream.CloseSend(); err != nil {
		return FromStatus(err)
	}
	return nil
}
