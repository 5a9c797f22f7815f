package api

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
)

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

// GetRequestMetadata implements credentials.PerRPCCredentials.
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
