package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/throttle"
	"github.com/march-id/march/internal/words"
)

// A room and a console start in the same way: the program opens their listeners, and waits where what they need is
// not there yet.

// runner is a server that runs until its context ends.
type runner interface {
	Run(ctx context.Context) error
}

// starting is a room or a console that is to start.
type starting struct {
	*serve.Settings
	What string // room or console
	all  []*listening
	// Wait says that the server waits for what it needs. Otherwise it ends.
	Wait bool
	// Needs asks etcd for what the server cannot start without, and returns why it is missing. Whatever etcd lacks is
	// mended there, so waiting always helps.
	Needs  func(context.Context) error
	within *within // nil in a process of its own
}

// within is march dev, in whose process a server runs. It has the listeners, and receives what has begun.
type within struct {
	listen func(what, address, flag string) (net.Listener, error)
	begun  chan<- runner
}

// listening is an address of a server.
type listening struct {
	flag, what string
	at         string        // empty for nowhere
	to         *net.Listener // where its listener goes
	tls        *bool         // false for none, although the server has TLS; nil for true
}

// at is the setting of an address. gRPC must have one.
func (s *starting) at(l listening, standard, help string) option {
	s.all = append(s.all, &l)
	if l.flag == "grpc" {
		return option{l.flag, listenAt(&l.at, standard), help}
	}
	return option{l.flag, listenOrNot(&l.at, standard), help}
}

// of returns the address of a flag.
func (s *starting) of(flag string) *listening {
	for _, l := range s.all {
		if l.flag == flag {
			return l
		}
	}
	return &listening{}
}

// open opens the listener of an address, where that is not done already.
func (s *starting) open(l *listening) (err error) {
	if l.at != "" && *l.to == nil {
		*l.to, err = s.listen(s.What+" "+l.what, l.at, l.flag)
	}
	return err
}

// Run opens the listeners and runs the server that build makes with them.
func (s *starting) Run(ctx context.Context, build func() (runner, error)) error {
	signal.Ignore(syscall.SIGPIPE) // a server goes on when the reader of its log has gone
	end := func() {}
	up := sync.OnceFunc(func() {
		if s.within == nil {
			end = supervise(ctx, s.Logger)
		}
	})
	defer func() { end() }()
	err := s.await(ctx, up)
	// Nothing listens for gRPC before, so callers are refused at once and ask another server.
	for _, l := range s.all {
		if err == nil {
			err = s.open(l)
		}
	}
	var running runner
	if err == nil {
		up()
		running, err = build()
	}
	if err != nil {
		for _, l := range s.all {
			if *l.to != nil {
				_ = (*l.to).Close()
			}
		}
		return err
	}
	if s.within != nil {
		s.within.begun <- running
	}
	return running.Run(ctx)
}

// askEvery is how often a server that waits asks again, and sayEvery how often it says in
// the log that it still waits.
const (
	askEvery = time.Second
	sayEvery = time.Minute
)

// await returns once there is what the server needs. A server that has to wait for it
// answers health checks over HTTP meanwhile. It calls up when it waits.
func (s *starting) await(ctx context.Context, up func()) error {
	missing := s.Needs(ctx)
	if missing == nil || !s.Wait || ctx.Err() != nil {
		return missing
	}
	if err := s.open(s.of("http")); err != nil {
		return err
	}
	up()
	w := waiting{starting: s, since: time.Now()}
	w.missing.Store(&missing)
	cfg := serve.Config{Settings: *s.Settings, Ready: w.checks}
	if s.of("admin-grpc").at != "" {
		cfg.Metrics = nil // they are for operators
	}
	return serve.Wait(ctx, cfg, w.run)
}

// waiting is a server that waits for what it needs.
type waiting struct {
	*starting
	since   time.Time
	missing atomic.Pointer[error] // why it still waits
}

