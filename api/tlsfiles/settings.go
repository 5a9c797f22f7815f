package tlsfiles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
)

// Serves reports whether the files have a certificate, which a server needs.
func (f *Files) Serves() bool { return f != nil && f.cfg.Cert != "" }

// Server returns the settings of a server, which has a certificate. protocols are those of the
// connections: h2 for gRPC, http/1.1.
func (f *Files) Server(protocols ...string) *tls.Config { return f.serving(protocols, false) }

// ServerOptional returns the settings of a server that also takes clients without a certificate
// where RequireClient is true. The server itself then refuses what such a client may not do.
func (f *Files) ServerOptional(protocols ...string) *tls.Config { return f.serving(protocols, true) }

// RequiresClient reports whether clients must have a certificate.
func (f *Files) RequiresClient() bool { return f != nil && f.cfg.RequireClient }

func (f *Files) serving(protocols []string, optional bool) *tls.Config {
	own := make(chan *variant, 1) // the settings that were made last, of one loaded
	own <- &variant{}
	return &tls.Config{
		MinVersion: f.cfg.least(), NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			l := f.now()
			if l.server == nil {
				return nil, errors.New("there is no certificate")
			}
			v := <-own
			if v.of != l { // keys of sessions belong to a Config, so each loaded has one
				cfg := l.server.Clone()
				cfg.NextProtos = protocols
				if optional && cfg.ClientAuth == tls.RequireAndVerifyClientCert {
					cfg.ClientAuth = tls.VerifyClientCertIfGiven
				}
				v = &variant{l, cfg}
			}
			own <- v
			return v.cfg, nil
		},
	}
}

// variant is the settings of a listener that were made of the files' contents.
type variant struct {
	of  *loaded
	cfg *tls.Config
}

// Client returns the settings of a client that calls a host, which the server's certificate
// must name.
func (f *Files) Client(host string) *tls.Config { return f.client(host, "", nil) }

// client returns settings for a server whose certificate names host or, unless names is empty,
// one of names. sni is the name that the client tells the server.
func (f *Files) client(host, who string, names []string) *tls.Config {
	return &tls.Config{
		MinVersion: f.cfg.least(), ServerName: host,
		// The roots may change, so VerifyConnection verifies. It runs in each handshake.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(state tls.ConnectionState) error {
			return f.verify(state.PeerCertificates, host, who, names)
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if pair := f.now().pair; pair != nil {
				return pair, nil
			}
			return &tls.Certificate{}, nil
		},
	}
}

// verify checks a server's certificates.
func (f *Files) verify(chain []*x509.Certificate, host, who string, names []string) error {
	if len(chain) == 0 {
		return errors.New("the server gave no certificate")
	}
	opts := x509.VerifyOptions{Roots: f.now().roots, Intermediates: x509.NewCertPool(), DNSName: host}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	if len(names) > 0 {
		opts.DNSName = ""
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	if len(names) == 0 || slices.ContainsFunc(Names(chain[0]), func(has string) bool {
		return slices.Contains(names, has)
	}) {
		return nil
	}
	return fmt.Errorf("the certificate at %s is not that of %s: it names %.300q; needed: %s", host, who,
		Names(chain[0]), strings.Join(names, " or "))
}

// Names returns the names in a certificate that can name a process: the paths of its SPIFFE
// IDs, whatever their trust domain, which its CA stands for, and its DNS names.
func Names(c *x509.Certificate) (names []string) {
	for _, u := range c.URIs {
		if u.Scheme == "spiffe" && u.Host != "" {
			names = append(names, u.Path)
		}
	}
	for _, name := range c.DNSNames {
		names = append(names, strings.ToLower(name))
	}
	return names
}

// Instance returns the names of which the certificate of an instance must have one: the SPIFFE
// ID spiffe://DOMAIN/march/room/ROOM/instance/NAME, or the DNS name NAME.ROOM.march.
func Instance(room, name string) []string {
	return []string{"/march/room/" + room + "/instance/" + name, name + "." + room + ".march"}
}

// Credentials are gRPC's credentials of a client. The server's certificate must name the host
// that the client dials.
func (f *Files) Credentials() credentials.TransportCredentials { return &creds{files: f} }

// InstanceCredentials are gRPC's credentials of a client that speaks only with an instance of
// a room, at whatever address.
func (f *Files) InstanceCredentials(room, name string) credentials.TransportCredentials {
	return &creds{files: f, who: "instance " + room + "/" + name, names: Instance(room, name)}
}

// creds implements credentials.TransportCredentials for clients.
type creds struct {
	files *Files
	who   string
	names []string
}

func (c *creds) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	host, _, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	return credentials.NewTLS(c.files.client(host, c.who, c.names)).ClientHandshake(ctx, authority, raw)
}

func (c *creds) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("credentials of a client")
}

func (c *creds) Info() credentials.ProtocolInfo {
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}).Info()
}

func (c *creds) Clone() credentials.TransportCredentials { copied := *c; return &copied }

func (c *creds) OverrideServerName(string) error { return errors.ErrUnsupported }
