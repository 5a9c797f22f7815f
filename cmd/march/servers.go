package main

import (
	"bytes"
	"cmp"
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
	"github.com/march-id/march/allocator/ledger/admin"
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
	Cluster  clusterFlags
	Watch    watchFlags
	TLS      serverTLS
	Policy   access.Config
	start    starting
	hostname string // empty if it is not known

	log      hclog.Logger
	ledger   *ledger.Ledger
	insecure string // why the server is not secure, as --insecure allows
	stops    []func()
}

func newServer(c *common, what string, of *serve.Settings) server {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = ""
	}
	return server{common: c, Cluster: defaultCluster(), Watch: watchFlags{Ratio: 1}, TLS: serverTLS{filesTLS: tls13},
		start: starting{Settings: of, What: what, within: c.within}, hostname: hostname}
}

// secretFile are the settings that name files with secrets. The next version refuses those that others can read.
var secretFile = regexp.MustCompile(`(tls-key|etcd-key|key-file|password-file|secret-file|token-file|tinyid-tokens)$`)

// open opens metrics, traces, the ledger, the policy and the files of TLS, and checks that the server is safe where it
// listens. room is empty for a console. It asks nothing of etcd, so wrong settings are found although etcd is away.
func (s *server) open(cmd *cobra.Command, room allocator.Room, instance string) error {
	s.start.Logger = s.log.Named(s.start.What)
	var labels prometheus.Labels
	if room != "" {
		labels = prometheus.Labels{"room": string(room)}
	}
	stop, err := s.Watch.Start(cmd.Context(), s.start.Settings, "march-"+s.start.What, instance, labels, s.log)
	if err != nil {
		return err
	}
	for _, setting := range settledOf(cmd) {
		if why := smallfile.Exposed(setting.Value); why != "" && secretFile.MatchString(setting.Name) {
			s.log.Warn("a secret is not private", "setting", setting.Name, "why", why)
		}
	}
	s.stops = []func(){stop}
	if s.start.within == nil && !s.checkOnly {
		s.stops = append(s.stops, s.rereadLevel(cmd, s.log, hclog.Info))
		for _, name := range unknownVariables(cmd.Root()) {
			s.log.Warn("there is no setting of this variable of the environment", "variable", name)
		}
	}
	if s.ledger, err = s.Cluster.Ledger(s.start.Settings, s.log); err != nil {
		return err
	}
	s.Policy.Room, s.Policy.Register, s.Policy.Logger = string(room), s.start.Metrics.Register, s.log.Named("access")
	s.Policy.Certificates = s.TLS.ClientCA != ""
	if s.start.Access, err = access.New(s.Policy); err != nil {
		return err
	}
	if s.start.TLS, err = s.TLS.Open(s.log); err != nil {
		return err
	}
	s.insecure, err = s.TLS.Check(&s.start)
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
	keyFiles
	Config   room.Config
	Wait     bool     `flag:"wait-for-etcd" help:"start and wait, not ready, if etcd does not answer or has no layout yet; false: end with exit code 5 or 1"`
	Name     string   `flag:"name" help:"this instance's name: no other instance has it, and it stays the same over restarts"`
	Journal  string   `flag:"journal" help:"directory for this instance's journal, or \"off\" (default $STATE_DIRECTORY, $XDG_STATE_HOME/march or ~/.local/state/march)"`
	Worker   string   `flag:"worker" help:"the number of this instance's workers of time-ordered IDs, counted from the lower end of its room's slice: auto, a number, or ordinal for the digits after the last dash of the host's name"`
	Warm     []string `flag:"warm-tags" help:"tags whose IDs to lease before this instance reports that it is ready"`
	TLSDoors bool     `flag:"tls-doors" help:"with --tls-cert: answer clients of other systems over TLS, too"`
	CA       string   `flag:"tls-ca" help:"file with the CA certificates (PEM) that sign the certificates of other instances, to which this one passes calls for tags with a strict order; default the system's"`
	Token    string   `flag:"token-file" help:"file with the token that this instance gives to other instances, to which it passes calls for tags with a strict order"`
	Tokens   string   `flag:"tinyid-tokens" help:"file of TinyId's tokens: lines of a token and a bizType, * for all; read again each minute"`
}

func newRoom(c *common) *cobra.Command {
	r := &roomServer{Config: room.DefaultConfig(), Wait: true, Worker: "auto", TLSDoors: true}
	r.server = newServer(c, "room", &r.Config.Settings)
	r.Name = r.hostname
	cmd := command(callRow{
		use: "room NAME", short: "Run an instance of a room",
		long: `Run an instance of a room: it issues the room's IDs over gRPC and HTTP. A room
may have as many instances as you like, each with a name of its own (--name) that
stays the same over restarts. SIGTERM stops it: calls under way are answered first.`,
		example: `  march room eu-1 --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379 --grpc 0.0.0.0:7010 --advertise "$(hostname -f):7010"`,
	}, exactly("a room's name"), func(cmd *cobra.Command, args []string) error {
		return whence(cmd, r.run(cmd, args[0]))
	})
	return addSettings(cmd, r, r.parsed()...)
}