// run returns once nothing is missing.
func (w *waiting) run(ctx context.Context) error {
	var said time.Time
	var before string
	for {
		err := *w.missing.Load()
		if on := w.on(); on != before || time.Since(said) >= sayEvery {
			w.Logger.Warn("waiting: this server goes on by itself once it is there", "for", on, "since",
				w.sinceText(), "error", err)
			said, before = time.Now(), on
		}
		if !store.Sleep(ctx, askEvery) {
			return ctx.Err()
		}
		err = w.Needs(ctx)
		if err == nil {
			w.Logger.Info("waited", "for", before, "since", w.sinceText())
			return nil
		}
		w.missing.Store(&err)
	}
}

// on names what the server waits for.
func (w *waiting) on() string {
	missing := *w.missing.Load()
	switch kind := allocator.KindOf(missing); {
	case errors.Is(missing, ledger.ErrNoCluster):
		return "layout"
	case errors.Is(missing, store.ErrNoSpace):
		return "space in etcd"
	case kind == allocator.Unauthenticated:
		return "a user that etcd knows"
	case kind == allocator.Denied:
		return "rights in etcd"
	case kind == allocator.Refused:
		return "this cluster's etcd"
	}
	return "etcd"
}

func (w *waiting) sinceText() string { return w.since.UTC().Format(time.RFC3339) }

// checks is what readiness rests on.
func (w *waiting) checks(context.Context) []serve.Check {
	return []serve.Check{{Name: w.on(), Err: fmt.Errorf("waiting since %s: %w", w.sinceText(), *w.missing.Load())}}
}

// listen opens a listener, where the process does not have it already.
func (s *starting) listen(what, address, flag string) (net.Listener, error) {
	if s.within != nil {
		return s.within.listen(what, address, flag)
	}
	return listen(what, address, flag)
}

// listen opens a listener; flag is what changes its address.
func listen(what, address, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, refusedf("%s: %s is in use by another program; choose another with --%s", what, address, flag)
	case err != nil:
		return nil, invalidf("%s (--%s): %w", what, flag, err)
	}
	return l, nil
}

// journalDir returns the directory of journals, empty for none.
func journalDir(set string) (string, error) {
	switch set {
	case "off":
		return "", nil
	case "":
	default:
		return set, nil
	}
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); dir != "" { // systemd's
		return dir, nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "march"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", invalidf("journal: there is no directory for it by default: %w; give --journal DIR, or "+
			"--journal off", err)
	}
	return filepath.Join(home, ".local", "state", "march"), nil
}

// advertised returns the address at which other processes reach a listener: the one
// that was set, or its own, with the host's name if it listens on all addresses.
func advertised(set string, l net.Listener, hostname string) string {
	if set != "" || l == nil {
		return set
	}
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return set
	}
	if tcp.IP.IsUnspecified() && hostname != "" {
		return net.JoinHostPort(hostname, strconv.Itoa(tcp.Port))
	}
	return tcp.String()
}

// clusterFlags say which cluster a server belongs to and how to reach its etcd.
type clusterFlags struct {
	Endpoints    []string `flag:"etcd" help:"etcd's client endpoints, HOST:PORT or URLs, separated by commas"`
	Cluster      string   `flag:"cluster" help:"the cluster's name: its keys are under /march/NAME/"`
	UUID         string   `flag:"cluster-uuid" help:"refuse any other cluster than this one ('march layout show' prints it)"`
	User         string   `flag:"etcd-user" help:"etcd user"`
	PasswordFile string   `flag:"etcd-password-file" help:"file with the etcd user's password"`
	CA           string   `flag:"etcd-ca" help:"file with the CA certificates (PEM) that sign etcd's certificate; turns TLS on. It is read again when it changes, as are the next two"`
	Cert         string   `flag:"etcd-cert" help:"file with this client's certificate (PEM)"`
	Key          string   `flag:"etcd-key" help:"file with this client's key (PEM)"`
	AuditLog     string   `flag:"audit-log" help:"file to which this process adds each entry of the audit that it writes, as a line of JSON with the entry's hash, for 'march audit verify'; or stdout"`
}

