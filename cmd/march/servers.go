package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/smallfile"
	"github.com/march-id/march/room"
	"github.com/march-id/march/room/tinyid"
)

// server is what rooms and consoles have in common: settings, and what is open before a start.
type server struct {
	*common
	cluster  clusterFlags
	watch    watchFlags
	safe     serverTLS
	policy   access.Config
	start    starting
	hostname string // empty if it is not known

	log      hclog.Logger
	watched  watched
	ledger   *ledger.Ledger
	insecure string // why the server is not secure, as --insecure allows
	stops    []func()
}

func newServer(c *common, what string) server {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = ""
	}
	return server{common: c, start: starting{What: what, within: c.within}, hostname: hostname}
}

// options returns the settings that both have.
func (s *server) options(hosts *[]string, limits *serve.Limits) []option {
	return slices.Concat(s.cluster.options(), s.watch.options(), s.safe.options(), policyOptions(&s.policy),
		limitOptions(limits, &s.cluster.MaxTags), []option{hostsOption(hosts)})
}

// hostsOption is the setting of the host names that HTTP requests may have.
func hostsOption(names *[]string) option {
	return option{"allowed-hosts", names, "host names besides localhost that HTTP requests may have if the server " +
		"listens on a loopback address: the name of a proxy that passes its own name on"}
}

// secretFile are the settings that name files with secrets. The next version refuses those that others can read.
var secretFile = regexp.MustCompile(`(tls-key|etcd-key|key-file|password-file|secret-file|token-file|tinyid-tokens)$`)

// open opens metrics, traces, the ledger, the policy and the files of TLS, and checks that the server is safe where it
// listens. room is empty for a console, and hosts are by which HTTP may be called. It asks nothing of etcd, so wrong
// settings are found although etcd is away.
func (s *server) open(cmd *cobra.Command, room allocator.Room, instance string, hosts []string,
	log hclog.Logger) error {
	var labels prometheus.Labels
	if room != "" {
		labels = prometheus.Labels{"room": string(room)}
	}
	watched, stop, err := s.watch.Start(cmd.Context(), build(), "march-"+s.start.What, instance, labels, s.log)
	if err != nil {
		return err
	}
	for _, setting := range settledOf(cmd) {
		if why := smallfile.Exposed(setting.Value); why != "" && secretFile.MatchString(setting.Name) {
			s.log.Warn("a secret is not private", "setting", setting.Name, "why", why)
		}
	}
	s.watched, s.stops = watched, []func(){stop}
	if s.start.within == nil && !s.checkOnly {
		s.stops = append(s.stops, s.rereadLevel(cmd, s.log, hclog.Info))
		for _, name := range unknownVariables(cmd.Root()) {
			s.log.Warn("there is no setting of this variable of the environment", "variable", name)
		}
	}
	if s.ledger, err = s.cluster.Ledger(watched, s.log); err != nil {
		return err
	}
	s.policy.Room, s.policy.Register, s.policy.Logger = string(room), watched.Metrics.Register, s.log.Named("access")
	s.policy.Certificates = s.safe.cfg.ClientCA != ""
	if s.start.Access, err = access.New(s.policy); err != nil {
		return err
	}
	if s.start.TLS, err = s.safe.Open(s.log); err != nil {
		return err
	}
	s.start.Hosts, s.start.Metrics, s.start.Log = hosts, watched.Metrics, log
	s.insecure, err = s.safe.Check(&s.start)
	return err
}

// close closes what open opened, and adds its error to the server's.
func (s *server) close(err error) error {
	if s.ledger != nil {
		err = errors.Join(err, s.ledger.Close())
	}
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
	return err
}

// roomServer is a room's settings.
type roomServer struct {
	server
	name, journal, pin string
	warm, keys         []string
	tokens             string // of TinyId
	tlsDoors           bool
	cfg                room.Config
}