// parsed are the settings that are not as they are written: where the room listens, and how many workers it lends.
func (r *roomServer) parsed() []option {
	cfg := &r.Config
	list := []option{
		r.start.at(listening{flag: "grpc", what: "gRPC", to: &cfg.GRPC}, defaultRoom,
			"where to serve gRPC, HOST:PORT"),
		r.start.at(listening{flag: "http", what: "HTTP", to: &cfg.HTTP}, "127.0.0.1:7020",
			"where to serve HTTP/JSON, /livez, /readyz and /metrics, HOST:PORT; empty for nowhere"),
		r.start.at(listening{flag: "admin-grpc", what: "admin gRPC", to: &cfg.AdminGRPC}, "", "where to serve "+
			"operators' calls, reflection and health over gRPC, HOST:PORT; empty for --grpc. With it, --grpc "+
			"serves callers who take IDs only"),
		r.start.at(listening{flag: "admin-http", what: "admin HTTP", to: &cfg.AdminHTTP}, "", "with "+
			"--admin-grpc: where to serve operators' calls, /metrics, /livez and /readyz over HTTP, HOST:PORT; "+
			"empty for nowhere"),
		{"client-workers", parsedBy(&cfg.ClientWorkers, "half", worker.ParseCallers), "how many workers of its " +
			"slice the room lends to clients, which issue time-ordered IDs themselves: half of the slice, which " +
			"is the most, or a number; 0 for none"},
	}
	for _, kind := range doorKinds {
		list = append(list, r.start.at(listening{flag: kind.Flag, what: kind.System, to: kind.Listener(&cfg.Doors),
			tls: &r.TLSDoors}, "", "where to answer clients of "+kind.System+", HOST:PORT; empty for nowhere"))
	}
	return list
}

// read reads the settings that are not of a flag's type. Its error is Invalid.
func (r *roomServer) read(name string) (err error) {
	cfg := &r.Config
	cfg.Build = build()
	if cfg.Room, err = allocator.ParseRoom(name); err != nil {
		return err
	}
	// The default is the host's name, which may have capitals.
	if cfg.Name, err = allocator.ParseInstance(strings.ToLower(r.Name)); err != nil {
		return invalidf("name: %w", err)
	}
	if cfg.Worker, err = worker.ParsePin(r.Worker, r.hostname); err != nil {
		return err
	}
	for _, tag := range r.Warm {
		parsed, err := allocator.ParseTag(tag)
		if err != nil {
			return invalidf("warm-tags: %w", err)
		}
		cfg.WarmTags = append(cfg.WarmTags, parsed)
	}
	if cfg.OpaqueKeys, err = readKeys(r.OpaqueKeys); err != nil {
		return err
	}
	if cfg.Journal, err = journalDir(r.Journal); err != nil {
		return err
	}
	if cfg.Journal == "" && cfg.RequireJournal {
		return invalidf("require-journal: there is none with --journal off; allowed: --journal DIR")
	}
	if r.start.of("admin-grpc").at == "" && (r.start.of("admin-http").at != "" || cfg.AdvertiseAdmin != "") {
		return invalidf("admin-grpc: none; allowed: HOST:PORT, because --admin-http or --advertise-admin is given")
	}
	if r.Token != "" && r.CA == "" && r.TLS.Cert == "" && !loopback(cmp.Or(cfg.Advertise, r.start.of("grpc").at)) {
		return invalidf("token-file: without TLS the token is sent to no other machine, and instances of tags with a " +
			"strict order call each other with it; allowed: with --ca FILE or --tls-cert FILE, or where --grpc is an " +
			"address of this machine only, or without --token-file")
	}
	return nil
}