func defaultCluster() clusterFlags {
	return clusterFlags{Endpoints: []string{"127.0.0.1:2379"}, Cluster: "default"}
}

// Open returns the cluster's ledger once etcd has answered.
func (f *clusterFlags) Open(ctx context.Context, log hclog.Logger) (*ledger.Ledger, error) {
	l, err := f.Ledger(&serve.Settings{}, log)
	if err != nil {
		return nil, err
	}
	if err := f.Ping(ctx, l); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Ping checks that etcd answers.
func (f *clusterFlags) Ping(ctx context.Context, l *ledger.Ledger) error {
	_, err := f.ask(ctx, l)
	return err
}

// Ledger returns the cluster's ledger, which uses the metrics and traces of a server; nothing has been asked of etcd.
func (f *clusterFlags) Ledger(of *serve.Settings, log hclog.Logger) (*ledger.Ledger, error) {
	cfg := store.EtcdConfig{Endpoints: f.Endpoints, Username: f.User, Logger: log, Tracer: of.Tracer}
	if f.PasswordFile != "" {
		cfg.ReadPassword = passwordFile(f.PasswordFile)
		if _, err := cfg.ReadPassword(); err != nil { // not only when it is first asked for
			return nil, err
		}
	}
	var err error
	if cfg.TLS, err = f.tls(log); err != nil {
		return nil, err
	}
	own := ledger.DefaultConfig()
	own.Cluster, own.UUID, own.Etcdctl, own.EtcdUser = f.Cluster, f.UUID, f.etcdctl(), f.User
	own.Logger, own.Tracer = log.Named("ledger"), of.Tracer
	if of.Metrics != nil {
		own.Observe = of.Metrics.Transaction
	}
	if own.Audited, err = openAuditLog(f.AuditLog, f.Cluster, of.Metrics, log); err != nil {
		return nil, err
	}
	etcd, err := store.NewEtcd(cfg)
	if err != nil {
		return nil, err
	}
	l, err := ledger.New(etcd, own)
	if err != nil {
		return nil, errors.Join(err, etcd.Close())
	}
	if of.Metrics != nil {
		of.Metrics.Ledger(l)
	}
	return l, nil
}

// etcdctl returns the command that asks the same etcd. It has no user: how many members answer is told without one, and
// what an operator mends takes etcd's root.
func (f *clusterFlags) etcdctl() string {
	command := "etcdctl --endpoints=" + strings.Join(shownEndpoints(f.Endpoints), ",")
	for _, file := range [][2]string{{"cacert", f.CA}, {"cert", f.Cert}, {"key", f.Key}} {
		if file[1] != "" {
			command += fmt.Sprintf(" --%s=%s", file[0], file[1])
		}
	}
	return command
}

// shownEndpoints returns endpoints without users and passwords.
func shownEndpoints(endpoints []string) []string {
	list := make([]string, len(endpoints))
	for k, endpoint := range endpoints {
		list[k] = store.WithoutUser(endpoint)
	}
	return list
}

// roomNeeds checks that an instance can register: that etcd has the cluster, is not full, and lets the instance write.
// It asks all that at once, as etcd may be far away.
func (f *clusterFlags) roomNeeds(ctx context.Context, l *ledger.Ledger, r allocator.Room, i allocator.Instance) error {
	ctx, cancel := context.WithTimeout(ctx, etcdAnswersWithin)
	defer cancel()
	var noCluster, noRights error
	var asked sync.WaitGroup
	asked.Go(func() { noCluster = l.Attach(ctx) })
	asked.Go(func() { noRights = l.MayRegister(ctx, r, i) })
	status, err := f.ask(ctx, l)
	if err != nil {
		cancel()
	}
	asked.Wait()
	switch {
	case err != nil:
		return err
	case noCluster != nil:
		return noCluster
	case status.NoSpace:
		return allocator.Errorf(allocator.Unavailable, "etcd: %w; ask it with `%s alarm list`", store.ErrNoSpace,
			l.Etcdctl())
	}
	return noRights
}

// etcdAnswersWithin bounds how long a server that starts waits for one answer: a connection and a round trip, where
// each of five ways may take 2 s.
const etcdAnswersWithin = 12 * time.Second

// ask asks etcd about itself. The error names the endpoints.
func (f *clusterFlags) ask(ctx context.Context, l *ledger.Ledger) (store.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdAnswersWithin)
	defer cancel()
	status, err := l.Ping(ctx)
	if err != nil {
		err = allocator.Errorf(allocator.KindOf(err), "etcd (--etcd %s): %w",
			strings.Join(shownEndpoints(f.Endpoints), ","), err)
	}
	return status, err
}

