package console

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/web"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/setting"
)

// Config are a console's settings, and what the process has for it. The fields with a flag are settings (package
// setting).
type Config struct {
	serve.Settings
	// Ledger is the console's own connection to its cluster. It halts leasing if it
	// sees etcd go back in time. The server does not close it.
	Ledger *ledger.Ledger
	// Admin bounds the tags that the console may create.
	Admin admin.Config
	// ForgetAfter is without a break: then the console forgets the instance as `march instance forget` does.
	ForgetAfter time.Duration `flag:"forget-after" least:"1m" help:"how long an instance must be silent to be forgotten"`
	// Afterwards the console knows the addresses from etcd.
	Rooms     []string `flag:"rooms" help:"addresses of instances, HOST:PORT, to show if etcd does not answer at the start"`
	Dashboard string   `flag:"dashboard" help:"address of the dashboard of deploy/grafana in your Grafana, such as https://grafana.example.com/d/march: the history page links to its last 7 and 30 days"`
	// A page that browsers keep up to date reads etcd every second or so.
	MaxLivePages       int `flag:"max-live-pages" least:"1" most:"10000000" help:"how many pages browsers may keep up to date at once"`
	MaxCallerLivePages int `flag:"max-caller-live-pages" least:"1" most:"10000000" help:"how many pages the browsers of one caller may keep up to date at once"`
	// Without the file, the mirror begins with the process.
	MirrorTags int    `flag:"mirror-tags" help:"of how many tags to keep in memory what etcd showed of them, for march recover: about 200 bytes a tag of three rooms; 0 keeps nothing"`
	Mirror     string `flag:"mirror" help:"a file that keeps that over restarts, written each second"`
	// Without an address, recover does not find the mirror.
	Advertise string `flag:"advertise" check:"address" help:"the gRPC address at which march recover asks for it (default --grpc, with this host's name for 0.0.0.0)"`
	// Rand returns numbers in [0, 1) for jitter. Default math/rand's.
	Rand func() float64
	// Login has the settings of logins to the page. Without Access there are no logins.
	Login web.LoginConfig
	// Credentials are those with which this console calls instances.
	Credentials api.Credentials
	// Insecure is why it is not secure, for the operators; empty if it is.
	Insecure string
	// Dial returns a connection to an instance. Default api.Dial.
	Dial func(address string, options ...grpc.DialOption) (*grpc.ClientConn, error)
	// Diagnose answers operators' questions about the process; nil if none are answered.
	Diagnose *problem.Host
}

// DefaultConfig returns the defaults. Ledger and GRPC must be set.
func DefaultConfig() Config {
	return Config{
		Settings: serve.Settings{Drain: 5 * time.Second, Limits: serve.DefaultLimits()}, Admin: admin.DefaultConfig(),
		ForgetAfter: 24 * time.Hour, Rand: rand.Float64, MaxLivePages: 200, MaxCallerLivePages: 50, Dial: api.Dial,
	}
}

// Server is a console: parts with a state of their own, which answer the calls of one service. Calls that only pass on
// what the ledger answers are its own.
type Server struct {
	unimplemented
	*view
	*index
	*tags
	*planner
	*driver
	*migrations
	*problems
	*upkeep
	*mirroring

	health  *health.Server
	routes  func(*http.ServeMux)
	login   *web.Login // nil for none
	logouts logouts
}

// unimplemented lies one level below the parts of a Server, so that their calls hide its calls.
type unimplemented struct {
	marchv1.UnimplementedConsoleServiceServer
}

// maxRequest bounds a request, in bytes.
const maxRequest = 1 << 20

// Validate checks the settings, but not the ledger and the listeners. Its error is Invalid.
func (cfg Config) Validate() error {
	if cfg.MirrorTags < 0 || cfg.MirrorTags > mirror.MostTags || cfg.MirrorTags == 0 && cfg.Mirror != "" {
		return allocator.Errorf(allocator.Invalid, "mirror-tags: %d; allowed: 0 to %d, and not 0 with mirror",
			cfg.MirrorTags, mirror.MostTags)
	}
	if cfg.Advertise != "" {
		if err := api.CheckAddress("advertise", cfg.Advertise); err != nil {
			return err
		}
	}
	if err := setting.Check(&cfg); err != nil {
		return err
	}
	for _, address := range cfg.Rooms {
		if host, _, err := net.SplitHostPort(address); err != nil || host == "" {
			return allocator.Errorf(allocator.Invalid, "rooms: %q; allowed: addresses HOST:PORT", address)
		}
	}
	return errors.Join(serve.CheckHosts(cfg.AllowedHosts), cfg.Login.Validate(), web.CheckDashboard(cfg.Dashboard))
}