func (r *roomServer) run(cmd *cobra.Command, name string) (err error) {
	r.log = r.logger(hclog.Info)
	if err := r.read(name); err != nil {
		return usageError{err}
	}
	cfg, ctx := &r.Config, cmd.Context()
	defer func() { err = r.close(err) }()
	r.TLS.CA = r.CA
	if err := r.open(cmd, cfg.Room, string(cfg.Room)+"/"+string(cfg.Name)); err != nil {
		return err
	}
	cfg.Ledger, cfg.Insecure, cfg.Doors.Plain = r.ledger, r.insecure, !r.TLSDoors
	cfg.Admin.TooManyTags = cfg.Metrics.Limit(admin.MaxTags, cfg.Admin.MaxTags).Count
	if r.Token != "" {
		if _, err := api.ReadToken(r.Token); err != nil {
			return usageError{err}
		}
	}
	if cfg.Peers.TokenFile = r.Token; r.CA != "" || r.TLS.Cert != "" {
		cfg.Peers.TLS = cfg.TLS
	}
	if r.Tokens != "" {
		if cfg.Doors.TinyIDTokens, err = tinyid.OpenTokens(r.Tokens, r.log); err != nil {
			return usageError{err}
		}
	} else if r.start.of("tinyid").at != "" && cfg.Access == nil {
		return invalidf("tinyid: there are no tokens; allowed: with --tinyid-tokens FILE, or with --policy and " +
			"--tokens")
	}
	r.start.Wait = r.Wait
	r.start.Needs = func(ctx context.Context) error {
		return r.Cluster.roomNeeds(ctx, r.ledger, cfg.Room, cfg.Name)
	}
	// Not only once etcd is there. `march config validate` checks all that can be wrong without it.
	if err := cfg.Validate(); err != nil || r.checkOnly {
		return err
	}
	return stopped(ctx, r.start.Run(ctx, func() (runner, error) {
		cfg.Diagnose = diagnosing(cmd, r.ledger, cfg.Journal, cfg.Metrics)
		// Only now, because port 0 stands for any free one.
		cfg.Advertise = advertised(cfg.Advertise, cfg.GRPC, r.hostname)
		cfg.AdvertiseAdmin = advertised(cfg.AdvertiseAdmin, cfg.AdminGRPC, r.hostname)
		return room.New(*cfg)
	}))
}

// consoleServer is a console's settings.
type consoleServer struct {
	server
	Config console.Config
	Wait   bool   `flag:"wait-for-etcd" help:"start and wait, not ready, if etcd does not answer; false: end with exit code 5"`
	CA     string `flag:"tls-ca" help:"file with the CA certificates (PEM) that sign the rooms' certificates; default the system's. This flag or --tls-cert has the rooms called over TLS"`
	Token  string `flag:"token-file" help:"file with the token that this console gives to the instances that it asks"`
	Secret string `flag:"oidc-client-secret-file" help:"file with that client's secret, if it has one"`
	Key    string `flag:"session-key-file" help:"file with 32 random bytes or more that protect logins, the same for all consoles; without it, logins end with this process"`
}

