package ledgertest

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/march-id/march/allocator/ledger/embedded"
	"github.com/march-id/march/internal/certs"
)

// certificates are those of a member with TLS.
type certificates struct {
	ca      *certs.CA
	revoked [][]byte
}

// StartSecureEtcd starts a member that lives until the test ends. Its clients speak TLS, and
// need a certificate of its CA. The common name there is the client's user.
func StartSecureEtcd(tb testing.TB) *Etcd {
	tb.Helper()
	dir, err := os.MkdirTemp("", "march")
	if err != nil {
		tb.Fatal(err)
	}
	ca, err := certs.New("etcd", time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	e := &Etcd{dir: dir, tls: &certificates{ca: ca}}
	caFile, err := ca.WriteCA(dir, "ca")
	if err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // for a free port
	if err != nil {
		tb.Fatal(err)
	}
	e.Endpoint = "https://" + l.Addr().String()
	_ = l.Close()
	own := e.Certificate(tb, "member", certs.Leaf{Hosts: []string{"127.0.0.1"}})
	e.Revoke(tb)
	e.config = embedded.Config{
		Dir: filepath.Join(dir, "data"), Client: e.Endpoint, Peer: "unix://" + filepath.Join(dir, "p"), NoSync: true,
		TLS: &embedded.TLS{CA: caFile, Cert: own.Cert, Key: own.Key, Revoked: filepath.Join(dir, "revoked")},
	}
	e.Start(tb)
	tb.Cleanup(func() {
		e.Stop()
		_ = os.RemoveAll(dir)
	})
	return e
}

// CA returns the file with the certificate of the member's CA.
func (e *Etcd) CA() string { return filepath.Join(e.dir, "ca.pem") }

// Certificate makes a certificate of the member's CA, or replaces it. The file's name is the
// common name, and so the user of a client, unless the leaf has another.
func (e *Etcd) Certificate(tb testing.TB, file string, leaf certs.Leaf) certs.Pair {
	tb.Helper()
	if leaf.Name == "" {
		leaf.Name = file
	}
	pair, err := e.tls.ca.Write(e.dir, file, leaf)
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}

// Revoke has the member refuse more certificates in each new connection.
func (e *Etcd) Revoke(tb testing.TB, pairs ...certs.Pair) {
	tb.Helper()
	for _, p := range pairs {
		cert, err := os.ReadFile(p.Cert)
		if err != nil {
			tb.Fatal(err)
		}
		e.tls.revoked = append(e.tls.revoked, cert)
	}
	list, err := e.tls.ca.Revoked(e.tls.revoked...)
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(e.dir, "revoked")
	if err := os.WriteFile(path+".new", list, 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}

// root returns the credentials of the user root.
func (c *certificates) root(tb testing.TB) credentials.TransportCredentials {
	tb.Helper()
	cert, key, err := c.ca.Issue(certs.Leaf{Name: rootUser})
	if err != nil {
		tb.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		tb.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca.PEM())
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots,
		Certificates: []tls.Certificate{pair}})
}