// tls returns the settings of connections to etcd, which follow their files; nil for plain
// text. Its error is Invalid.
func (f *clusterFlags) tls(log hclog.Logger) (func(host string) *tls.Config, error) {
	if f.CA == "" && f.Cert == "" && f.Key == "" {
		return nil, nil
	}
	// Many an etcd is set to TLS 1.2.
	files, err := tlsfiles.Open(tlsfiles.Config{Flags: "etcd", CA: f.CA, Cert: f.Cert,
		Key: f.Key, TLS12: true, Logger: log})
	if err != nil {
		return nil, err
	}
	return files.Client, nil
}

type watchFlags struct {
	Traces string  `flag:"traces" check:"receiver" help:"where to send traces, as OTLP over gRPC: http://HOST:PORT, or https for TLS; empty for none"`
	Ratio  float64 `flag:"traces-ratio" least:"0" most:"1" help:"the share of calls to trace, 0 to 1; a caller's own decision to trace wins"`
}

// Start gives a server metrics and traces. The function that it returns sends the last traces.
func (f *watchFlags) Start(ctx context.Context, of *serve.Settings, service, instance string, labels prometheus.Labels,
	log hclog.Logger) (stop func(), err error) {
	if err := setting.Check(f); err != nil {
		return nil, err
	}
	of.Metrics = serve.NewMetrics(build(), labels)
	if f.Traces == "" {
		return func() {}, nil
	}
	// OpenTelemetry has one global handler for errors in the background.
	var line throttle.Log
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		line.Log(time.Now(), log.Warn, "traces not sent: check --traces and its collector", "error", err)
	}))
	tracer, err := serve.NewTraces(ctx, serve.TracesConfig{URL: f.Traces, Ratio: f.Ratio, Service: service,
		Instance: instance, Build: build()})
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	of.Tracer = tracer
	return func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if err := tracer.Shutdown(last); err != nil {
			log.Warn("the last traces were not sent", "error", err)
		}
	}, nil
}

// receiver checks the URL of an OTLP receiver.
func receiver(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil { // which would contain a password
		return "", invalidf("not a URL; allowed: http://HOST:PORT or https://HOST:PORT")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" ||
		u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", invalidf("%q; allowed: http://HOST:PORT or https://HOST:PORT", words.WithoutSecrets(text))
	}
	return text, nil
}

// supervise tells systemd that a server is up, where it is of a unit of Type=notify, and that it still lives, twice in
// each WatchdogSec of the unit. The function that it returns says that the server ends. Elsewhere nothing happens.
func supervise(ctx context.Context, log hclog.Logger) (end func()) {
	say := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("systemd cannot be told of this server's state", "state", state, "error", err)
		}
	}
	say(daemon.SdNotifyReady)
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the unit's watchdog is not in force", "error", err)
	}
	ctx, stop := context.WithCancel(ctx)
	var pinging sync.WaitGroup
	if every > 0 {
		pinging.Go(func() {
			for again := time.NewTicker(every / 2); ; {
				select {
				case <-ctx.Done():
					again.Stop()
					return
				case <-again.C:
					say(daemon.SdNotifyWatchdog)
				}
			}
		})
	}
	ending := sync.OnceFunc(func() { say(daemon.SdNotifyStopping) })
	context.AfterFunc(ctx, ending)
	return func() {
		ending() // and waits for it, where the other one has begun
		stop()
		pinging.Wait()
	}
}