func newConsole(c *common) *cobra.Command {
	s := &consoleServer{Config: console.DefaultConfig(), Wait: true}
	s.Config.MirrorTags, s.Config.Login.Lasts = 100_000, 12*time.Hour
	s.server = newServer(c, "console", &s.Config.Settings)
	cmd := command(callRow{
		use: "console", short: "Run a console, which the operators' commands and browsers call",
		long: `Run a console, which the operators' commands call, and which shows the cluster to
browsers (--http). A console keeps no data: run any number of them for one
cluster, anywhere.`,
		example: `  march console --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error { return whence(cmd, s.run(cmd)) })
	return addSettings(cmd, s,
		s.start.at(listening{flag: "grpc", what: "gRPC", to: &s.Config.GRPC}, defaultConsole,
			"where to serve gRPC, HOST:PORT"),
		s.start.at(listening{flag: "http", what: "HTTP", to: &s.Config.HTTP}, "127.0.0.1:7000", "where to serve "+
			"the page for browsers, HTTP/JSON, /livez, /readyz and /metrics, HOST:PORT; empty for nowhere"))
}

func (s *consoleServer) run(cmd *cobra.Command) (err error) {
	s.log = s.logger(hclog.Info)
	cfg, ctx := &s.Config, cmd.Context()
	defer func() { err = s.close(err) }()
	if err := s.readLogin(); err != nil {
		return err
	}
	s.TLS.CA = s.CA
	if err := s.open(cmd, "", s.hostname); err != nil {
		return err
	}
	cfg.Ledger, cfg.Insecure, cfg.Credentials.TokenFile = s.ledger, s.insecure, s.Token
	cfg.Admin.TooManyTags = cfg.Metrics.Limit(admin.MaxTags, cfg.Admin.MaxTags).Count
	if s.CA != "" || s.TLS.Cert != "" {
		cfg.Credentials.TLS = cfg.TLS
	}
	// A console does without a layout: the first one is made through it.
	s.start.Wait = s.Wait
	s.start.Needs = func(ctx context.Context) error { return cfg.Needs(s.Cluster.Ping(ctx, s.ledger)) }
	// Not only once etcd is there.
	if err := cfg.Validate(); err != nil || s.checkOnly {
		return err
	}
	return stopped(ctx, s.start.Run(ctx, func() (runner, error) {
		cfg.Diagnose = diagnosing(cmd, s.ledger, "", cfg.Metrics)
		cfg.Advertise = advertised(cfg.Advertise, cfg.GRPC, s.hostname)
		if h := cfg.HTTP; h != nil && s.start.within == nil {
			put(s.stderr, "the console's page: %s://%s/\n", urlScheme(cfg.TLS.Serves()), h.Addr())
		}
		return console.New(*cfg)
	}))
}

// diagnosing returns what tells operators of a server's process.
func diagnosing(cmd *cobra.Command, l *ledger.Ledger, journal string, m *serve.Metrics) *problem.Host {
	cfg := problem.HostConfig{Build: build(), Ledger: l, Journal: journal, Metrics: m.Gatherer()}
	for _, s := range settledOf(cmd) {
		cfg.Settings = append(cfg.Settings, &marchv1.Setting{Name: s.Name, Value: s.Value, Origin: s.Origin})
	}
	d := problem.NewHost(cfg)
	m.Register(d)
	return d
}

// The settings of TLS are flags of servers, and of commands that call servers. A server has TLS and identities where
// other machines reach it.

// filesTLS are the settings that servers and clients share.
type filesTLS struct {
	Cert  string `flag:"tls-cert" help:"file with the own certificate (PEM), and the intermediate ones behind it; read again when it changes"`
	Key   string `flag:"tls-key" help:"file with the certificate's key (PEM)"`
	Least string `flag:"tls-min-version" of:"1.2 1.3" help:"the least version of TLS: 1.2 or 1.3"`
}

// tls13 has the defaults.
var tls13 = filesTLS{Least: "1.3"}

// open returns the files; nil if none is named and TLS is not on.
func (f *filesTLS) open(cfg tlsfiles.Config, on bool, log hclog.Logger) (*tlsfiles.Files, error) {
	if !on && cfg.CA == "" && f.Cert == "" && f.Key == "" && cfg.ClientCA == "" && !cfg.RequireClient {
		return nil, nil
	}
	cfg.Cert, cfg.Key, cfg.TLS12, cfg.Flags, cfg.Logger = f.Cert, f.Key, f.Least == "1.2", "tls", log.Named("tls")
	return tlsfiles.Open(cfg)
}

// clientTLS are the settings with which a command calls servers.
type clientTLS struct {
	filesTLS
	On    bool   `flag:"tls" help:"call over TLS; each of the other flags of TLS turns it on, too"`
	CA    string `flag:"tls-ca" help:"file with the CA certificates (PEM) that sign the servers' certificates; default the system's"`
	Token string `flag:"token-file" help:"file with the token to give"`
}

// Credentials returns what the flags ask for. Its errors are Invalid.
func (c *clientTLS) Credentials() (given api.Credentials, err error) {
	given.TokenFile = c.Token
	if c.Token != "" { // not only with the first call
		if _, err := api.ReadToken(c.Token); err != nil {
			return given, err
		}
	}
	given.TLS, err = c.open(tlsfiles.Config{CA: c.CA}, c.On, hclog.NewNullLogger())
	return given, err
}

// serverTLS are the settings of a server's own TLS, and of its calls to other servers.
type serverTLS struct {
	filesTLS
	CA       string // of the servers that it calls
	ClientCA string `flag:"tls-client-ca" help:"file with the CA certificates (PEM) that sign clients' certificates, with which clients prove who they are"`
	Auth     string `flag:"tls-client-auth" of:"optional required" help:"with --tls-client-ca: optional, or required to refuse clients without a certificate"`
	Insecure bool   `flag:"insecure" help:"serve other machines although there is no TLS, or no identity of callers"`
}

// Open returns what the flags ask for, nil for no TLS. Its errors are Invalid.
func (s *serverTLS) Open(log hclog.Logger) (*tlsfiles.Files, error) {
	cfg := tlsfiles.Config{CA: s.CA, ClientCA: s.ClientCA, RequireClient: s.Auth == "required"}
	return s.open(cfg, false, log)
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
		start.Logger.Warn("insecure, as --insecure allows", "why", why)
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

// readLogin reads what these settings name. Its error is Invalid.
func (s *consoleServer) readLogin() (err error) {
	login := &s.Config.Login
	if s.Secret != "" {
		secret, err := readSecret("oidc-client-secret-file", s.Secret)
		if err != nil {
			return err
		}
		login.ClientSecret = string(bytes.TrimSpace(secret))
	}
	if s.Key != "" {
		if login.Key, err = readSecret("session-key-file", s.Key); err != nil {
			return err
		}
	}
	if s.Policy.Policy == "" && login.ClientID != "" {
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
