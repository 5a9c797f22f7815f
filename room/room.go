package room

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/texts"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/diagnose"
	"github.com/march-id/march/internal/minutes"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/throttle"
	"github.com/march-id/march/room/timetags"
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
	Diagnose *diagnose.Server
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
	// OpaqueKeys are the keys of tags whose texts are opaque numbers, by their names.
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
	Metrics *observe.Metrics
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

// Server is one instance of a room.
type Server struct {
	marchv1.UnimplementedIDServiceServer
	marchv1.UnimplementedRoomServiceServer

	cfg      Config
	log      hclog.Logger
	ledger   *ledger.Ledger
	admin    *admin.Admin
	refiller *allocator.Refiller
	chains   chains
	texts    *texts.Cache
	health   *health.Server
	status   status
	met      problem.Log    // since when each problem exists
	issued   atomic.Int64   // IDs, to all callers
	streams  sync.WaitGroup // the goroutines that answer streams
	loads    loads          // the work that makes chains

	prescaled   chan allocator.Tag // tags whose chains to make before their first caller
	stale       chan struct{}      // a strict tag found its layout not confirmed
	metrics     *metrics           // nil for none
	routes      func(*http.ServeMux)
	adminRoutes func(*http.ServeMux) // nil if routes has them
	doors       []serve.Door
	lines       lines
	damaged     damaged

	rates   rates
	history minutes.History
	timeIDs map[allocator.Tag]int64        // that tags of time-ordered IDs had issued a minute ago; of measure alone
	served  atomic.Pointer[allocator.Part] // of the layout that this instance reports; nil before it is known

	// Set by Run before anything is served.
	instance   *ledger.Instance
	times      *timetags.Tags
	started    time.Time
	background context.Context // ends after the last call
}

// maxRequest bounds a request, in bytes.
const maxRequest = 64 << 10

// lines throttle messages that may come for every tag at once.
type lines struct{ deleted, updated, refused, dropped, unwarmed, unready, keyless, damaged throttle.Log }

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
		return allocator.Errorf(allocator.Invalid, "ready-reserve: %v; allowed: 0s to %v", cfg.ReadyReserve, allocator.LongestReserve)
	case cfg.ColdAfter < 0:
		return allocator.Errorf(allocator.Invalid, "cold-after: %v; allowed: 0s or more", cfg.ColdAfter)
	case cfg.MetricsTags < 0 || cfg.MetricsTags > MaxMetricsTags:
		return allocator.Errorf(allocator.Invalid, "metrics-tags: %d; allowed: 0 to %d", cfg.MetricsTags, MaxMetricsTags)
	case cfg.Drain < 0:
		return allocator.Errorf(allocator.Invalid, "drain: %v; allowed: 0s or more", cfg.Drain)
	}
	return errors.Join(
		serve.CheckHosts(cfg.AllowedHosts), cfg.Limits.Validate(),
		serve.CheckLimit(maxUnknownTags, cfg.MaxUnknownTags), cfg.Doors.validate(cfg.Access),
	)
}