func newRoom(c *common) *cobra.Command {
	r := &roomServer{server: newServer(c, "room"), cfg: room.DefaultConfig()}
	cmd := command(callRow{
		use: "room NAME", short: "Run an instance of a room",
		long: `Run an instance of a room: it issues the room's IDs over gRPC and HTTP. A room
may have as many instances as you like, each with a name of its own (--name) that
stays the same over restarts. SIGTERM stops it: calls under way are answered first.`,
		example: `  march room eu-1 --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379 --grpc 0.0.0.0:7010 --advertise "$(hostname -f):7010"`,
	}, exactly("a room's name"), func(cmd *cobra.Command, args []string) error {
		return whence(cmd, r.run(cmd, args[0]))
	})
	return addOptions(cmd, r.settings()...)
}

func (r *roomServer) settings() []option {
	return slices.Concat(r.server.options(&r.cfg.AllowedHosts, &r.cfg.Limits),
		[]option{
			{"name", usually(&r.name, r.hostname), "this instance's name: no other instance has it, and it stays the " +
				"same over restarts"},
			{"journal", &r.journal, `directory for this instance's journal, or "off" (default $STATE_DIRECTORY, $XDG_STATE_HOME/march or ~/.local/state/march)`},
			{"require-journal", &r.cfg.RequireJournal, "if this instance starts without its predecessor's journal, " +
				"lease nothing until 'march instance confirm'; 'march cluster update --journal required' does the " +
				"same for all instances"},
			r.start.at(listening{flag: "grpc", what: "gRPC", to: &r.cfg.GRPC}, defaultRoom,
				"where to serve gRPC, HOST:PORT"),
			r.start.at(listening{flag: "http", what: "HTTP", to: &r.cfg.HTTP}, "127.0.0.1:7020",
				"where to serve HTTP/JSON, /livez, /readyz and /metrics, HOST:PORT; empty for nowhere"),
			r.start.at(listening{flag: "admin-grpc", what: "admin gRPC", to: &r.cfg.AdminGRPC}, "", "where to serve "+
				"operators' calls, reflection and health over gRPC, HOST:PORT; empty for --grpc. With it, --grpc "+
				"serves callers who take IDs only"),
			r.start.at(listening{flag: "admin-http", what: "admin HTTP", to: &r.cfg.AdminHTTP}, "", "with "+
				"--admin-grpc: where to serve operators' calls, /metrics, /livez and /readyz over HTTP, HOST:PORT; "+
				"empty for nowhere"),
			{"advertise-admin", reachedAt(&r.cfg.AdvertiseAdmin, "advertise-admin"), "the address at which consoles " +
				"and operators reach --admin-grpc (default that address, with this host's name for 0.0.0.0)"},
			{"advertise", reachedAt(&r.cfg.Advertise, "advertise"), "the gRPC address at which other " +
				"processes reach this instance (default --grpc, with this host's name for 0.0.0.0)"},
			{"create-tags", &r.cfg.CreateTags, "create a tag when it is first asked for; for development"},
			{"warm-tags", &r.warm, "tags whose IDs to lease before this instance reports that it is ready"},
			{"opaque-key", &r.keys, opaqueKeyUsage},
			{"metrics-tags", &r.cfg.MetricsTags, "how many tags have metrics of their own, the busiest first; 0 for " +
				"none"},
			{"ready-reserve", &r.cfg.ReadyReserve, "not ready if nothing can be leased and no tag in use has IDs for " +
				"longer than this; 0 is until they have run out"},
			{"idle-after", &r.cfg.IdleAfter, "how long a tag may be unused before its IDs are dropped from memory"},
			{"hold", &r.cfg.Hold, "how long clients may use IDs that they lease, and rooms the IDs of strict tags " +
				"after etcd last confirmed the layout"},
			{"strict-retract", &r.cfg.StrictRetract, "make all tags strict: issue nothing rather than an ID of a " +
				"residue that this room may have given up"},
			{"wait-for-etcd", usually(&r.start.Wait, true), "start and wait, not ready, if etcd does not answer or " +
				"has no layout yet; false: end with exit code 5 or 1"},
			{"max-unknown-tags", &r.cfg.MaxUnknownTags, "how many names of tags that do not exist a caller may ask " +
				"for in a minute"},
			{"worker", usually(&r.pin, "auto"), "the number of this instance's workers of time-ordered IDs, counted " +
				"from the lower end of its room's slice: auto, a number, or ordinal for the digits after the last " +
				"dash of the host's name"},
			{"worker-window", &r.cfg.WorkerWindow, "with --worker: how long the next process with that number waits " +
				"after a crash, at most"},
			{"client-workers", parsedBy(&r.cfg.ClientWorkers, "half", worker.ParseCallers), "how many workers of its " +
				"slice the room lends to clients, which issue time-ordered IDs themselves: half of the slice, which " +
				"is the most, or a number; 0 for none"},
			{"agree-clock", &r.cfg.AgreeClock, "take workers of time-ordered IDs although this host's clock is ahead " +
				"of the other instances' clocks; these IDs will always sort too late"},
			{"drain", &r.cfg.Drain, "how long calls under way may take at the end"},
		}, r.doorOptions())
}

