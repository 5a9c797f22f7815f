package main

import (
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/serve"
)

// AddAdmin adds the flags of the addresses for operators.
func (s *starting) AddAdmin(flags *pflag.FlagSet, advertise *string) {
	flags.StringVar(&s.AdminGRPC, "admin-grpc", "", "where to serve operators' calls, "+
		"reflection and health over gRPC, HOST:PORT; empty for --grpc. With it, --grpc serves callers who "+
		"take IDs only")
	flags.StringVar(&s.AdminHTTP, "admin-http", "", "with --admin-grpc: where to serve operators' calls, /metrics, "+
		"/livez and /readyz over HTTP, HOST:PORT; empty for nowhere")
	flags.StringVar(advertise, "advertise-admin", "", "the address at which consoles and operators reach --admin-grpc "+
		"(default that address, with this host's name for 0.0.0.0)")
}

// CheckAdmin checks those addresses, and the ones that others are told. Its error is Invalid.
func (s *starting) CheckAdmin(advertise, admin string) error {
	if s.AdminGRPC == "" && (s.AdminHTTP != "" || admin != "") {
		return allocator.Errorf(allocator.Invalid,
			"admin-grpc: none; allowed: HOST:PORT, because --admin-http or --advertise-admin is given")
	}
	for flag, address := range map[string]string{"advertise": advertise, "advertise-admin": admin} {
		if address != "" {
			if err := api.CheckAddress(flag, address); err != nil {
				return err
			}
		}
	}
	return nil
}

// limitFlags adds the limits on how much of a server callers may use.
func limitFlags(flags *pflag.FlagSet, l *serve.Limits, maxTags *int64) {
	flags.IntVar(&l.Connections, "max-connections", l.Connections,
		"how many connections may be open, gRPC and HTTP together")
	flags.IntVar(&l.CallerConnections, "max-caller-connections", l.CallerConnections,
		"how many connections one caller (an IP address) may have")
	flags.IntVar(&l.ConnectionStreams, "max-connection-streams", l.ConnectionStreams,
		"how many calls and streams may be under way on one gRPC connection")
	flags.IntVar(&l.CallerStreams, "max-caller-streams", l.CallerStreams,
		"how many calls and streams one caller may have under way over gRPC")
	flags.IntVar(&l.OpenStreams, "max-caller-open-streams", l.OpenStreams,
		"how many gRPC streams one caller (a subject, or else an IP address) may have open")
	flags.IntVar(&l.Resets, "max-resets", l.Resets, "how many calls an address may give up over gRPC before their "+
		"requests came, besides as many as it asked")
	flags.Int64Var(maxTags, "max-tags", *maxTags, "how many tags the cluster may have: this server creates no more")
}
