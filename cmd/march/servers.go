package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/worker"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/march/internal/origin"
	"github.com/march-id/march/cmd/march/internal/rights"
	"github.com/march-id/march/cmd/march/internal/secure"
	"github.com/march-id/march/cmd/march/internal/startup"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/diagnose"
	"github.com/march-id/march/room"
)

func newRoom(c *common) *cobra.Command {
	var (
		cluster           startup.ClusterFlags
		watch             startup.WatchFlags
		doors             startup.DoorFlags
		policy            rights.Flags
		safe              secure.Server
		name              string
		start             = startup.Server{What: "room"}
		journal, pin      string
		callers           string
		warm, keys        []string
		cfg               = room.DefaultConfig()
		hostname, hostErr = os.Hostname()
	)
	if hostErr != nil { // then --name must be given: the empty name is refused
		hostname = ""
	}
	cmd := &cobra.Command{
		Use:   "room NAME",
		Short: "Run an instance of a room",
		Long: `Run an instance of a room: it issues the room's IDs over gRPC and HTTP. A room
may have as many instances as you like, each with a name of its own (--name) that
stays the same over restarts. SIGTERM stops it: calls under way are answered first.`,
		Example: `  march room eu-1 --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379 --grpc 0.0.0.0:7010 --advertise "$(hostname -f):7010"`,
		Args:    exactly("a room's name"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			log, err := c.logger(hclog.Info)
			if err != nil {
				return err
			}
			cfg.Build, cfg.Logger = build(), log.Named("room")
			if cfg.Room, err = allocator.ParseRoom(args[0]); err != nil {
				return usageError{err}
			}
			// The default is the host's name, which may have capitals.
			if cfg.Name, err = allocator.ParseInstance(strings.ToLower(name)); err != nil {
				return usageError{allocator.Errorf(allocator.Invalid, "name: %w", err)}
			}
			if cfg.Worker, err = worker.ParsePin(pin, hostname); err != nil {
				return usageError{err}
			}
			if cfg.ClientWorkers, err = worker.ParseCallers(callers); err != nil {
				return usageError{err}
			}
			for _, tag := range warm {
				parsed, err := allocator.ParseTag(tag)
				if err != nil {
					return usageError{allocator.Errorf(allocator.Invalid, "warm-tags: %w", err)}
				}
				cfg.WarmTags = append(cfg.WarmTags, parsed)
			}
			if cfg.OpaqueKeys, err = readKeys(keys); err != nil {
				return err
			}
			if cfg.Journal, err = startup.JournalDir(journal); err != nil {
				return usageError{err}
			}
			if cfg.Journal == "" && cfg.RequireJournal {
				return usageError{allocator.Errorf(allocator.Invalid,
					"require-journal: there is none with --journal off; allowed: --journal DIR")}
			}
			if err := start.CheckAdmin(cfg.Advertise, cfg.AdvertiseAdmin); err != nil {
				return usageError{err}
			}
			w, stop, err := watch.Start(cmd.Context(), build(), "march-room", string(cfg.Room)+"/"+string(cfg.Name),
				prometheus.Labels{"room": string(cfg.Room)}, log)
			if err != nil {
				return err
			}
			defer stop()
			cfg.Metrics, cfg.Tracer = w.Metrics, w.Tracer
			defer c.rereadLevel(cmd, log, hclog.Info)()
			// It connects later, so wrong settings are found although etcd is away.
			if cfg.Ledger, err = cluster.Ledger(w, log); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cfg.Ledger.Close()) }()
			cfg.Admin = w.Admin(cluster.MaxTags)
			if cfg.Access, err = policy.Gate(string(cfg.Room), w.Metrics, log); err != nil {
				return usageError{err}
			}
			if cfg.TLS, err = safe.Open(log); err != nil {
				return usageError{err}
			}
			if cfg.Insecure, err = safe.Check(cfg.TLS, cfg.Access != nil, cfg.Logger,
				append(start.Addresses(), doors.At(&cfg.Doors)...)...); err != nil {
				return usageError{err}
			}
			defer func() { cfg.Doors.Close() }() // if the server did not take them over
			if err := doors.Settings(&cfg.Doors, cfg.Access != nil, log); err != nil {
				return usageError{err}
			}
			start.Needs = func(ctx context.Context) error {
				if err := cluster.Ping(ctx, cfg.Ledger); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, startup.AskEtcd)
				defer cancel()
				if err := cfg.Ledger.Attach(ctx); err != nil {
					return err
				}
				return startup.TakesWrites(ctx, cfg.Ledger)
			}
			if err := cfg.Validate(); err != nil { // not only once etcd is there
				return err
			}
			if c.checkOnly { // march config validate: all that can be wrong without etcd was checked
				return nil
			}
			start.Hosts, start.Access, start.TLS, start.Metrics, start.Log = cfg.AllowedHosts, cfg.Access,
				cfg.TLS, w.Metrics, cfg.Logger
			return stopped(cmd.Context(), start.Run(cmd.Context(), func(l startup.Listeners) (startup.Runner, error) {
				cfg.Diagnose = diagnosing(cmd, cfg.Ledger, cfg.Journal, w)
				cfg.GRPC, cfg.HTTP, cfg.AdminGRPC, cfg.AdminHTTP = l.GRPC, l.HTTP, l.AdminGRPC, l.AdminHTTP
				// Only now, because port 0 stands for any free one.
				cfg.Advertise = startup.Advertise(cfg.Advertise, l.GRPC, hostname)
				cfg.AdvertiseAdmin = startup.Advertise(cfg.AdvertiseAdmin, l.AdminGRPC, hostname)
				if err := doors.Open(&cfg.Doors); err != nil {
					return nil, err
				}
				return room.New(cfg)
			}))
		},
	}
	cluster.Add(cmd)
	watch.Add(cmd)
	flags := cmd.PersistentFlags()
	flags.StringVar(&name, "name", hostname, "this instance's name: no other instance has it, "+
		"and it stays the same over restarts")
	flags.StringVar(&journal, "journal", "",
		`directory for this instance's journal, or "off" (default $STATE_DIRECTORY, $XDG_STATE_HOME/march or ~/.local/state/march)`)
	flags.BoolVar(&cfg.RequireJournal, "require-journal", false, "if this instance starts without its predecessor's "+
		"journal, lease nothing until 'march instance confirm'; 'march cluster update --journal required' does the "+
		"same for all instances")
	flags.StringVar(&start.GRPC, "grpc", defaultRoom, "where to serve gRPC, HOST:PORT")
	flags.StringVar(&start.HTTP, "http", "127.0.0.1:7020",
		"where to serve HTTP/JSON, /livez, /readyz and /metrics, HOST:PORT; empty for nowhere")
	start.AddAdmin(flags, &cfg.AdvertiseAdmin)
	doors.Add(flags)
	flags.StringVar(&cfg.Advertise, "advertise", "", "the gRPC address at which other processes reach this instance "+
		"(default --grpc, with this host's name for 0.0.0.0)")
	flags.BoolVar(&cfg.CreateTags, "create-tags", false, "create a tag when it is first asked for; for development")
	flags.StringSliceVar(&warm, "warm-tags", nil, "tags whose IDs to lease before this instance reports "+
		"that it is ready")
	flags.StringSliceVar(&keys, "opaque-key", nil, opaqueKeyUsage)
	flags.IntVar(&cfg.MetricsTags, "metrics-tags", cfg.MetricsTags,
		"how many tags have metrics of their own, the busiest first; 0 for none")
	flags.DurationVar(&cfg.ReadyReserve, "ready-reserve", cfg.ReadyReserve,
		"not ready if nothing can be leased and no tag in use has IDs for longer than this; "+
			"0 is until they have run out")
	flags.DurationVar(&cfg.IdleAfter, "idle-after", cfg.IdleAfter,
		"how long a tag may be unused before its IDs are dropped from memory")
	flags.DurationVar(&cfg.Hold, "hold", cfg.Hold, "how long clients may use IDs that they lease, "+
		"and rooms the IDs of strict tags after etcd last confirmed the layout")
	flags.BoolVar(&cfg.StrictRetract, "strict-retract", false,
		"make all tags strict: issue nothing rather than an ID of a residue that this room may have given up")
	flags.BoolVar(&start.Wait, "wait-for-etcd", true,
		"start and wait, not ready, if etcd does not answer or has no layout yet; false: end with exit code 5 or 1")
	hostsFlag(cmd, &cfg.AllowedHosts)
	policy.Add(flags)
	safe.Add(flags)
	startup.LimitFlags(flags, &cfg.Limits, &cluster.MaxTags)
	flags.IntVar(&cfg.MaxUnknownTags, "max-unknown-tags", cfg.MaxUnknownTags,
		"how many names of tags that do not exist a caller may ask for in a minute")
	flags.StringVar(&pin, "worker", "auto", "the number of this instance's workers of time-ordered IDs, "+
		"counted from the lower end of its room's slice: auto, a number, or ordinal for the digits after the last "+
		"dash of the host's name")
	flags.DurationVar(&cfg.WorkerWindow, "worker-window", cfg.WorkerWindow,
		"with --worker: how long the next process with that number waits after a crash, at most")
	flags.StringVar(&callers, "client-workers", "half", "how many workers of its slice the room lends to clients, "+
		"which issue time-ordered IDs themselves: half of the slice, which is the most, or a number; 0 for none")
	flags.BoolVar(&cfg.AgreeClock, "agree-clock", false, "take workers of time-ordered IDs although this host's clock "+
		"is ahead of the other instances' clocks; these IDs will always sort too late")
	flags.DurationVar(&cfg.Drain, "drain", cfg.Drain, "how long calls under way may take at the end")
	return cmd
}