// read reads the settings that are not of a flag's type. Its error is Invalid.
func (r *roomServer) read(name string) (err error) {
	cfg := &r.cfg
	cfg.Build, cfg.Logger = build(), r.log.Named("room")
	if cfg.Room, err = allocator.ParseRoom(name); err != nil {
		return err
	}
	// The default is the host's name, which may have capitals.
	if cfg.Name, err = allocator.ParseInstance(strings.ToLower(r.name)); err != nil {
		return invalidf("name: %w", err)
	}
	if cfg.Worker, err = worker.ParsePin(r.pin, r.hostname); err != nil {
		return err
	}
	for _, tag := range r.warm {
		parsed, err := allocator.ParseTag(tag)
		if err != nil {
			return invalidf("warm-tags: %w", err)
		}
		cfg.WarmTags = append(cfg.WarmTags, parsed)
	}
	if cfg.OpaqueKeys, err = readKeys(r.keys); err != nil {
		return err
	}
	if cfg.Journal, err = journalDir(r.journal); err != nil {
		return err
	}
	if cfg.Journal == "" && cfg.RequireJournal {
		return invalidf("require-journal: there is none with --journal off; allowed: --journal DIR")
	}
	if r.start.of("admin-grpc").at == "" && (r.start.of("admin-http").at != "" || cfg.AdvertiseAdmin != "") {
		return invalidf("admin-grpc: none; allowed: HOST:PORT, because --admin-http or --advertise-admin is given")
	}
	return nil
}

func (r *roomServer) run(cmd *cobra.Command, name string) (err error) {
	r.log = r.logger(hclog.Info)
	if err := r.read(name); err != nil {
		return usageError{err}
	}
	cfg, ctx := &r.cfg, cmd.Context()
	defer func() { err = r.close(err) }()
	err = r.open(cmd, cfg.Room, string(cfg.Room)+"/"+string(cfg.Name), cfg.AllowedHosts, cfg.Logger)
	if err != nil {
		return err
	}
	cfg.Metrics, cfg.Tracer, cfg.Ledger = r.watched.Metrics, r.watched.Tracer, r.ledger
	cfg.Admin = r.watched.Admin(r.cluster.MaxTags)
	cfg.Access, cfg.TLS, cfg.Insecure, cfg.Doors.Plain = r.start.Access, r.start.TLS, r.insecure, !r.tlsDoors
	if r.tokens != "" {
		if cfg.Doors.TinyIDTokens, err = tinyid.OpenTokens(r.tokens, r.log); err != nil {
			return usageError{err}
		}
	} else if r.start.of("tinyid").at != "" && cfg.Access == nil {
		return invalidf("tinyid: there are no tokens; allowed: with --tinyid-tokens FILE, or with --policy and " +
			"--tokens")
	}
	r.start.Needs = func(ctx context.Context) error {
		return r.cluster.roomNeeds(ctx, r.ledger, cfg.Room, cfg.Name)
	}
	// Not only once etcd is there. `march config validate` checks all that can be wrong without it.
	if err := cfg.Validate(); err != nil || r.checkOnly {
		return err
	}
	return stopped(ctx, r.start.Run(ctx, func() (runner, error) {
		cfg.Diagnose = diagnosing(cmd, r.ledger, cfg.Journal, r.watched)
		// Only now, because port 0 stands for any free one.
		cfg.Advertise = advertised(cfg.Advertise, cfg.GRPC, r.hostname)
		cfg.AdvertiseAdmin = advertised(cfg.AdvertiseAdmin, cfg.AdminGRPC, r.hostname)
		return room.New(*cfg)
	}))
}

