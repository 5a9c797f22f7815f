package main

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/smallfile"
)

// policyFlags are the settings of a server's policy.
type policyFlags struct{ cfg access.Config }

func (f *policyFlags) options() []option {
	return []option{
		{"policy", &f.cfg.Policy, "YAML file that says which caller may make which call; it is read again when it " +
			"changes. Without it, every caller may make every call"},
		{"tokens", &f.cfg.Tokens, "with --policy: file with the hashes of the tokens that callers may give, from " +
			"'march token create'"},
		{"oidc-issuer", &f.cfg.Issuer, "with --policy: address of the OpenID Connect issuer whose tokens (JWT) " +
			"callers may give"},
		{"oidc-audience", &f.cfg.Audience, "the audience that such a token must have"},
		{"identities", &f.cfg.Identities, "with --policy: YAML file with several issuers and CAs of clients' " +
			"certificates, and the names that each may give; with it, --oidc-issuer says at which of them browsers " +
			"log in"},
		{"jwks-file", &f.cfg.Keys, "file with the public keys (JWKS) that sign such tokens, instead of asking the " +
			"issuer for them"},
	}
}

// consolePolicyFlags are those of a console, with the logins to its page.
type consolePolicyFlags struct {
	policyFlags
	secret, key string // files
}

// options returns the settings, which set cfg.
func (f *consolePolicyFlags) options(cfg *console.Config) []option {
	return slices.Concat(f.policyFlags.options(), []option{
		{"token-file", &cfg.Credentials.TokenFile, "file with the token that this console gives to the instances " +
			"that it asks"},
		{"oidc-client-id", &cfg.Login.ClientID, "this console's client ID at --oidc-issuer, for logins to the page; " +
			"empty for logins by tokens only"},
		{"oidc-client-secret-file", &f.secret, "file with that client's secret, if it has one"},
		{"public-url", &cfg.Login.PublicURL, "address at which browsers reach the page, such as " +
			"https://march.example.com; it is served under this name only"},
		{"session-key-file", &f.key, "file with 32 random bytes or more that protect logins, the same for all " +
			"consoles; without it, logins end with this process"},
		{"session-lasts", usually(&cfg.Login.Lasts, 12*time.Hour), "how long a login to the page lasts"},
	})
}

// Set sets what the flags ask for in cfg. Its error is Invalid.
func (f *consolePolicyFlags) Set(cfg *console.Config, metrics *observe.Metrics, log hclog.Logger) (err error) {
	if f.secret != "" {
		secret, err := readSecret("oidc-client-secret-file", f.secret)
		if err != nil {
			return err
		}
		cfg.Login.ClientSecret = string(bytes.TrimSpace(secret))
	}
	if f.key != "" {
		if cfg.Login.Key, err = readSecret("session-key-file", f.key); err != nil {
			return err
		}
	}
	if f.cfg.Policy == "" && cfg.Login.ClientID != "" {
		return allocator.Errorf(allocator.Invalid,
			"oidc-client-id: given without a policy, so that no browser has to log in; give --policy FILE")
	}
	cfg.Access, err = f.Gate("", metrics, log)
	return err
}

// passwordFile returns a function that reads the password of etcd's user from a file. Its
// error is Invalid.
func passwordFile(path string) func() (string, error) {
	return func() (string, error) {
		password, err := readSecret("etcd-password-file", path)
		return strings.TrimRight(string(password), "\r\n"), err
	}
}

// maxSecret bounds the file of a secret, in bytes.
const maxSecret = 4096

// readSecret reads the file of a secret. Its error is Invalid.
func readSecret(setting, path string) ([]byte, error) {
	content, err := smallfile.Read(setting, path, maxSecret)
	if err == nil && len(content) == 0 {
		err = allocator.Errorf(allocator.Invalid, "%s: %s is empty", setting, path)
	}
	return content, err
}

// Gate returns what the flags ask for; nil without a policy. room is the server's room, empty
// for a console. Its error is Invalid.
func (f *policyFlags) Gate(room string, metrics *observe.Metrics, log hclog.Logger) (*access.Gate, error) {
	f.cfg.Room, f.cfg.Metrics, f.cfg.Logger = room, metrics, log.Named("access")
	return access.New(f.cfg)
}
