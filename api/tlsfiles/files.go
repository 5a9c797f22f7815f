package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
)

// Interval is the least time between two readings of the files.
const Interval = 10 * time.Second

// maxFile bounds a file, in bytes.
const maxFile = 1 << 20

// Config names the files. All are optional, but for Key beside Cert.
type Config struct {
	// Flags begins the names of the flags in errors: tls for tls-ca and tls-cert.
	Flags string
	// CA has the certificates of the CAs that servers' certificates come from; default: the
	// system's. Only clients use it.
	CA string
	// Cert and Key are the own certificate, with the intermediate ones behind it, and its key.
	Cert, Key string
	// ClientCA has the certificates of the CAs that clients' certificates come from; default:
	// clients are asked for none. Only servers use it. A server that has it verifies a
	// client's certificate if the client gives one, and refuses a client without one if
	// RequireClient is true.
	ClientCA      string
	RequireClient bool
	// TLS12 allows TLS 1.2, too. Default false: TLS 1.3 alone.
	TLS12 bool
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// Validate checks which settings are given together. Its error is Invalid.
func (cfg Config) Validate() error {
	switch {
	case cfg.Cert != "" && cfg.Key == "":
		return allocator.Errorf(allocator.Invalid, "%s-key: none, beside %s-cert %s; give the file with its key",
			cfg.Flags, cfg.Flags, cfg.Cert)
	case cfg.Key != "" && cfg.Cert == "":
		return allocator.Errorf(allocator.Invalid,
			"%s-cert: none, beside %s-key %s; give the file with its certificate", cfg.Flags, cfg.Flags, cfg.Key)
	case cfg.ClientCA != "" && cfg.Cert == "":
		return allocator.Errorf(allocator.Invalid, "%s-client-ca: given without %s-cert, so the server has no TLS; "+
			"give --%s-cert and --%s-key", cfg.Flags, cfg.Flags, cfg.Flags, cfg.Flags)
	case cfg.RequireClient && cfg.ClientCA == "":
		return allocator.Errorf(allocator.Invalid,
			"%s-client-auth: required, without the CAs of clients; give --%s-client-ca", cfg.Flags, cfg.Flags)
	}
	return nil
}

// Files are settings that follow their files. Its methods are safe for concurrent use.
type Files struct {
	cfg     Config
	current atomic.Pointer[loaded]
	read    struct {
		sync.Mutex
		at    time.Time
		force contents // in force
		tried contents // read last, of those that differ from force
		why   error    // why tried is not in force
		last  error    // of the last reading
		err   error    // why the files' contents are not in force; nil if they are
	}
}

// contents are the files' contents, in the order of names.
type contents [4][]byte

// loaded is what the files say.
type loaded struct {
	pair    *tls.Certificate // nil for none
	roots   *x509.CertPool   // nil for the system's
	server  *tls.Config      // nil without a pair
	expires time.Time        // when the first certificate of the pair's file ends
}

// Open reads the files. Its error is Invalid.
func Open(cfg Config) (*Files, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	f := &Files{cfg: cfg}
	f.read.Lock()
	defer f.read.Unlock()
	if err := f.reload(time.Now()); err != nil {
		return nil, err
	}
	return f, nil
}

// now returns what the files say, and reads them if they were last read long ago.
func (f *Files) now() *loaded {
	at := time.Now()
	if f.read.TryLock() { // otherwise another handshake reads them
		if at.Sub(f.read.at) >= Interval {
			f.note(f.reload(at), false)
		}
		f.read.Unlock()
	}
	return f.current.Load()
}

// Reload reads the files at once. It returns why they are not in force, or nil.
func (f *Files) Reload() error {
	f.read.Lock()
	defer f.read.Unlock()
	err := f.reload(time.Now())
	f.note(err, true)
	return err
}

// State returns when the own certificate ends, zero without one, and why the files' present
// contents are not in force, nil if they are. A renewal replaces a certificate and its key one after the other, and
// for a moment they do not match: so an error counts once two readings, [Interval] or more apart, have had one.
func (f *Files) State() (expires time.Time, err error) {
	expires = f.now().expires
	f.read.Lock()
	defer f.read.Unlock()
	return expires, f.read.err
}

// Broken returns why the files' present contents are not in force, nil if they are, or if f
// is nil.
func (f *Files) Broken() error {
	if f == nil {
		return nil
	}
	_, err := f.State()
	return err
}

// reload reads the files. The lock is held.
func (f *Files) reload(at time.Time) error {
	f.read.at = at
	first := f.current.Load() == nil
	var found contents
	var err error
	for i, file := range [...]struct{ flag, path string }{{"ca", f.cfg.CA}, {"cert", f.cfg.Cert}, {"key", f.cfg.Key},
		{"client-ca", f.cfg.ClientCA}} {
		if found[i], err = read(f.cfg.Flags+"-"+file.flag, file.path); err != nil {
			return err
		}
	}
	switch {
	case first:
	case f.read.force.equal(found):
		return nil
	case f.read.tried.equal(found):
		return f.read.why
	}
	f.read.tried = found
	fresh, err := f.cfg.load(found, at)
	if err == nil {
		f.read.force = found
		f.current.Store(fresh)
		if !first {
			f.cfg.Logger.Info("certificates read again", "flags", f.cfg.Flags, "expires", fresh.expires)
		}
	}
	f.read.why = err
	return err
}

// note keeps why the files' contents are not in force, and logs each reason once: one that is not sure counts if the
// last reading had one, too. The lock is held.
func (f *Files) note(err error, sure bool) {
	before, last := f.read.err, f.read.last
	f.read.last = err
	if err != nil && last == nil && !sure {
		return
	}
	f.read.err = err
	if err == nil || before != nil && before.Error() == err.Error() {
		return
	}
	f.cfg.Logger.Error("new certificates cannot be used: the old ones stay in force",
		"flags", f.cfg.Flags, "error", err)
}

func (c contents) equal(other contents) bool {
	for i := range c {
		if !bytes.Equal(c[i], other[i]) || (c[i] == nil) != (other[i] == nil) {
			return false
		}
	}
	return true
}

// load makes settings of contents. Its error is Invalid.
func (cfg Config) load(found contents, at time.Time) (*loaded, error) {
	l := &loaded{}
	var err error
	if l.roots, err = pool(cfg.Flags+"-ca", cfg.CA, found[0]); err != nil {
		return nil, err
	}
	clients, err := pool(cfg.Flags+"-client-ca", cfg.ClientCA, found[3])
	if err != nil || cfg.Cert == "" {
		return l, err
	}
	pair, err := tls.X509KeyPair(found[1], found[2])
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%s-cert %s and %s-key %s: %w", cfg.Flags,
			cfg.Cert, cfg.Flags, cfg.Key, err)
	}
	l.pair = &pair
	for _, der := range pair.Certificate {
		cert, err := x509.ParseCertificate(der)
		switch {
		case err != nil:
			return nil, allocator.Errorf(allocator.Invalid, "%s-cert %s: %w", cfg.Flags, cfg.Cert, err)
		case at.After(cert.NotAfter):
			return nil, allocator.Errorf(allocator.Invalid, "%s-cert %s: a certificate in it ended at %s; renew it",
				cfg.Flags, cfg.Cert, cert.NotAfter.UTC().Format(time.RFC3339))
		case l.expires.IsZero() || cert.NotAfter.Before(l.expires):
			l.expires = cert.NotAfter
		}
	}
	l.server = &tls.Config{MinVersion: cfg.least(), Certificates: []tls.Certificate{pair},
		NextProtos: []string{"h2", "http/1.1"}}
	if clients != nil {
		l.server.ClientCAs, l.server.ClientAuth = clients, tls.VerifyClientCertIfGiven
		if cfg.RequireClient {
			l.server.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	return l, nil
}

func (cfg Config) least() uint16 {
	if cfg.TLS12 {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

// pool returns the CAs of a file; nil for no file.
func pool(flag, path string, content []byte) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(content) {
		return nil, allocator.Errorf(allocator.Invalid, "%s: no certificate (PEM) in %s", flag, path)
	}
	return p, nil
}

// read returns a file's content; nil for no file. Its error is Invalid.
func read(flag, path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%s: %w", flag, err)
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, allocator.Errorf(allocator.Invalid, "%s: %w", flag, err)
	case len(content) > maxFile:
		return nil, allocator.Errorf(allocator.Invalid, "%s: %s has more than %d bytes", flag, path, maxFile)
	}
	return content, nil
}
