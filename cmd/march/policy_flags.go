package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/observe"
)

// policyFlags are the settings of a server's policy.
type policyFlags struct{ cfg access.Config }

// Add adds the flags.
func (f *policyFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.cfg.Policy, "policy", "", "YAML file that says which caller may make which call; "+
		"it is read again when it changes. Without it, every caller may make every call")
	flags.StringVar(&f.cfg.Tokens, "tokens", "", "with --policy: file with the hashes of the tokens that callers may "+
		"give, from 'march token create'")
	flags.StringVar(&f.cfg.Issuer, "oidc-issuer", "",
		"with --policy: address of the OpenID Connect issuer whose tokens (JWT) callers may give")
	flags.StringVar(&f.cfg.Audience, "oidc-audience", "", "the audience that such a token must have")
	flags.StringVar(&f.cfg.Keys, "jwks-file", "", "file with the public keys (JWKS) that sign such tokens, "+
		"instead of asking the issuer for them")
}

// consolePolicyFlags are those of a console, with the logins to its page.
type consolePolicyFlags struct {
	policyFlags
	secret, key string // files
}

// Add adds the flags, which set cfg.
func (f *consolePolicyFlags) Add(flags *pflag.FlagSet, cfg *console.Config) {
	f.policyFlags.Add(flags)
	flags.StringVar(&cfg.Credentials.TokenFile, "token-file", "",
		"file with the token that this console gives to the instances that it asks")
	flags.StringVar(&cfg.Login.ClientID, "oidc-client-id", "",
		"this console's client ID at --oidc-issuer, for logins to the page; empty for logins by tokens only")
	flags.StringVar(&f.secret, "oidc-client-secret-file", "", "file with that client's secret, if it has one")
	flags.StringVar(&cfg.Login.PublicURL, "public-url", "",
		"address at which browsers reach the page, such as https://march.example.com; "+
			"it is served under this name only")
	flags.StringVar(&f.key, "session-key-file", "", "file with 32 random bytes or more that protect logins, "+
		"the same for all consoles; without it, logins end with this process")
	flags.DurationVar(&cfg.Login.Lasts, "session-lasts", 12*time.Hour, "how long a login to the page lasts")
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

// readSecret reads a small file.
func readSecret(flag, path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%s: %w", flag, err)
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, 4097))
	if err == nil && (len(content) == 0 || len(content) > 4096) {
		err = errors.New("allowed: 1 to 4096 bytes")
	}
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%s: %s: %w", flag, path, err)
	}
	return content, nil
}

// Gate returns what the flags ask for; nil without a policy. room is the server's room, empty
// for a console. Its error is Invalid.
func (f *policyFlags) Gate(room string, metrics *observe.Metrics, log hclog.Logger) (*access.Gate, error) {
	f.cfg.Room, f.cfg.Metrics, f.cfg.Logger = room, metrics, log.Named("access")
	return access.New(f.cfg)
}
