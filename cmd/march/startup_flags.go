package main

import (
	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/serve"
)

// adminOptions returns the settings of the addresses for operators.
func (s *starting) adminOptions(advertise *string) []option {
	return []option{
		{"admin-grpc", &s.AdminGRPC, "where to serve operators' calls, reflection and health over gRPC, HOST:PORT; " +
			"empty for --grpc. With it, --grpc serves callers who take IDs only"},
		{"admin-http", &s.AdminHTTP, "with --admin-grpc: where to serve operators' calls, /metrics, /livez and " +
			"/readyz over HTTP, HOST:PORT; empty for nowhere"},
		{"advertise-admin", advertise, "the address at which consoles and operators reach --admin-grpc (default that " +
			"address, with this host's name for 0.0.0.0)"},
	}
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

// limitOptions returns the limits on how much of a server callers may use.
func limitOptions(l *serve.Limits, maxTags *int64) []option {
	return []option{
		{"max-connections", &l.Connections, "how many connections may be open, gRPC and HTTP together"},
		{"max-caller-connections", &l.CallerConnections, "how many connections one caller (an IP address) may have"},
		{"max-connection-streams", &l.ConnectionStreams, "how many calls and streams may be under way on one gRPC " +
			"connection"},
		{"max-caller-streams", &l.CallerStreams, "how many calls and streams one caller may have under way over gRPC"},
		{"max-caller-open-streams", &l.OpenStreams, "how many gRPC streams one caller (a subject, or else an IP " +
			"address) may have open"},
		{"max-resets", &l.Resets, "how many calls an address may give up over gRPC before their requests came, " +
			"besides as many as it asked"},
		{"max-tags", maxTags, "how many tags the cluster may have: this server creates no more"},
	}
}
