package main

import (
	"net"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/tlsfiles"
)

// The settings of TLS are flags of servers, and of commands that call servers. A server has TLS and identities where
// other machines reach it.

// clientTLS are the settings with which a command calls servers.
type clientTLS struct {
	filesTLS
	on    bool
	token string
}

// options returns the settings. whose says whose token is asked for; it may be empty.
func (c *clientTLS) options(whose string) []option {
	return slices.Concat(c.filesTLS.options(), []option{
		{"tls", &c.on, "call over TLS; each of the other flags of TLS turns it on, too"},
		{"tls-ca", &c.cfg.CA, "file with the CA certificates (PEM) that sign the servers' certificates; default the " +
			"system's"},
		{"token-file", &c.token, "file with the token to give" + whose},
	})
}

// Credentials returns what the flags ask for. Its errors are Invalid.
func (c *clientTLS) Credentials() (given api.Credentials, err error) {
	given.TokenFile = c.token
	if c.token != "" { // not only with the first call
		if _, err := api.ReadToken(c.token); err != nil {
			return given, err
		}
	}
	given.TLS, err = c.open(c.on, hclog.NewNullLogger())
	return given, err
}

// serverTLS are the settings of a server's own TLS, and of its calls to other servers.
type serverTLS struct {
	filesTLS
	auth string
	// Insecure allows a server that other machines reach without TLS and identities.
	Insecure bool
}

func (s *serverTLS) options() []option {
	return slices.Concat(s.filesTLS.options(), []option{
		{"tls-client-ca", &s.cfg.ClientCA, "file with the CA certificates (PEM) that sign clients' certificates, " +
			"with which clients prove who they are"},
		{"tls-client-auth", oneOf(&s.auth, "optional", "required"), "with --tls-client-ca: optional, or required to " +
			"refuse clients without a certificate"},
		{"insecure", &s.Insecure, "serve other machines although there is no TLS, or no identity of callers"},
	})
}

func (s *serverTLS) ca() option {
	return option{"tls-ca", &s.cfg.CA, "file with the CA certificates (PEM) that sign the rooms' certificates; " +
		"default the system's. This flag or --tls-cert has the rooms called over TLS"}
}

// Open returns what the flags ask for, nil for no TLS. Its errors are Invalid.
func (s *serverTLS) Open(log hclog.Logger) (*tlsfiles.Files, error) {
	s.cfg.RequireClient = s.auth == "required"
	return s.open(false, log)
}

// listenAddress is where a server is to listen, HOST:PORT; empty for nowhere.
type listenAddress struct {
	Flag, At string
	Plain    bool // without TLS, also where the server has it
}

// Calls returns the TLS with which a server calls others: own is its own; nil for none.
func (s *serverTLS) Calls(own *tlsfiles.Files) *tlsfiles.Files {
	if s.cfg.CA == "" && s.cfg.Cert == "" {
		return nil
	}
	return own
}

// urlScheme is that of a server's URLs.
func urlScheme(own *tlsfiles.Files) string {
	if own.Serves() {
		return "https"
	}
	return "http"
}

// Check returns why a server is not secure, empty if it is: other machines reach it, and it
// has no TLS or no identities. policy says that it has a policy. Its error is Invalid if the
// server is not secure and --insecure was not given, or if an address is none.
func (s *serverTLS) Check(own *tlsfiles.Files, policy bool, log hclog.Logger,
	addresses ...listenAddress) (why string, err error) {
	for _, a := range addresses {
		_, port, err := net.SplitHostPort(a.At)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil && (a.At != "" || a.Flag == "grpc") {
			return "", allocator.Errorf(allocator.Invalid, "%s: %q; allowed: HOST:PORT, with a port of 0 to 65535",
				a.Flag, a.At)
		}
	}
	for _, a := range addresses {
		if a.At == "" || loopback(a.At) {
			continue
		}
		var lacks []string
		if !own.Serves() || a.Plain {
			lacks = append(lacks, "no TLS (--tls-cert, --tls-key)")
		}
		if !policy && !own.RequiresClient() {
			lacks = append(lacks, "no identities of callers (--policy)")
		}
		if len(lacks) == 0 {
			continue
		}
		why = "other machines reach it at " + a.At + " (--" + a.Flag + "), where it has " + strings.Join(lacks, " and ")
		if !s.Insecure {
			return why, allocator.Errorf(allocator.Invalid,
				"%s: other machines reach %s, where this server would have %s; allowed: "+
					"a loopback address such as 127.0.0.1, or with TLS and a policy, or with --insecure",
				a.Flag, a.At, strings.Join(lacks, " and "))
		}
		log.Warn("insecure, as --insecure allows", "why", why)
		return why, nil
	}
	return "", nil
}

// loopback reports whether only this machine reaches an address. An address that cannot be
// resolved is none.
func loopback(address string) bool {
	at, err := net.ResolveTCPAddr("tcp", address)
	return err == nil && at.IP.IsLoopback()
}

// filesTLS are the flags that servers and clients share.
type filesTLS struct {
	cfg   tlsfiles.Config
	least string
}

func (f *filesTLS) options() []option {
	return []option{
		{"tls-cert", &f.cfg.Cert, "file with the own certificate (PEM), and the intermediate ones behind it; read " +
			"again when it changes"},
		{"tls-key", &f.cfg.Key, "file with the certificate's key (PEM)"},
		{"tls-min-version", oneOf(usually(&f.least, "1.3"), "1.2", "1.3"), "the least version of TLS: 1.2 or 1.3"},
	}
}

// open returns the files; nil if none is named and TLS is not on.
func (f *filesTLS) open(on bool, log hclog.Logger) (*tlsfiles.Files, error) {
	f.cfg.TLS12 = f.least == "1.2"
	f.cfg.Flags, f.cfg.Logger = "tls", log.Named("tls")
	if c := f.cfg; !on && c.CA == "" && c.Cert == "" && c.Key == "" && c.ClientCA == "" && !c.RequireClient {
		return nil, nil
	}
	return tlsfiles.Open(f.cfg)
}
