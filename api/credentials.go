package api

import (
	"google.golang.org/grpc"

	"github.com/march-id/march/api/tlsfiles"
)

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