// consoleServer is a console's settings.
type consoleServer struct {
	server
	secret, key string // files
	cfg         console.Config
}

func newConsole(c *common) *cobra.Command {
	s := &consoleServer{server: newServer(c, "console"), cfg: console.DefaultConfig()}
	cmd := command(callRow{
		use: "console", short: "Run a console, which the operators' commands and browsers call",
		long: `Run a console, which the operators' commands call, and which shows the cluster to
browsers (--http). A console keeps no data: run any number of them for one
cluster, anywhere.`,
		example: `  march console --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error { return whence(cmd, s.run(cmd)) })
	return addOptions(cmd, s.settings()...)
}

func (s *consoleServer) settings() []option {
	return slices.Concat(s.server.options(&s.cfg.AllowedHosts, &s.cfg.Limits),
		s.loginOptions(), []option{
			s.start.at(listening{flag: "grpc", what: "gRPC", to: &s.cfg.GRPC}, defaultConsole,
				"where to serve gRPC, HOST:PORT"),
			s.start.at(listening{flag: "http", what: "HTTP", to: &s.cfg.HTTP}, "127.0.0.1:7000", "where to serve "+
				"the page for browsers, HTTP/JSON, /livez, /readyz and /metrics, HOST:PORT; empty for nowhere"),
			{"wait-for-etcd", usually(&s.start.Wait, true), "start and wait, not ready, if etcd does not answer; " +
				"false: end with exit code 5"},
			{"rooms", &s.cfg.Rooms, "addresses of instances, HOST:PORT, to show if etcd does not answer at the start"},
			{"dashboard", &s.cfg.Dashboard, "address of the dashboard of deploy/grafana in your Grafana, such as " +
				"https://grafana.example.com/d/march: the history page links to its last 7 and 30 days"},
			{"max-live-pages", &s.cfg.MaxLivePages, "how many pages browsers may keep up to date at once"},
			{"max-caller-live-pages", &s.cfg.MaxCallerLivePages, "how many pages the browsers of one caller may keep " +
				"up to date at once"},
			{"drain", &s.cfg.Drain, "how long calls under way may take at the end"},
			{"mirror-tags", usually(&s.cfg.MirrorTags, 100_000), "of how many tags to keep in memory what etcd " +
				"showed of them, for march recover: about 200 bytes a tag of three rooms; 0 keeps nothing"},
			{"mirror", &s.cfg.Mirror, "a file that keeps that over restarts, written each second"},
			{"advertise", reachedAt(&s.cfg.Advertise, "advertise"), "the gRPC address at which march recover " +
				"asks for it (default --grpc, with this host's name for 0.0.0.0)"},
			{"forget-after", &s.cfg.ForgetAfter, "how long an instance must be silent to be forgotten"},
			s.safe.ca(),
		})
}

func (s *consoleServer) run(cmd *cobra.Command) (err error) {
	s.log = s.logger(hclog.Info)
	cfg, ctx := &s.cfg, cmd.Context()
	cfg.Logger = s.log.Named("console")
	defer func() { err = s.close(err) }()
	if err := s.readLogin(); err != nil {
		return err
	}
	if err := s.open(cmd, "", s.hostname, cfg.AllowedHosts, cfg.Logger); err != nil {
		return err
	}
	cfg.Metrics, cfg.Tracer, cfg.Ledger = s.watched.Metrics, s.watched.Tracer, s.ledger
	cfg.Admin = s.watched.Admin(s.cluster.MaxTags)
	cfg.Access, cfg.TLS, cfg.Insecure = s.start.Access, s.start.TLS, s.insecure
	cfg.Credentials.TLS = s.safe.Calls(cfg.TLS)
	// A console does without a layout: the first one is made through it.
	s.start.Needs = func(ctx context.Context) error { return cfg.Needs(s.cluster.Ping(ctx, s.ledger)) }
	// Not only once etcd is there.
	if err := cfg.Validate(); err != nil || s.checkOnly {
		return err
	}
	return stopped(ctx, s.start.Run(ctx, func() (runner, error) {
		cfg.Diagnose = diagnosing(cmd, s.ledger, "", s.watched)
		cfg.Advertise = advertised(cfg.Advertise, cfg.GRPC, s.hostname)
		if h := cfg.HTTP; h != nil && s.start.within == nil {
			put(s.stderr, "the console's page: %s://%s/\n", urlScheme(cfg.TLS.Serves()), h.Addr())
		}
		return console.New(*cfg)
	}))
}

// diagnosing returns what tells operators of a server's process.
func diagnosing(cmd *cobra.Command, l *ledger.Ledger, journal string, w watched) *problem.Host {
	cfg := problem.HostConfig{Build: build(), Ledger: l, Journal: journal}
	for _, s := range settledOf(cmd) {
		cfg.Settings = append(cfg.Settings, &marchv1.Setting{Name: s.Name, Value: s.Value, Origin: s.Origin})
	}
	if w.Metrics != nil {
		cfg.Metrics = w.Metrics.Gatherer()
	}
	d := problem.NewHost(cfg)
	if w.Metrics != nil {
		w.Metrics.Register(d)
	}
	return d
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

// The settings of TLS are flags of servers, and of commands that call servers. A server has TLS and identities where
// other machines reach it.

// clientTLS are the settings with which a command calls servers.
type clientTLS struct {
	filesTLS
	on    bool
	token string
}

// options returns the settings. whose says whose token is asked for; it may be empty.
func (c *clientTLS) options(whose string) []option {
	return slices.Concat(c.filesTLS.options(), []option{
		{"tls", &c.on, "call over TLS; each of the other flags of TLS turns it on, too"},
		{"tls-ca", &c.cfg.CA, "file with the CA certificates (PEM) that sign the servers' certificates; default the " +
			"system's"},
		{"token-file", &c.token, "file with the token to give" + whose},
	})
}

// Credentials returns what the flags ask for. Its errors are Invalid.
func (c *clientTLS) Credentials() (given api.Credentials, err error) {
	given.TokenFile = c.token
	if c.token != "" { // not only with the first call
		if _, err := api.ReadToken(c.token); err != nil {
			return given, err
		}
	}
	given.TLS, err = c.open(c.on, hclog.NewNullLogger())
	return given, err
}

// serverTLS are the settings of a server's own TLS, and of its calls to other servers.
type serverTLS struct {
	filesTLS
	auth string
	// Insecure allows a server that other machines reach without TLS and identities.
	Insecure bool
}

func (s *serverTLS) options() []option {
	return slices.Concat(s.filesTLS.options(), []option{
		{"tls-client-ca", &s.cfg.ClientCA, "file with the CA certificates (PEM) that sign clients' certificates, " +
			"with which clients prove who they are"},
		{"tls-client-auth", oneOf(&s.auth, "optional", "required"), "with --tls-client-ca: optional, or required to " +
			"refuse clients without a certificate"},
		{"insecure", &s.Insecure, "serve other machines although there is no TLS, or no identity of callers"},
	})
}

func (s *serverTLS) ca() option {
	return option{"tls-ca", &s.cfg.CA, "file with the CA certificates (PEM) that sign the rooms' certificates; " +
		"default the system's. This flag or --tls-cert has the rooms called over TLS"}
}

// Open returns what the flags ask for, nil for no TLS. Its errors are Invalid.
func (s *serverTLS) Open(log hclog.Logger) (*tlsfiles.Files, error) {
	s.cfg.RequireClient = s.auth == "required"
	return s.open(false, log)
}

// Calls returns the TLS with which a server calls others: own is its own; nil for none.
func (s *serverTLS) Calls(own *tlsfiles.Files) *tlsfiles.Files {
	if s.cfg.CA == "" && s.cfg.Cert == "" {
		return nil
	}
	return own
}

// urlScheme is that of a server's URLs.
func urlScheme(secured bool) string {
	if secured {
		return "https"
	}
	return "http"
}

// Check returns why a server is not secure, empty if it is: other machines reach it, and it has no TLS or no
// identities. Its error is Invalid if the server is not secure and --insecure was not given.
func (s *serverTLS) Check(start *starting) (why string, err error) {
	for _, l := range start.all {
		if l.at == "" || loopback(l.at) {
			continue
		}
		var lacks []string
		if !start.TLS.Serves() || l.tls != nil && !*l.tls {
			lacks = append(lacks, "no TLS (--tls-cert, --tls-key)")
		}
		if start.Access == nil && !start.TLS.RequiresClient() {
			lacks = append(lacks, "no identities of callers (--policy)")
		}
		if len(lacks) == 0 {
			continue
		}
		why = "other machines reach it at " + l.at + " (--" + l.flag + "), where it has " + strings.Join(lacks, " and ")
		if !s.Insecure {
			return why, invalidf("%s: other machines reach %s, where this server would have %s; allowed: "+
				"a loopback address such as 127.0.0.1, or with TLS and a policy, or with --insecure",
				l.flag, l.at, strings.Join(lacks, " and "))
		}
		start.Log.Warn("insecure, as --insecure allows", "why", why)
		return why, nil
	}
	return "", nil
}

// loopback reports whether only this machine reaches an address. An address that cannot be
// resolved is none.
func loopback(address string) bool {
	at, err := net.ResolveTCPAddr("tcp", address)
	return err == nil && at.IP.IsLoopback()
}

// filesTLS are the flags that servers and clients share.
type filesTLS struct {
	cfg   tlsfiles.Config
	least string
}

func (f *filesTLS) options() []option {
	return []option{
		{"tls-cert", &f.cfg.Cert, "file with the own certificate (PEM), and the intermediate ones behind it; read " +
			"again when it changes"},
		{"tls-key", &f.cfg.Key, "file with the certificate's key (PEM)"},
		{"tls-min-version", oneOf(usually(&f.least, "1.3"), "1.2", "1.3"), "the least version of TLS: 1.2 or 1.3"},
	}
}

// open returns the files; nil if none is named and TLS is not on.
func (f *filesTLS) open(on bool, log hclog.Logger) (*tlsfiles.Files, error) {
	f.cfg.TLS12 = f.least == "1.2"
	f.cfg.Flags, f.cfg.Logger = "tls", log.Named("tls")
	if c := f.cfg; !on && c.CA == "" && c.Cert == "" && c.Key == "" && c.ClientCA == "" && !c.RequireClient {
		return nil, nil
	}
	return tlsfiles.Open(f.cfg)
}

// policyOptions are the settings of a server's policy.
func policyOptions(cfg *access.Config) []option {
	return []option{
		{"policy", &cfg.Policy, "YAML file that says which caller may make which call; it is read again when it " +
			"changes. Without it, every caller may make every call"},
		{"tokens", &cfg.Tokens, "with --policy: file with the hashes of the tokens that callers may give, from " +
			"'march token create'"},
		{"oidc-issuer", &cfg.Issuer, "with --policy: address of the OpenID Connect issuer whose tokens (JWT) " +
			"callers may give"},
		{"oidc-audience", &cfg.Audience, "the audience that such a token must have"},
		{"identities", &cfg.Identities, "with --policy: YAML file with several issuers and CAs of clients' " +
			"certificates, and the names that each may give; with it, --oidc-issuer says at which of them browsers " +
			"log in"},
		{"jwks-file", &cfg.Keys, "file with the public keys (JWKS) that sign such tokens, instead of asking the " +
			"issuer for them"},
	}
}

// loginOptions are the settings of the logins to a console's page.
func (s *consoleServer) loginOptions() []option {
	login := &s.cfg.Login
	return []option{
		{"token-file", &s.cfg.Credentials.TokenFile, "file with the token that this console gives to the instances " +
			"that it asks"},
		{"oidc-client-id", &login.ClientID, "this console's client ID at --oidc-issuer, for logins to the page; " +
			"empty for logins by tokens only"},
		{"oidc-client-secret-file", &s.secret, "file with that client's secret, if it has one"},
		{"public-url", &login.PublicURL, "address at which browsers reach the page, such as " +
			"https://march.example.com; it is served under this name only"},
		{"session-key-file", &s.key, "file with 32 random bytes or more that protect logins, the same for all " +
			"consoles; without it, logins end with this process"},
		{"session-lasts", usually(&login.Lasts, 12*time.Hour), "how long a login to the page lasts"},
	}
}

// readLogin reads what these settings name. Its error is Invalid.
func (s *consoleServer) readLogin() (err error) {
	if s.secret != "" {
		secret, err := readSecret("oidc-client-secret-file", s.secret)
		if err != nil {
			return err
		}
		s.cfg.Login.ClientSecret = string(bytes.TrimSpace(secret))
	}
	if s.key != "" {
		if s.cfg.Login.Key, err = readSecret("session-key-file", s.key); err != nil {
			return err
		}
	}
	if s.policy.Policy == "" && s.cfg.Login.ClientID != "" {
		return invalidf("oidc-client-id: given without a policy, so that no browser has to log in; give --policy FILE")
	}
	return nil
}

// passwordFile returns a function that reads the password of etcd's user from a file. Its
// error is Invalid.
func passwordFile(path string) func() (string, error) {
	return func() (string, error) {
		password, err := readSecret("etcd-password-file", path)
		return strings.TrimRight(string(password), "\r\n"), err
	}
}

// maxSecret bounds the file of a secret, in bytes.
const maxSecret = 4096

// readSecret reads the file of a secret. Its error is Invalid.
func readSecret(setting, path string) ([]byte, error) {
	content, err := smallfile.Read(setting, path, maxSecret)
	if err == nil && len(content) == 0 {
		err = invalidf("%s: %s is empty", setting, path)
	}
	return content, err
}

// doorKind is a door for other systems' clients.
type doorKind struct {
	Flag, System string
	Listener     func(*room.Doors) *net.Listener
}

// doorKinds are in the order of march dev's ports.
var doorKinds = [...]doorKind{
	{"redis", "Redis", func(d *room.Doors) *net.Listener { return &d.Redis }},
	{"leaf", "Leaf", func(d *room.Doors) *net.Listener { return &d.Leaf }},
	{"tinyid", "TinyId", func(d *room.Doors) *net.Listener { return &d.TinyID }},
	{"cosid", "CosId", func(d *room.Doors) *net.Listener { return &d.CosID }},
}

// doorOptions are the settings of a room's doors for other systems' clients.
func (r *roomServer) doorOptions() (list []option) {
	for _, kind := range doorKinds {
		list = append(list, r.start.at(listening{flag: kind.Flag, what: kind.System, to: kind.Listener(&r.cfg.Doors),
			tls: &r.tlsDoors}, "", "where to answer clients of "+kind.System+", HOST:PORT; empty for nowhere"))
	}
	return slices.Concat(list, doorTagOptions(&r.cfg.Doors), []option{
		{"tls-doors", usually(&r.tlsDoors, true), "with --tls-cert: answer clients of other systems over TLS, too"},
		{"tinyid-tokens", &r.tokens, "file of TinyId's tokens: lines of a token and a bizType, * for all; read again " +
			"each minute"},
	})
}

// doorTagOptions returns the settings of doors that march dev has, too.
func doorTagOptions(doors *room.Doors) []option {
	return []option{
		{"leaf-snowflake", optional(&doors.LeafSnowflake, allocator.ParseTag), "the tag of time-ordered IDs for " +
			"Leaf's /api/snowflake/get"},
		{"cosid-machines", optional(&doors.CosIDMachines, allocator.ParseRoom), "the layout's reserved range " +
			"for machine IDs of CosId's clients; empty for none"},
	}
}