// New checks cfg. Its errors are Invalid.
func New(cfg Config) (*Server, error) {
	if cfg.Ledger == nil || cfg.GRPC == nil {
		return nil, allocator.Errorf(allocator.Invalid, "room: no ledger or no gRPC listener given")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.addresses(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	refiller, err := allocator.NewRefiller(allocator.DefaultRefillerConfig(time.Now, cfg.Rand))
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger.With("room", cfg.Room, "instance", cfg.Name),
		ledger: cfg.Ledger, admin: admin.New(cfg.Ledger, cfg.Admin), refiller: refiller, health: health.NewServer(),
		texts:     texts.NewCache(cfg.OpaqueKeys),
		prescaled: make(chan allocator.Tag, maxPrescaled), stale: make(chan struct{}, 1),
	}
	if err := s.makeRoutes(); err != nil {
		return nil, err
	}
	s.chains.init(cfg.Name, cfg.Metrics.Limit(maxUnknownTags, int64(cfg.MaxUnknownTags)))
	s.status.init()
	if cfg.Metrics != nil {
		s.metrics = newMetrics(s)
	}
	if err := s.addDoors(); err != nil {
		return nil, err
	}
	_ = s.reportHealth()
	return s, nil
}

// Run registers and serves until ctx ends, then finishes the calls under way,
// deregisters, and returns nil. It returns an error if it cannot start, and if
// another process of the same name takes over the registration.
func (s *Server) Run(ctx context.Context) error {
	var err error
	s.instance, err = s.ledger.Join(ctx, ledger.Registration{
		Room: s.cfg.Room, Name: s.cfg.Name, Address: s.cfg.Advertise, AdminAddress: s.cfg.AdvertiseAdmin, Build: s.cfg.Build, Hold: s.cfg.Hold,
		Journal: s.cfg.Journal, RequireJournal: s.cfg.RequireJournal, Pin: pinned(s.cfg.Worker), Keeps: s.cfg.Doors.keeps(),
	})
	if err != nil {
		s.closeListeners()
		return err
	}
	s.started = time.Now()
	s.rates.start(s.started)
	s.history.Start(s.instance.Now(), 0)
	defer func() {
		if err := s.instance.Close(); err != nil {
			s.log.Warn("journal not closed", "error", err)
		}
	}()
	if err := s.startTimes(); err != nil {
		s.closeListeners()
		return errors.Join(err, s.instance.Close())
	}
	s.instance.OnTag(s.tagChanged)
	s.instance.OnOrphan(s.orphaned)
	s.instance.OnDrop(s.drop)
	served := s.instance.Version()
	if record, _ := s.ledger.Layout(); record.Layout.Version == served {
		part := record.Layout.Part(s.cfg.Room)
		s.served.Store(&part)
	}
	// The background goes on while calls drain, and ends after them.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	work, background := errgroup.WithContext(background)
	s.background = background
	work.Go(func() error { return s.refiller.Run(background) })
	work.Go(func() error { return s.ledger.Run(background, s.tagChanged) })
	work.Go(func() error { s.times.Run(background); return nil })
	work.Go(func() error {
		err := s.instance.Run(background)
		if err != nil { // another process has taken this one's name: issue nothing more
			s.log.Error("registration lost", "error", err)
			s.status.stopped()
			s.chains.closeAll()
			s.times.Drop()
		}
		return err
	})
	work.Go(func() error { return s.adoptLayouts(background, served) })
	work.Go(func() error { return s.refreshLayout(background) })
	work.Go(func() error { return s.sweep(background) })
	work.Go(func() error { return s.warmPrescaled(background) })
	work.Go(func() error { return s.followPeriods(background) })
	work.Go(func() error { return s.watchHealth(background) })
	work.Go(func() error { return s.measure(background) })
	work.Go(func() error { s.cfg.Access.Run(background, operator.Refused(s.admin)); return nil })

	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	defer context.AfterFunc(background, stopServing)() // for example because the registration is lost
	warming := sync.WaitGroup{}
	warming.Go(func() { s.warm(serving) })
	err = serve.Run(serving, serve.Config{
		GRPC: s.cfg.GRPC, HTTP: s.cfg.HTTP, TLS: s.cfg.TLS, Health: s.health, MaxRequest: maxRequest, Drain: s.cfg.Drain,
		Register: func(r grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(r, s) },
		Admin: serve.Admin{
			GRPC: s.cfg.AdminGRPC, HTTP: s.cfg.AdminHTTP, Routes: s.adminRoutes,
			Register: func(r grpc.ServiceRegistrar) {
				marchv1.RegisterRoomServiceServer(r, s)
				s.cfg.Diagnose.Register(r)
			},
		},
		Ready:    func(context.Context) []serve.Check { return s.checks() },
		Problems: func(context.Context) []string { return problem.AsLines(s.problems()) },
		Routes:   s.routes,
		Metrics:  s.cfg.Metrics,
		Tracer:   s.cfg.Tracer,
		Logger:   s.log,
		Draining: s.status.stopped,

		Access:       s.cfg.Access,
		AllowedHosts: s.cfg.AllowedHosts, Limits: s.cfg.Limits,
		Doors: s.doors,
	})
	stopServing()
	warming.Wait()
	s.streams.Wait()

	// Stop leasing and heartbeats before Leave: nothing may be leased after it, and
	// a heartbeat would find the registration lost.
	stop()
	lost := work.Wait()
	s.loads.end()
	if lost != nil {
		return lost
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.times.Close(leaving); err != nil {
		s.log.Info("a worker was not given back: its window ends by itself", "error", err)
	}
	left := s.instance.Leave(leaving)
	held := s.chains.closeAll()
	s.log.Info("stopped", "ids_held_and_dropped", held)
	if left != nil && err == nil {
		s.log.Warn("could not deregister: the instance stays listed until it starts again or is forgotten", "error", left)
	}
	return err
}

// enterPatience bounds how long a start waits until the instance has compared its
// leases with the marks. After that it answers calls that need no lease.
const enterPatience = 2 * time.Second
