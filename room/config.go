package room

import (
	"errors"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/setting"
)

// Config are a room's settings, and what the process has for it. The fields with a flag are settings (package setting).
type Config struct {
	serve.Settings
	Room allocator.Room
	// Name is the instance's name, which no other instance has and which stays the
	// same over restarts: a host or pod name.
	Name allocator.Instance
	// Ledger is the cluster. The server runs it, and does not close it.
	Ledger *ledger.Ledger
	// Admin bounds the tags that the room may create.
	Admin admin.Config
	// AdminGRPC and AdminHTTP are where it answers operators' calls and shows metrics; Run
	// closes them. If AdminGRPC is nil, GRPC and HTTP do that, too.
	AdminGRPC, AdminHTTP net.Listener
	// Insecure is why it is not secure, for the operators; empty if it is.
	Insecure string
	// Doors are where it answers other systems' clients; Run closes them. Default: nowhere.
	Doors Doors
	// The defaults of the addresses that others are told are the listeners' own.
	Advertise      string `flag:"advertise" check:"address" help:"the gRPC address at which other processes reach this instance (default --grpc, with this host's name for 0.0.0.0)"`
	AdvertiseAdmin string `flag:"advertise-admin" check:"address" help:"the address at which consoles and operators reach --admin-grpc (default that address, with this host's name for 0.0.0.0)"`
	// Diagnose answers operators' questions about the process; nil if none are answered.
	Diagnose *problem.Host
	// Peers are those with which the instance passes calls for ordered tags on to another instance of its room. Dial
	// returns a connection to that. Default api.Dial.
	Peers api.Credentials
	Dial  func(address string, options ...grpc.DialOption) (grpc.ClientConnInterface, error)
	// Build is the program's version.
	Build string
	// Journal is the directory of this instance's journal, from which it sees after
	// a restart whether etcd went back in time; empty for none.
	Journal        string
	RequireJournal bool `flag:"require-journal" help:"if this instance starts without its predecessor's journal, lease nothing until 'march instance confirm'; 'march cluster update --journal required' does the same for all instances"`
	// CreateTags is for development: with it a misspelt tag is a new sequence.
	CreateTags bool `flag:"create-tags" help:"create a tag when it is first asked for; for development"`
	// WarmTags get their first segment before the instance reports that it is
	// ready.
	WarmTags  []allocator.Tag
	IdleAfter time.Duration `flag:"idle-after" least:"1s" help:"how long a tag may be unused before its IDs are dropped from memory"`
	// Hold bounds this instance if StrictRetract or the tag says so, and clients always.
	Hold          time.Duration `flag:"hold" least:"1s" most:"168h0m0s" help:"how long clients may use IDs that they lease, and rooms the IDs of strict tags after etcd last confirmed the layout"`
	StrictRetract bool          `flag:"strict-retract" help:"make all tags strict: issue nothing rather than an ID of a residue that this room may have given up"`
	// Worker chooses the number of the workers of time-ordered IDs that this instance
	// takes, counted from the lower end of its room's slice; the zero value leaves the
	// choice to the instance.
	Worker       worker.Pin
	WorkerWindow time.Duration `flag:"worker-window" help:"with --worker: how long the next process with that number waits after a crash, at most"`
	// ClientWorkers bounds the workers that the room lends to clients, taken from the
	// end of its slice: at most half of the slice, which is the default (0). Negative
	// for none.
	ClientWorkers int64
	// OpaqueKeys are the keys of tags with opaque numbers as texts, by the names of the keys.
	OpaqueKeys []format.Key
	AgreeClock bool `flag:"agree-clock" help:"take workers of time-ordered IDs although this host's clock is ahead of the other instances' clocks; these IDs will always sort too late"`
	// All callers together may ask for ten times as many unknown tags.
	MaxUnknownTags int `flag:"max-unknown-tags" least:"1" most:"10000000" help:"how many names of tags that do not exist a caller may ask for in a minute"`
	// ColdAfter is how long a tag must have had no request for it to be cold: a new
	// layout drops a cold tag's IDs and leases none ahead. Default 1 minute.
	ColdAfter    time.Duration
	ReadyReserve time.Duration `flag:"ready-reserve" least:"0s" most:"168h0m0s" help:"not ready if nothing can be leased and no tag in use has IDs for longer than this; 0 is until they have run out"`
	// Rand returns numbers in [0, 1) for jitter, and is safe for concurrent use.
	// Default math/rand's.
	Rand func() float64
	// The tags without series of their own share one.
	MetricsTags int `flag:"metrics-tags" least:"0" most:"100000" help:"how many tags have metrics of their own, the busiest first; 0 for none"`
}

// DefaultConfig returns the defaults. Room, Name, Ledger and GRPC must be set.
func DefaultConfig() Config {
	return Config{
		Settings:  serve.Settings{Drain: 10 * time.Second, Limits: serve.DefaultLimits()},
		IdleAfter: 30 * time.Minute, ColdAfter: time.Minute, Hold: allocator.DefaultSettings().Reserve,
		Admin: admin.DefaultConfig(), WorkerWindow: worker.DefaultPinnedWindow, MetricsTags: 1000,
		Rand: rand.Float64, MaxUnknownTags: 100, Dial: dial,
	}
}

func dial(address string, options ...grpc.DialOption) (grpc.ClientConnInterface, error) {
	return api.Dial(address, options...)
}

// Validate checks the settings, but not the ledger, the listeners and the address. Its
// errors are Invalid.
func (cfg Config) Validate() error {
	if _, err := allocator.ParseRoom(string(cfg.Room)); err != nil {
		return err
	}
	if _, err := allocator.ParseInstance(string(cfg.Name)); err != nil {
		return err
	}
	if err := setting.Check(&cfg); err != nil {
		return err
	}
	if cfg.ColdAfter < 0 { // no setting of a server
		return allocator.Errorf(allocator.Invalid, "cold-after: %v; allowed: 0s or more", cfg.ColdAfter)
	}
	return errors.Join(serve.CheckHosts(cfg.AllowedHosts), cfg.Doors.validate(cfg.Access))
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
