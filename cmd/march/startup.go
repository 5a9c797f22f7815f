package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/serve"
)

// A room and a console start in the same way: the program opens their listeners, and waits where what they need is
// not there yet.

// runner is a server that runs until its context ends.
type runner interface {
	Run(ctx context.Context) error
}

// starting is a room or a console that is to start.
type starting struct {
	What       string // room or console
	GRPC, HTTP string // where to listen; HTTP may be empty
	// AdminGRPC and AdminHTTP are where to listen for operators; empty for GRPC and HTTP.
	AdminGRPC, AdminHTTP string
	// Wait says that the server waits for what it needs. Otherwise it ends.
	Wait bool
	// Needs asks etcd for what the server cannot start without, and returns why it is missing. Whatever etcd lacks is
	// mended there, so waiting always helps.
	Needs   func(context.Context) error
	Hosts   []string     // by which HTTP may be called
	Access  *access.Gate // checks callers; nil for none
	TLS     *tlsfiles.Files
	Metrics *observe.Metrics
	Log     hclog.Logger
}

// listeners are a server's; nil for an address that it does not have.
type listeners struct{ GRPC, HTTP, AdminGRPC, AdminHTTP net.Listener }

// close closes the listeners.
func (l *listeners) close() {
	for _, l := range []net.Listener{l.GRPC, l.HTTP, l.AdminGRPC, l.AdminHTTP} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// Run opens the listeners and runs the server that build makes with them.
func (s *starting) Run(ctx context.Context, build func(listeners) (runner, error)) error {
	signal.Ignore(syscall.SIGPIPE) // a server goes on when the reader of its log has gone
	var l listeners
	var err error
	end := func() {}
	up := sync.OnceFunc(func() { end = supervise(ctx, s.Log) })
	defer func() { end() }()
	l.HTTP, err = s.await(ctx, up)
	// Nothing listens for gRPC before, so callers are refused at once and ask another server.
	for _, open := range []struct {
		to             *net.Listener
		what, at, flag string
	}{
		{&l.GRPC, " gRPC", s.GRPC, "grpc"}, {&l.HTTP, " HTTP", s.HTTP, "http"},
		{&l.AdminGRPC, " admin gRPC", s.AdminGRPC, "admin-grpc"},
		{&l.AdminHTTP, " admin HTTP", s.AdminHTTP, "admin-http"},
	} {
		if err == nil && *open.to == nil && open.at != "" {
			*open.to, err = listen(s.What+open.what, open.at, open.flag)
		}
	}
	if err != nil {
		l.close()
		return err
	}
	up()
	running, err := build(l)
	if err != nil {
		l.close()
		return err
	}
	return running.Run(ctx)
}

// Addresses are where the server is to listen.
func (s *starting) Addresses() []listenAddress {
	return []listenAddress{
		{Flag: "grpc", At: s.GRPC}, {Flag: "http", At: s.HTTP},
		{Flag: "admin-grpc", At: s.AdminGRPC}, {Flag: "admin-http", At: s.AdminHTTP},
	}
}

// askEvery is how often a server that waits asks again, and sayEvery how often it says in
// the log that it still waits.
const (
	askEvery = time.Second
	sayEvery = time.Minute
)

// await returns once there is what the server needs. A server that has to wait for it
// answers health checks over HTTP meanwhile, and returns that listener. It calls up when it waits.
func (s *starting) await(ctx context.Context, up func()) (net.Listener, error) {
	missing := s.Needs(ctx)
	if missing == nil || !s.Wait || ctx.Err() != nil {
		return nil, missing
	}
	var h net.Listener
	if s.HTTP != "" {
		var err error
		if h, err = listen(s.What+" HTTP", s.HTTP, "http"); err != nil {
			return nil, err
		}
	}
	up()
	metrics := s.Metrics
	if s.AdminGRPC != "" {
		metrics = nil // they are for operators
	}
	w := waiting{starting: s, since: time.Now()}
	w.missing.Store(&missing)
	return h, serve.Wait(ctx, serve.Config{
		HTTP: h, AllowedHosts: s.Hosts, Access: s.Access, TLS: s.TLS, Metrics: metrics, Logger: s.Log, Ready: w.checks,
	}, w.run)
}

// waiting is a server that waits for what it needs.
type waiting struct {
	*starting
	since   time.Time
	missing atomic.Pointer[error] // why it still waits
}

// run returns once nothing is missing.
func (w *waiting) run(ctx context.Context) error {
	timer := time.NewTicker(askEvery)
	defer timer.Stop()
	var said time.Time
	var before string
	for {
		err := *w.missing.Load()
		if on := w.on(); on != before || time.Since(said) >= sayEvery {
			w.Log.Warn("waiting: this server goes on by itself once it is there", "for", on, "since",
				w.sinceText(), "error", err)
			said, before = time.Now(), on
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		err = w.Needs(ctx)
		if err == nil {
			w.Log.Info("waited", "for", before, "since", w.sinceText())
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

// listen opens a listener; flag is what changes its address.
func listen(what, address, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, allocator.Errorf(allocator.Refused,
			"%s: %s is in use by another program; choose another with --%s", what, address, flag)
	case err != nil:
		return nil, allocator.Errorf(allocator.Invalid, "%s (--%s): %w", what, flag, err)
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
		return "", allocator.Errorf(allocator.Invalid,
			"journal: there is no directory for it by default: %w; give --journal DIR, or --journal off", err)
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
