//go:build !nodev

package main

import (
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/observe"
)

// `march dev --tls` needs a CA for one run, the certificates of the servers, of an operator and of a service, a
// policy, and the operator's token.

// devCALife is how long the CA lasts: longer than a cluster for development runs.
const devCALife = 365 * 24 * time.Hour

// devPolicy is what each certificate may do.
const devPolicy = `# Who may do what in march dev --tls. It is made at each start, and read again when it changes.
grants:
  - {subjects: ["spiffe://dev/operator", "token:operator"], roles: admin}
  - {subjects: "spiffe://dev/march/*", roles: viewer} # the console, which asks the rooms
  - {subjects: "spiffe://dev/service", roles: issuer}
`

// devTLS is a folder with what was made. A nil TLS is a cluster without it.
type devTLS struct {
	Dir   string
	files *tlsfiles.Files
}

// makeDevTLS makes a folder, and writes over what is there. hosts are names, besides localhost, by
// which the servers may be called.
func makeDevTLS(dir string, rooms []allocator.Room, hosts []string) (*devTLS, error) {
	dir, err := filepath.Abs(dir) // commands may run elsewhere
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ca, err := certs.New("march dev", devCALife)
	if err != nil {
		return nil, err
	}
	root, err := ca.WriteCA(dir, "ca")
	if err != nil {
		return nil, err
	}
	server := certs.Leaf{
		Name: "march dev server", Hosts: append([]string{"localhost", "127.0.0.1"}, hosts...),
		URIs: []string{"spiffe://dev/march/console"},
	}
	for _, room := range rooms {
		server.URIs = append(server.URIs, "spiffe://dev"+tlsfiles.Instance(string(room), "dev")[0])
	}
	pair, err := ca.Write(dir, "server", server)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"operator", "service"} {
		if _, err := ca.Write(dir, name, certs.Leaf{Name: name, URIs: []string{"spiffe://dev/" + name}}); err != nil {
			return nil, err
		}
	}
	token, line, err := access.NewToken("operator", time.Time{})
	if err != nil {
		return nil, err
	}
	for name, content := range map[string]string{"policy.yaml": devPolicy, "tokens": line + "\n",
		"operator.token": token + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	files, err := tlsfiles.Open(tlsfiles.Config{Flags: "tls", CA: root, ClientCA: root, Cert: pair.Cert, Key: pair.Key})
	return &devTLS{Dir: dir, files: files}, err
}

// Files returns the servers' TLS, nil for none.
func (t *devTLS) Files() *tlsfiles.Files {
	if t == nil {
		return nil
	}
	return t.files
}

// Gate returns what checks the callers of a server, nil for none. room is its room, empty for
// the console.
func (t *devTLS) Gate(room string, metrics *observe.Metrics, log hclog.Logger) (*access.Gate, error) {
	if t == nil {
		return nil, nil
	}
	return access.New(access.Config{
		Policy: filepath.Join(t.Dir, "policy.yaml"), Tokens: filepath.Join(t.Dir, "tokens"),
		Room: room, Metrics: metrics, Logger: log.Named("access"),
	})
}

// Settings are those with which commands call as the operator; none without TLS.
func (t *devTLS) Settings() map[string]string {
	if t == nil {
		return nil
	}
	at := func(name string) string { return filepath.Join(t.Dir, name) }
	return map[string]string{"tls-ca": at("ca.pem"), "tls-cert": at("operator.pem"), "tls-key": at("operator-key.pem")}
}
