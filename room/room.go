package room

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/throttle"
)

// Server is one instance of a room: the service of IDs, over the parts that it is made of.
type Server struct {
	marchv1.UnimplementedIDServiceServer

	*process
	operators // the service for operators
	tags      tags
	health    health
	doors     doors

	streams     sync.WaitGroup // the goroutines that answer streams
	routes      func(*http.ServeMux)
	adminRoutes func(*http.ServeMux)           // nil if routes has them
	served      atomic.Pointer[allocator.Part] // of the layout that this instance reports; nil before it is known
}

// process is what all parts of a server share.
type process struct {
	cfg     Config
	log     hclog.Logger
	ledger  *ledger.Ledger
	admin   *admin.Admin
	status  status
	issued  atomic.Int64 // IDs, to all callers
	leased  atomic.Int64 // of these, to callers that keep them; never ahead of issued
	metrics *metrics     // nil for none
	lines   lines

	elsewhere atomic.Int64 // of issued, those that another instance of the room issued, and counts: see passed
	shown     atomic.Int64 // the largest that issuedHere returned

	// Set by Run before anything is served.
	instance   *ledger.Instance
	windows    *Windows
	started    time.Time
	background context.Context // ends after the last call
}

// maxRequest bounds a request, in bytes.
const maxRequest = 64 << 10

// lines throttle messages that may come for every tag at once.
type lines struct{ deleted, updated, refused, dropped, unwarmed, unready, keyless, silent throttle.Log }

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
	cfg.Logger = cfg.Logger.With("room", cfg.Room, "instance", cfg.Name)
	refilling := allocator.DefaultRefillerConfig(time.Now, cfg.Rand)
	refilling.Timeout = ledger.LongestWork // the ledger bounds each try
	refilling.Finish = 2 * time.Second
	refiller, err := allocator.NewRefiller(refilling)
	if err != nil {
		return nil, err
	}
	s := &Server{process: &process{
		cfg: cfg, log: cfg.Logger, ledger: cfg.Ledger, admin: admin.New(cfg.Ledger, cfg.Admin),
	}}
	s.status.stop = make(chan struct{})
	s.tags.init(s.process, refiller)
	s.health = health{process: s.process, tags: &s.tags, grpc: grpchealth.NewServer()}
	s.operators = operators{process: s.process, tags: &s.tags, health: &s.health}
	s.doors.room = s
	if err := s.makeRoutes(); err != nil {
		return nil, err
	}
	if cfg.Metrics != nil {
		s.metrics = newMetrics(s)
	}
	if err := s.doors.start(); err != nil {
		return nil, err
	}
	_ = s.health.reportHealth()
	return s, nil
}

// joinWithin bounds how long an instance that starts asks again. It was given a ledger that etcd had just answered.
const joinWithin = 30 * time.Second

// join registers the instance. While etcd does not answer it asks again.
func (s *Server) join(ctx context.Context) (err error) {
	for began := time.Now(); ; {
		s.instance, err = s.ledger.Join(ctx, ledger.Registration{
			Room: s.cfg.Room, Name: s.cfg.Name, Address: s.cfg.Advertise, AdminAddress: s.cfg.AdvertiseAdmin,
			Build: s.cfg.Build, Hold: s.cfg.Hold,
			Journal: s.cfg.Journal, RequireJournal: s.cfg.RequireJournal, Pin: pinned(s.cfg.Worker),
			Keeps: s.cfg.Doors.keeps(),
		})
		if err == nil || allocator.KindOf(err) != allocator.Unavailable || time.Since(began) > joinWithin {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
			s.log.Debug("not registered, trying again", "error", err)
		}
	}
}

