package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/testcerts"
)

// hosts are what servers are called by in these tests.
var hosts = []string{"127.0.0.1", "room.test"}

// folder has the files of a server and a client.
type folder struct {
	ca  *testcerts.CA
	cfg tlsfiles.Config // all files, for a server that asks for certificates
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	f := &folder{ca: testcerts.New(t)}
	own := f.ca.Write("own", certs.Leaf{Hosts: hosts})
	f.cfg = tlsfiles.Config{Flags: "tls", CA: f.ca.Root, Cert: own.Cert, Key: own.Key, ClientCA: f.ca.Root}
	return f
}

// meet makes a connection between a server and a client, and returns what the server knows of
// it, and why either refused the other.
func meet(t *testing.T, server *tls.Config, client credentials.TransportCredentials,
	host string) (tls.ConnectionState, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	type result struct {
		state tls.ConnectionState
		err   error
	}
	served := make(chan result, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			served <- result{err: err}
			return
		}
		conn := tls.Server(raw, server)
		defer func() { _ = conn.Close() }()
		err = conn.HandshakeContext(t.Context())
		if err == nil {
			_, err = conn.Write([]byte("!"))
		}
		served <- result{conn.ConnectionState(), err}
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, err := client.ClientHandshake(ctx, host+":1", raw)
	if err == nil { // a server that refuses a client of TLS 1.3 says so afterwards
		_, err = conn.Read(make([]byte, 1))
	}
	if err != nil {
		_ = raw.Close()
	}
	got := <-served
	return got.state, errors.Join(err, got.err)
}

func TestHandshake(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	required := f.cfg
	required.RequireClient = true
	anonymous := tlsfiles.Config{Flags: "tls", CA: f.cfg.CA}
	strange := testcerts.New(t).Write("strange", certs.Leaf{Hosts: hosts})
	stranger := tlsfiles.Config{Flags: "tls", CA: f.cfg.CA, Cert: strange.Cert, Key: strange.Key}
	system := tlsfiles.Config{Flags: "tls"}
	for _, c := range []struct {
		name           string
		server, client tlsfiles.Config
		host, refused  string
		certificate    bool // the server knows the client's
	}{
		{"a client with a certificate", f.cfg, f.cfg, "127.0.0.1", "", true},
		{"by name", f.cfg, f.cfg, "room.test", "", true},
		{"a client without one", f.cfg, anonymous, "127.0.0.1", "", false},
		{"a client without one, where it must have one", required, anonymous, "127.0.0.1", "certificate", false},
		{"a client of another CA", f.cfg, stranger, "127.0.0.1", "certificate", false},
		{"a server of another CA", f.cfg, system, "127.0.0.1", "unknown authority", false},
		{"a server by another address", f.cfg, f.cfg, "127.0.0.2", "127.0.0.2", false},
		{"a server by another name", f.cfg, f.cfg, "other.test", "other.test", false},
	} {
		state, err := meet(t, testcerts.Open(t, c.server).Server("h2"),
			testcerts.Open(t, c.client).Credentials(), c.host)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: got error %v, want one about %s", c.name, err, c.refused)
		case c.refused == "" && (len(state.VerifiedChains) > 0) != c.certificate:
			t.Errorf("%s: the server verified %d chains", c.name, len(state.VerifiedChains))
		case c.refused == "" && state.Version != tls.VersionTLS13:
			t.Errorf("%s: version %x", c.name, state.Version)
		}
	}
	if _, err := meet(t, testcerts.Open(t, required).ServerOptional("http/1.1"), testcerts.Open(t, f.cfg).Credentials(),
		"127.0.0.1"); err == nil {
		t.Error("gRPC's client agreed on another protocol than h2")
	}
}

// A peer that is asked as an instance must be that instance, wherever it is.
func TestInstance(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	client := testcerts.Open(t, f.cfg).InstanceCredentials("eu-1", "pod-1")
	for _, c := range []struct {
		uri, host string
		ok        bool
	}{
		{"spiffe://prod.example/march/room/eu-1/instance/pod-1", "", true},
		{"", "pod-1.eu-1.march", true},
		{"spiffe://prod.example/march/room/eu-1/instance/pod-2", "", false},
		{"spiffe://prod.example/march/room/us-1/instance/pod-1", "", false},
		{"spiffe://prod.example/march/room/eu-1", "", false},
		{"https://prod.example/march/room/eu-1/instance/pod-1", "", false},
		{"", "pod-1.us-1.march", false},
		{"", "127.0.0.1", false}, // the address does not count
	} {
		l := certs.Leaf{}
		if c.uri != "" {
			l.URIs = []string{c.uri}
		}
		if c.host != "" {
			l.Hosts = []string{c.host}
		}
		cfg := f.cfg
		pair := f.ca.Write("instance", l)
		cfg.Cert, cfg.Key = pair.Cert, pair.Key
		_, err := meet(t, testcerts.Open(t, cfg).Server("h2"), client, "127.0.0.1")
		if c.ok && err != nil {
			t.Errorf("%s%s: %v", c.uri, c.host, err)
		}
		if !c.ok && (err == nil || !strings.Contains(err.Error(), "is not that of instance eu-1/pod-1")) {
			t.Errorf("%s%s: got error %v", c.uri, c.host, err)
		}
	}
}

