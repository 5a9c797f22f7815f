package store

import (
	"crypto/tls"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
)

// WithoutUser returns an endpoint without a user and a password. Etcd's client uses neither,
// and errors and logs name the endpoint.
func WithoutUser(endpoint string) string {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok {
		scheme, rest = "", endpoint
	} else {
		scheme += "://"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 && !strings.HasPrefix(scheme, "unix") {
		rest = rest[at+1:]
	}
	return scheme + rest
}

// readEndpoints checks the endpoints, and takes users and passwords out of them. Its error is
// Invalid.
func (cfg *EtcdConfig) readEndpoints() error {
	if len(cfg.Endpoints) == 0 {
		return allocator.Errorf(allocator.Invalid,
			"etcd endpoints: none given; allowed: one or more of host:port or http(s)://host:port")
	}
	cfg.Endpoints = slices.Clone(cfg.Endpoints)
	for k, given := range cfg.Endpoints {
		endpoint := WithoutUser(given)
		if !valid(endpoint) {
			return allocator.Errorf(allocator.Invalid,
				"etcd endpoints: %q; allowed: host:port or http(s)://host:port, with a port of 1 to 65535", endpoint)
		}
		if endpoint != given {
			cfg.Logger.Warn("the user and the password in an endpoint of etcd count for nothing: "+
				"give --etcd-user and --etcd-password-file", "endpoint", endpoint)
		}
		if cfg.TLS != nil && strings.HasPrefix(endpoint, "http://") {
			return allocator.Errorf(allocator.Invalid,
				"etcd endpoints: %s is plain text, though there are files for TLS; allowed: https://host:port",
				endpoint)
		}
		cfg.Endpoints[k] = endpoint
	}
	return nil
}

// valid reports whether an endpoint has a host and a port, or is a unix socket.
func valid(endpoint string) bool {
	scheme, address, ok := strings.Cut(endpoint, "://")
	if !ok {
		scheme, address = "http", endpoint
	}
	switch scheme {
	case "http", "https":
		host, port, err := net.SplitHostPort(strings.TrimSuffix(address, "/"))
		n, badPort := strconv.ParseUint(port, 10, 16)
		return err == nil && badPort == nil && n > 0 && !strings.ContainsAny(host, " \t\n,/")
	case "unix", "unixs":
		return address != ""
	}
	return false
}

// secured returns the settings of TLS for a connection to an endpoint; nil for plain text,
// or for those that the endpoint's scheme implies.
func (cfg *EtcdConfig) secured(endpoint string) *tls.Config {
	if cfg.TLS == nil {
		return nil
	}
	return cfg.TLS(hostOf(endpoint))
}

// hostOf returns the host of an endpoint, which the member's certificate must name.
func hostOf(endpoint string) string {
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return endpoint
	}
	return u.Hostname()
}
