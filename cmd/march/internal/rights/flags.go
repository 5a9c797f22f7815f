package rights

import (
	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/observe"
)

// Flags are the settings of a server's policy.
type Flags struct{ cfg access.Config }

// Add adds the flags.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.cfg.Policy, "policy", "", "YAML file that says which caller may make which call; it is read again when it changes. Without it, every caller may make every call")
	flags.StringVar(&f.cfg.Tokens, "tokens", "", "with --policy: file with the hashes of the tokens that callers may give, from 'march token create'")
	flags.StringVar(&f.cfg.Issuer, "oidc-issuer", "", "with --policy: address of the OpenID Connect issuer whose tokens (JWT) callers may give")
	flags.StringVar(&f.cfg.Audience, "oidc-audience", "", "the audience that such a token must have")
	flags.StringVar(&f.cfg.Keys, "jwks-file", "", "file with the public keys (JWKS) that sign such tokens, instead of asking the issuer for them")
}

// Gate returns what the flags ask for; nil without a policy. room is the server's room, empty
// for a console. Its error is Invalid.
func (f *Flags) Gate(room string, metrics *observe.Metrics, log hclog.Logger) (*access.Gate, error) {
	f.cfg.Room, f.cfg.Metrics, f.cfg.Logger = room, metrics, log.Named("access")
	return access.New(f.cfg)
}
