package room

import (
	"errors"
	"math/rand/v2"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
)

// Config are the settings of an instance.
type Config struct {
	Room allocator.Room
	// Name is the instance's name, which no other instance has and which stays the
	// same over restarts: a host or pod name.
	Name allocator.Instance
	// Ledger is the cluster. The server runs it, and does not close it.
	Ledger *ledger.Ledger
	// Admin bounds the tags that the room may create.
	Admin admin.Config
	// GRPC and HTTP are where it listens; Run closes them. HTTP may be nil.
	GRPC, HTTP net.Listener
	// AdminGRPC and AdminHTTP are where it answers operators' calls and shows metrics; Run
	// closes them. If AdminGRPC is nil, GRPC and HTTP do that, too.
	AdminGRPC, AdminHTTP net.Listener
	// TLS has the certificate that it serves with; nil serves without TLS.
	TLS *tlsfiles.Files
	// Insecure is why it is not secure, for the operators; empty if it is.
	Insecure string
	// Doors are where it answers other systems' clients; Run closes them. Default: nowhere.
	Doors Doors
	// Advertise is the address at which other processes reach GRPC; default: GRPC's
	// own.
	Advertise string
	// AdvertiseAdmin is the address at which other processes reach AdminGRPC; default:
	// AdminGRPC's own.
	AdvertiseAdmin string
	// Diagnose answers operators' questions about the process; nil if none are answered.
	Diagnose *problem.Host
	// Build is the program's version.
	Build string
	// Journal is the directory of this instance's journal, from which it sees after
	// a restart whether etcd went back in time; empty for none.
	Journal string
	// RequireJournal makes this instance lease nothing without its journal until
	// its marks are confirmed, whatever the cluster's settings say. Default false.
	RequireJournal bool
	// CreateTags creates a tag with default settings when it is first asked for,
	// instead of answering not_found. For development: with it a misspelt tag
	// is a new sequence. Default false.
	CreateTags bool
	// WarmTags get their first segment before the instance reports that it is
	// ready.
	WarmTags []allocator.Tag
	// IdleAfter is how long a tag may be unused before its chain is dropped from
	// memory. Default 30 minutes.
	IdleAfter time.Duration
	// Hold is how long IDs of a layout may be issued after the layout was last
	// confirmed with etcd. It always bounds clients, for the segments that they
	// lease. It bounds this instance if StrictRetract or the tag says so. Default
	// 10 minutes; 1 s to 7 days.
	Hold time.Duration
	// StrictRetract makes all tags of this instance strict: it stops rather than
	// issue a residue that the room may have given up. Default false: it goes on
	// with the segments that it holds. The IDs are unique either way.
	StrictRetract bool
	// Worker chooses the number of the workers of time-ordered IDs that this instance
	// takes, counted from the lower end of its room's slice; the zero value leaves the
	// choice to the instance.
	Worker worker.Pin
	// WorkerWindow bounds the windows of such a worker: after a crash the next process
	// waits for the end of the window. Default 30 s.
	WorkerWindow time.Duration
	// ClientWorkers bounds the workers that the room lends to clients, taken from the
	// end of its slice: at most half of the slice, which is the default (0). Negative
	// for none.
	ClientWorkers int64
	// OpaqueKeys are the keys of tags with opaque numbers as texts, by the names of the keys.
	OpaqueKeys []format.Key
	// AgreeClock lets this instance take workers although its clock is ahead of the
	// other instances' clocks. Default false.
	AgreeClock bool
	// Limits bound how much of the server each caller may use.
	Limits serve.Limits
	// MaxUnknownTags is how many names of tags that do not exist a caller may ask
	// for in a minute. All callers together may ask for ten times as many. Default
	// 100.
	MaxUnknownTags int
	// ColdAfter is how long a tag must have had no request for it to be cold: a new
	// layout drops a cold tag's IDs and leases none ahead. Default 1 minute.
	ColdAfter time.Duration
	// ReadyReserve is how long the IDs of some tag in use must last for the instance
	// to be ready while it can lease nothing. Default 0: until they have run out; 7
	// days at most.
	ReadyReserve time.Duration
	// Drain is how long calls under way may take at the end. Default 10 s.
	Drain time.Duration
	// Rand returns numbers in [0, 1) for jitter, and is safe for concurrent use.
	// Default math/rand's.
	Rand func() float64
	// Access checks which caller may make which call; nil lets every caller make every call.
	Access *access.Gate
	// AllowedHosts are host names that HTTP requests may have besides localhost and
	// loopback addresses, if HTTP listens on such an address. Default none.
	AllowedHosts []string
	// Metrics, if set, are served at /metrics.
	Metrics *serve.Metrics
	// MetricsTags is how many tags have series of their own in them; the others
	// share one. Default 1000.
	MetricsTags int
	// Tracer makes spans; nil makes none.
	Tracer trace.TracerProvider
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// DefaultConfig returns the defaults. Room, Name, Ledger and GRPC must be set.
func DefaultConfig() Config {
	return Config{
		IdleAfter: 30 * time.Minute, ColdAfter: time.Minute, Hold: allocator.DefaultSettings().Reserve,
		WorkerWindow: worker.DefaultPinnedWindow,
		Drain:        10 * time.Second, MetricsTags: 1000, Rand: rand.Float64, Limits: serve.DefaultLimits(),
		MaxUnknownTags: 100,
	}
}

// maxMetricsTags bounds Config.MetricsTags.
const maxMetricsTags = 100_000

// Validate checks the settings, but not the ledger, the listeners and the address. Its
// errors are Invalid.
func (cfg Config) Validate() error {
	if _, err := allocator.ParseRoom(string(cfg.Room)); err != nil {
		return err
	}
	if _, err := allocator.ParseInstance(string(cfg.Name)); err != nil {
		return err
	}
	switch {
	case cfg.IdleAfter < time.Second:
		return allocator.Errorf(allocator.Invalid, "idle-after: %v; allowed: 1s or more", cfg.IdleAfter)
	case cfg.Hold < time.Second || cfg.Hold > allocator.LongestReserve:
		return allocator.Errorf(allocator.Invalid, "hold: %v; allowed: 1s to %v", cfg.Hold, allocator.LongestReserve)
	case cfg.ReadyReserve < 0 || cfg.ReadyReserve > allocator.LongestReserve:
		return allocator.Errorf(allocator.Invalid, "ready-reserve: %v; allowed: 0s to %v",
			cfg.ReadyReserve, allocator.LongestReserve)
	case cfg.ColdAfter < 0:
		return allocator.Errorf(allocator.Invalid, "cold-after: %v; allowed: 0s or more", cfg.ColdAfter)
	case cfg.MetricsTags < 0 || cfg.MetricsTags > maxMetricsTags:
		return allocator.Errorf(allocator.Invalid, "metrics-tags: %d; allowed: 0 to %d",
			cfg.MetricsTags, maxMetricsTags)
	case cfg.Drain < 0:
		return allocator.Errorf(allocator.Invalid, "drain: %v; allowed: 0s or more", cfg.Drain)
	}
	return errors.Join(
		serve.CheckHosts(cfg.AllowedHosts), cfg.Limits.Validate(),
		serve.CheckLimit(maxUnknownTags, cfg.MaxUnknownTags), cfg.Doors.validate(cfg.Access),
	)
}

// addresses sets the addresses that others are told, where they are not given, and checks them.
// Its error is Invalid.
func (cfg *Config) addresses() error {
	if cfg.AdminGRPC == nil && (cfg.AdminHTTP != nil || cfg.AdvertiseAdmin != "") {
		return allocator.Errorf(allocator.Invalid,
			"admin-grpc: none; allowed: an address, as --admin-http or --advertise-admin is given")
	}
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.GRPC.Addr().String()
	}
	if err := checkAdvertised("advertise", "grpc", cfg.Advertise); err != nil || cfg.AdminGRPC == nil {
		return err
	}
	if cfg.AdvertiseAdmin == "" {
		cfg.AdvertiseAdmin = cfg.AdminGRPC.Addr().String()
	}
	return checkAdvertised("advertise-admin", "admin-grpc", cfg.AdvertiseAdmin)
}

func checkAdvertised(flag, of, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return allocator.Errorf(allocator.Invalid, "%s: %q; allowed: HOST:PORT", flag, address)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return allocator.Errorf(allocator.Invalid, "%s: %q is not an address that other processes can reach; "+
			"if --%s listens on all addresses, give --%s HOST:PORT", flag, address, of, flag)
	}
	return nil
}