func newConsole(c *common) *cobra.Command {
	var (
		cluster     startup.ClusterFlags
		watch       startup.WatchFlags
		policy      rights.ConsoleFlags
		safe        secure.Server
		start       = startup.Server{What: "console"}
		cfg         = console.DefaultConfig()
		hostname, _ = os.Hostname() // only for people
	)
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Run a console, which the operators' commands and browsers call",
		Long: `Run a console, which the operators' commands call, and which shows the cluster to
browsers (--http). A console keeps no data: run any number of them for one
cluster, anywhere.`,
		Example: `  march console --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			log, err := c.logger(hclog.Info)
			if err != nil {
				return err
			}
			cfg.Logger = log.Named("console")
			w, stop, err := watch.Start(cmd.Context(), build(), "march-console", hostname, nil, log)
			if err != nil {
				return err
			}
			defer stop()
			cfg.Metrics, cfg.Tracer = w.Metrics, w.Tracer
			defer c.rereadLevel(cmd, log, hclog.Info)()
			if cfg.Ledger, err = cluster.Ledger(w, log); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cfg.Ledger.Close()) }()
			cfg.Admin = w.Admin(cluster.MaxTags)
			if err := policy.Set(&cfg, w.Metrics, log); err != nil {
				return usageError{err}
			}
			if cfg.TLS, err = safe.Open(log); err != nil {
				return usageError{err}
			}
			cfg.Credentials.TLS = safe.Calls(cfg.TLS)
			if cfg.Insecure, err = safe.Check(cfg.TLS, cfg.Access != nil, cfg.Logger,
				start.Addresses()...); err != nil {
				return usageError{err}
			}
			// A console does without a layout: the first one is made through it.
			start.Needs = func(ctx context.Context) error { return cfg.Needs(cluster.Ping(ctx, cfg.Ledger)) }
			if err := cfg.Validate(); err != nil { // not only once etcd is there
				return err
			}
			if c.checkOnly {
				return nil
			}
			start.Hosts, start.Access, start.TLS, start.Metrics, start.Log = cfg.AllowedHosts, cfg.Access,
				cfg.TLS, w.Metrics, cfg.Logger
			return stopped(cmd.Context(), start.Run(cmd.Context(), func(l startup.Listeners) (startup.Runner, error) {
				cfg.Diagnose = diagnosing(cmd, cfg.Ledger, "", w)
				cfg.GRPC, cfg.HTTP = l.GRPC, l.HTTP
				if h := l.HTTP; h != nil {
					_, _ = fmt.Fprintf(c.stderr, "the console's page: %s://%s/\n", secure.Scheme(cfg.TLS), h.Addr())
				}
				return console.New(cfg)
			}))
		},
	}
	cluster.Add(cmd)
	watch.Add(cmd)
	flags := cmd.PersistentFlags()
	flags.StringVar(&start.GRPC, "grpc", defaultConsole, "where to serve gRPC, HOST:PORT")
	flags.StringVar(&start.HTTP, "http", "127.0.0.1:7000",
		"where to serve the page for browsers, HTTP/JSON, /livez, /readyz and /metrics, HOST:PORT; empty for nowhere")
	flags.BoolVar(&start.Wait, "wait-for-etcd", true,
		"start and wait, not ready, if etcd does not answer; false: end with exit code 5")
	flags.StringSliceVar(&cfg.Rooms, "rooms", nil,
		"addresses of instances, HOST:PORT, to show if etcd does not answer at the start")
	flags.StringVar(&cfg.Dashboard, "dashboard", "", "address of the dashboard of deploy/grafana in your Grafana, "+
		"such as https://grafana.example.com/d/march: the history page links to its last 7 and 30 days")
	hostsFlag(cmd, &cfg.AllowedHosts)
	policy.Add(flags, &cfg)
	safe.Add(flags)
	safe.AddCA(flags)
	startup.LimitFlags(flags, &cfg.Limits, &cluster.MaxTags)
	flags.IntVar(&cfg.MaxLivePages, "max-live-pages", cfg.MaxLivePages,
		"how many pages browsers may keep up to date at once")
	flags.IntVar(&cfg.MaxCallerLivePages, "max-caller-live-pages", cfg.MaxCallerLivePages,
		"how many pages the browsers of one caller may keep up to date at once")
	flags.DurationVar(&cfg.Drain, "drain", cfg.Drain, "how long calls under way may take at the end")
	flags.IntVar(&cfg.MirrorTags, "mirror-tags", 100_000, "of how many tags to keep in memory what etcd showed of "+
		"them, for march recover: about 200 bytes a tag of three rooms; 0 keeps nothing")
	flags.StringVar(&cfg.Mirror, "mirror", "", "a file that keeps that over restarts, written each second")
	flags.DurationVar(&cfg.ForgetAfter, "forget-after", cfg.ForgetAfter,
		"how long an instance must be silent to be forgotten")
	return cmd
}

// hostsFlag is the flag of the host names that HTTP requests may have.
func hostsFlag(cmd *cobra.Command, names *[]string) {
	cmd.PersistentFlags().StringSliceVar(names, "allowed-hosts", nil,
		"host names besides localhost that HTTP requests may have if the server listens on a loopback address: "+
			"the name of a proxy that passes its own name on")
}

// diagnosing returns what tells operators of a server's process.
func diagnosing(cmd *cobra.Command, l *ledger.Ledger, journal string, w startup.Watched) *diagnose.Server {
	cfg := diagnose.Config{Build: build(), Ledger: l, Journal: journal}
	for _, s := range origin.Of(func(visit func(*pflag.Flag)) { visitSettings(cmd, visit) }) {
		cfg.Settings = append(cfg.Settings, &marchv1.Setting{Name: s.Name, Value: s.Value, Origin: s.Origin})
	}
	if w.Metrics != nil {
		cfg.Metrics = w.Metrics.Gatherer()
	}
	d := diagnose.New(cfg)
	if w.Metrics != nil {
		w.Metrics.Register(d)
	}
	return d
}