// Run registers and serves until ctx ends, then finishes the calls under way,
// deregisters, and returns nil. It returns an error if it cannot start, and if
// another process of the same name takes over the registration.
func (s *Server) Run(ctx context.Context) error {
	if err := s.join(ctx); err != nil {
		s.closeListeners()
		return err
	}
	s.started = time.Now()
	s.operators.rates.start(s.started)
	s.operators.history.Start(s.instance.Now())
	defer func() {
		if err := s.instance.Close(); err != nil {
			s.log.Warn("journal not closed", "error", err)
		}
	}()
	if err := s.startWindows(); err != nil {
		s.closeListeners()
		return errors.Join(err, s.instance.Close())
	}
	s.instance.OnTag(s.tags.tagChanged)
	s.instance.OnOrphan(s.orphaned)
	s.instance.OnDrop(s.drop)
	s.instance.OnLostWorkers(s.windows.DropLost)
	s.takeKept(ctx)
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
	work.Go(func() error { return s.tags.refiller.Run(background) })
	work.Go(func() error { return s.ledger.Run(background, s.tags.tagChanged, s.tags.unleased) })
	work.Go(func() error { s.windows.Run(background); return nil })
	work.Go(func() error {
		err := s.instance.Run(background)
		if err != nil { // another process has taken this one's name: issue nothing more
			s.log.Error("registration lost", "error", err)
			s.status.stopped()
			s.tags.dropIDs()
		}
		return err
	})
	work.Go(func() error { return s.adoptLayouts(background, served) })
	work.Go(func() error { return s.tags.gates.refresh(background) })
	work.Go(func() error { return s.tags.sweep(background) })
	work.Go(func() error { return s.tags.warmPrescaled(background) })
	work.Go(func() error { return s.tags.followPeriods(background) })
	work.Go(func() error { return s.tags.lookAtSkews(background) })
	work.Go(func() error { return s.health.watchHealth(background) })
	work.Go(func() error { s.ledger.WatchMembers(background); return nil })
	work.Go(func() error { return s.operators.measure(background) })
	work.Go(func() error {
		s.cfg.Access.Run(background, operator.Refused(s.admin, s.cfg.Metrics.AuditFailed))
		return nil
	})

	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	defer context.AfterFunc(background, stopServing)() // for example because the registration is lost
	warming := sync.WaitGroup{}
	warming.Go(func() { s.warm(serving) })
	err := serve.Run(serving, serve.Config{
		Settings: s.cfg.Settings, Health: s.health.grpc, MaxRequest: maxRequest,
		Register: func(r grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(r, s) },
		Admin: serve.Admin{
			GRPC: s.cfg.AdminGRPC, HTTP: s.cfg.AdminHTTP, Routes: s.adminRoutes,
			Register: func(r grpc.ServiceRegistrar) {
				marchv1.RegisterRoomServiceServer(r, s)
				s.cfg.Diagnose.Register(r)
			},
		},
		Ready:    func(context.Context) []serve.Check { return s.health.checks() },
		Problems: func(context.Context) []string { return problem.AsLines(s.health.problems()) },
		Routes:   s.routes,
		Draining: func() {
			s.status.stopped()
			s.tags.releaseOrdered() // another instance issues their IDs while calls here end
		},
		Doors: s.doors.open,
	})
	stopServing()
	warming.Wait()
	s.streams.Wait()

	// Stop leasing and heartbeats before Leave: nothing may be leased after it, and
	// a heartbeat would find the registration lost.
	stop()
	lost := work.Wait()
	s.tags.loads.end()
	if lost != nil {
		return lost
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ledger.Patience())
	defer cancel()
	s.tags.releaseOrdered()
	if err := s.instance.SendReleases(leaving); err != nil {
		s.log.Info("an ordered tag was not released: the next instance that issues it waits", "error", err)
	}
	s.tags.peers.close()
	if err := s.windows.Close(leaving); err != nil {
		s.log.Info("a worker was not given back: its window ends by itself", "error", err)
	}
	kept, dropped := s.tags.keepIDs(leaving)
	cancel()
	leaving, cancel = context.WithTimeout(context.WithoutCancel(ctx), s.ledger.Patience()) // however slow the disk was
	defer cancel()
	left := s.instance.Leave(leaving)
	s.log.Info("stopped", "ids_kept", kept, "ids_held_and_dropped", dropped)
	if left != nil && err == nil {
		s.log.Warn("could not deregister: the instance stays listed until it starts again or is forgotten",
			"error", left)
	}
	return err
}

// makeRoutes makes the routes of HTTP: those of operators apart if they have an address of
// their own. Its error comes from the program's embedded files.
func (s *Server) makeRoutes() (err error) {
	conn := s.cfg.Access.Conn(func(r grpc.ServiceRegistrar) {
		marchv1.RegisterIDServiceServer(r, s)
		marchv1.RegisterRoomServiceServer(r, s)
	})
	ids, hot, operators := marchv1.NewIDServiceClient(conn), s.cfg.Access.IDs(s), marchv1.NewRoomServiceClient(conn)
	if s.cfg.AdminGRPC == nil {
		s.routes, err = serve.RoomRoutes(ids, hot, operators, maxRequest, s.log)
		return err
	}
	if s.routes, err = serve.RoomRoutes(ids, hot, nil, maxRequest, s.log); err == nil {
		s.adminRoutes, err = serve.RoomRoutes(nil, access.Issuer{}, operators, maxRequest, s.log)
	}
	return err
}

func (s *Server) closeListeners() {
	for _, l := range []net.Listener{s.cfg.GRPC, s.cfg.HTTP, s.cfg.AdminGRPC, s.cfg.AdminHTTP} {
		if l != nil {
			_ = l.Close()
		}
	}
	s.cfg.Doors.Close()
}