// Needs returns why a console cannot start, where err is the answer of etcd: without etcd
// it can if it has Rooms.
func (cfg Config) Needs(err error) error {
	if len(cfg.Rooms) > 0 && allocator.KindOf(err) == allocator.Unavailable {
		return nil
	}
	return err
}

// New checks cfg. Its error is Invalid.
func New(cfg Config) (*Server, error) {
	if cfg.Ledger == nil || cfg.GRPC == nil {
		return nil, allocator.Errorf(allocator.Invalid, "console: no ledger or no gRPC listener given")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	host, err := os.Hostname()
	if err != nil {
		host = "console"
	}
	v := newView(cfg, host)
	x, d := &index{view: v, wantsTags: newDemand()}, &driver{view: v, woken: make(chan struct{}, 1)}
	p := &planner{view: v, driver: d}
	s := &Server{
		view: v, index: x, tags: &tags{v, texts.NewCache(nil)}, planner: p, driver: d,
		migrations: &migrations{v, d, p}, problems: &problems{view: v, index: x}, upkeep: &upkeep{view: v},
		health: health.NewServer(),
	}
	s.register(cfg.Metrics)
	s.ledger.HaltAs("console " + s.name)
	if s.mirroring, err = newMirroring(v); err != nil {
		return nil, err
	}
	if cfg.HTTP != nil {
		if err := s.makeRoutes(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// makeRoutes makes the routes of HTTP. Its error comes from the program's embedded
// files.
func (s *Server) makeRoutes() error {
	conn := s.cfg.Access.Conn(func(r grpc.ServiceRegistrar) { marchv1.RegisterConsoleServiceServer(r, s) })
	calls, err := serve.ConsoleRoutes(conn, maxRequest, s.log)
	if err != nil {
		return err
	}
	pages, err := web.New(web.Config{
		Console: marchv1.NewConsoleServiceClient(conn), Stopping: s.stopping, Dashboard: s.cfg.Dashboard,
		Logger:      s.log.Named("web"),
		Pages:       s.cfg.Metrics.Limit(web.MaxPages, int64(s.cfg.MaxLivePages)),
		CallerPages: s.cfg.Metrics.Limit(web.MaxCallerPages, int64(s.cfg.MaxCallerLivePages)),
	})
	if err != nil {
		return err
	}
	s.routes = func(mux *http.ServeMux) {
		calls(mux)
		if s.login == nil {
			pages.Routes(mux)
			return
		}
		s.login.Routes(mux)
		shown := http.NewServeMux()
		pages.Routes(shown)
		mux.Handle("/", s.login.Pages(shown))
	}
	if s.cfg.Access == nil {
		return nil
	}
	s.logouts.admin, s.logouts.gate, s.logouts.log = s.admin, s.cfg.Access, s.log.Named("login")
	s.cfg.Login.LoggedOut = s.logouts.add
	s.login, err = web.NewLogin(s.cfg.Login, s.cfg.Access, s.log.Named("login"))
	return err
}

// Run serves until ctx ends, finishes the calls under way, and returns nil; or
// the error of a listener that failed.
func (s *Server) Run(ctx context.Context) error {
	defer s.rooms.close()
	s.reportHealth(healthpb.HealthCheckResponse_NOT_SERVING) // until etcd has answered
	s.log.Info("ready", "grpc", s.cfg.GRPC.Addr().String())
	if s.mirroring.file != nil {
		defer func() { _ = s.mirroring.file.Close() }()
	}
	if err := s.checkMirror(ctx); err != nil {
		return err
	}
	background, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { s.drive(background) })
	for _, do := range []func(context.Context) time.Duration{s.watchHealth, s.watchSilence, s.watchProblems, s.tend} {
		work.Go(func() { every(background, do) })
	}
	work.Go(func() {
		_, _ = s.admin.FirstNeeds(background, maxHead) // from now on, a read of the first tags visits no others
		store.Sleep(background, endsAfter)
		every(background, s.readEnds)
	})
	work.Go(func() { s.wantsAnswers.run(background, s.readAnswers) })
	work.Go(func() { s.wantsTags.run(background, s.readTags) })
	if s.mirror != nil {
		work.Go(func() { s.mirror.Run(background) })
		work.Go(func() { s.announce(background) })
	}
	work.Go(func() { s.ledger.WatchMembers(background) })
	work.Go(func() { s.cfg.Access.Run(background, operator.Refused(s.admin, s.cfg.Metrics.AuditFailed)) })
	work.Go(func() { s.logouts.run(background) })
	defer s.counts.work.Wait()
	defer s.counts.stop()
	defer work.Wait()
	defer stop()
	err := serve.Run(ctx, serve.Config{
		Settings: s.cfg.Settings, Health: s.health, MaxRequest: maxRequest,
		Register: func(r grpc.ServiceRegistrar) {
			marchv1.RegisterConsoleServiceServer(r, s)
			s.cfg.Diagnose.Register(r)
		},
		Ready:    s.checks,
		Problems: s.problemLines,
		Sessions: s.login.Session,
		Windows:  true,
		Routes:   s.routes,
		Draining: func() {
			close(s.stopping)
			s.counts.stop()
		},
	})
	s.log.Info("stopped")
	return err
}

// checks are the checks of readiness. A console is useful while leasing is halted,
// so a halt is only a note.
func (s *Server) checks(ctx context.Context) []serve.Check {
	etcd, leasing := serve.Check{Name: "etcd", Err: s.ready(ctx)}, serve.Check{Name: "leasing"}
	if etcd.Err == nil {
		if _, err := s.ledger.Refresh(ctx); err != nil {
			leasing.Note = err.Error()
		} else if err := s.ledger.Leasable(); err != nil {
			leasing.Note = err.Error()
		}
	}
	return []serve.Check{etcd, leasing}
}

// ready checks that etcd answers: without it a console can do nothing.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.ledger.Patience())
	defer cancel()
	_, err := s.ledger.Ping(ctx)
	return err
}

// healthEvery is how late gRPC's health service may be.
const healthEvery = time.Second

// watchHealth keeps gRPC's health service up to date, and notes since when etcd has not answered. It returns the pause
// before the next time.
func (s *Server) watchHealth(ctx context.Context) (pause time.Duration) {
	status, err := healthpb.HealthCheckResponse_SERVING, s.ready(ctx)
	if err != nil {
		status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	if was := s.last.Load().away; ctx.Err() == nil && (err == nil) != was.IsZero() {
		s.publish(func(next *snapshot) { next.etcdAway(err != nil, time.Now()) })
	}
	s.reportHealth(status)
	return healthEvery
}

func (s *Server) reportHealth(status healthpb.HealthCheckResponse_ServingStatus) {
	for _, service := range []string{"", marchv1.ConsoleService_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, status)
	}
}

// maxPage bounds the items of a page, in bytes: clients accept answers of 4 MiB,
// and a thousand layouts of many rooms are larger.
const maxPage = 1 << 20

// passedOver returns unreadable keys as messages.
func passedOver(bad []record.KeyError) []*marchv1.Unreadable {
	var list []*marchv1.Unreadable
	for _, b := range bad {
		list = append(list, &marchv1.Unreadable{Key: b.Key, Why: b.Err.Error()})
	}
	return list
}

// page returns the messages of a page of at most size items, and the last item on it, nil if no more follow: items has
// one more than a page where there are more.
func page[T any, M proto.Message](items []T, size int, toProto func(T) M) (list []M, last *T) {
	for _, item := range items[:min(len(items), size)] {
		list = append(list, toProto(item))
	}
	if list = list[:fitting(list)]; len(list) < len(items) {
		last = &items[len(list)-1]
	}
	return list, last
}

// fitting returns how many of items, from the first, fit into a page of maxPage
// bytes; at least one.
func fitting[M proto.Message](items []M) int {
	size := 0
	for n, item := range items {
		if size += proto.Size(item); size > maxPage && n > 0 {
			return n
		}
	}
	return len(items)
}