func TestRenewed(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	server, client := testcerts.Open(t, f.cfg), testcerts.Open(t, f.cfg)
	settings := server.Server("h2")
	serial := func() string {
		t.Helper()
		state, err := meet(t, settings, client.Credentials(), "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		return state.PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	f.ca.Write("own", certs.Leaf{Hosts: hosts})
	if got := serial(); got != first {
		t.Error("files were read again before the interval was over")
	}
	for _, files := range []*tlsfiles.Files{server, client} {
		if err := files.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	second := serial()
	if second == first {
		t.Error("a renewed certificate is not in force")
	}
	broken := []struct {
		name, path string
		content    []byte
		why        string
	}{
		{"half of a certificate", f.cfg.Cert, []byte("-----BEGIN CERTIFICATE-----\nMIIB"), "tls-cert"},
		{"no CA", f.cfg.CA, []byte("\n"), "tls-ca"},
		{"a key of another certificate", f.cfg.Key, keyOf(t, f.ca.CA), "tls-key"},
		{"a certificate that has ended", f.cfg.Cert, nil, "ended at"},
	}
	for _, b := range broken {
		good := map[string][]byte{}
		for _, path := range []string{f.cfg.CA, f.cfg.Cert, f.cfg.Key} {
			good[path], _ = os.ReadFile(path)
		}
		if b.content == nil {
			f.ca.Write("own", certs.Leaf{Hosts: hosts, From: time.Now().Add(-time.Hour),
				Until: time.Now().Add(-time.Minute)})
		} else if err := os.WriteFile(b.path, b.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := client.Reload(); err == nil || !strings.Contains(err.Error(), b.why) ||
			allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%s: got error %v", b.name, err)
		}
		if _, err := client.State(); err == nil {
			t.Errorf("%s: it is not known", b.name)
		}
		if got := serial(); got != second {
			t.Errorf("%s: the old pair is not in force", b.name)
		}
		for path, content := range good {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.Reload(); err != nil {
			t.Errorf("%s, mended: %v", b.name, err)
		}
		if expires, err := client.State(); err != nil || time.Until(expires) > time.Hour ||
			time.Until(expires) < time.Minute {
			t.Errorf("%s, mended: it expires at %v, %v", b.name, expires, err)
		}
	}
}

// A key whose certificate is not written yet is no fault: it is one if the next reading finds it so, too.
func TestHalfReplaced(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	synctest.Test(t, func(t *testing.T) {
		files := testcerts.Open(t, f.cfg)
		state := func() error {
			t.Helper()
			time.Sleep(tlsfiles.Interval)
			_, err := files.State()
			return err
		}
		key, err := os.ReadFile(f.cfg.Key)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := os.WriteFile(f.cfg.Key, keyOf(t, f.ca.CA), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := state(); err != nil {
				t.Errorf("at once: %v", err)
			}
			if err := state(); err == nil || !strings.Contains(err.Error(), "tls-key") {
				t.Errorf("still so: got error %v", err)
			}
			if err := os.WriteFile(f.cfg.Key, key, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := state(); err != nil {
				t.Errorf("mended: %v", err)
			}
		}
	})
}

func keyOf(t *testing.T, ca *certs.CA) []byte {
	t.Helper()
	_, key, err := ca.Issue(certs.Leaf{})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A CA that is taken out of the files counts no more, on either side.
func TestRevoked(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	server, client := testcerts.Open(t, f.cfg), testcerts.Open(t, f.cfg)
	settings := server.Server("h2")
	if _, err := meet(t, settings, client.Credentials(), "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	if _, err := testcerts.New(t).WriteCA(f.ca.Dir, "ca"); err != nil {
		t.Fatal(err)
	}
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := meet(t, settings, client.Credentials(), "127.0.0.1"); err == nil {
		t.Error("the server took a client of a CA that it no longer knows")
	}
	if err := client.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := meet(t, settings, client.Credentials(), "127.0.0.1"); err == nil ||
		!strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("the client took a server of a CA that it no longer knows: %v", err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for want, cfg := range map[string]tlsfiles.Config{
		"tls-key: none":               {Flags: "tls", Cert: f.cfg.Cert},
		"etcd-cert: none":             {Flags: "etcd", Key: f.cfg.Key},
		"tls-client-ca: given":        {Flags: "tls", ClientCA: f.cfg.CA},
		"tls-client-auth: required":   {Flags: "tls", Cert: f.cfg.Cert, Key: f.cfg.Key, RequireClient: true},
		"tls-ca: open":                {Flags: "tls", CA: filepath.Join(f.ca.Dir, "none")},
		"tls-ca: no certificate":      {Flags: "tls", CA: f.cfg.Key},
		"tls-client-ca: no":           {Flags: "tls", Cert: f.cfg.Cert, Key: f.cfg.Key, ClientCA: f.cfg.Key},
		"tls-ca: read":                {Flags: "tls", CA: f.ca.Dir},
		"tls-ca: /dev/zero has more ": {Flags: "tls", CA: "/dev/zero"},
	} {
		if _, err := tlsfiles.Open(cfg); err == nil || !strings.HasPrefix(err.Error(), want) ||
			allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}
