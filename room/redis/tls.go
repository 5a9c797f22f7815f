package redis

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// shake is how long a client's TLS handshake may take.
const shake = 10 * time.Second

// peerOf returns the peer of a connection: its address, and over TLS what its handshake proved,
// as gRPC has it. A handshake that fails proves nothing; the next read then has its error.
func peerOf(ctx context.Context, nc net.Conn) *peer.Peer {
	p := &peer.Peer{Addr: nc.RemoteAddr()}
	conn, ok := nc.(*tls.Conn)
	if !ok {
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, shake)
	defer cancel()
	if conn.HandshakeContext(ctx) == nil {
		p.AuthInfo = credentials.TLSInfo{State: conn.ConnectionState()}
	}
	return p
}
