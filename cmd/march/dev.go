//go:build !nodev

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/embedded"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/room"
)

// devToken is what clients of TinyId send to march dev.
const devToken = "dev"

// dev is a whole cluster in one process.
type dev struct {
	common *common
	cmd    *cobra.Command
	Data   devData
	Ports  devPorts
	keyFiles
	serve.Hosts            // by which HTTP may be called besides localhost
	Doors       room.Doors // the tag and the range of machine IDs that their clients use
	Rooms       []string   `flag:"rooms" help:"the rooms, up to 10"`
	Boundary    int64      `flag:"boundary" help:"the boundary"`
	AuditLog    string     `flag:"audit-log" help:"file to which the rooms and the console add each entry of the audit that they write, for 'march audit verify'; or stdout"`
	Secured     bool       `flag:"tls" help:"serve over TLS, by a CA made for this run, with a policy and client certificates to try"`
	tls         *devTLS    // nil without

	log     hclog.Logger
	closers []func() // in the order of opening
}

func newDev(c *common) *cobra.Command {
	d := &dev{common: c, Ports: devPorts{Base: devBasePort}, Rooms: []string{"a", "b"}, Boundary: 1000}
	cmd := command(callRow{
		use: "dev", short: "Run a whole cluster in one process, for development: etcd, rooms and a console",
		long: `Run a whole cluster in one process: etcd, rooms and a console, all on 127.0.0.1.

Ports: console HTTP on the base port and gRPC on base+1, the i-th room's gRPC on
base+10+i and HTTP on base+20+i, etcd's client and peer ports on base+30 and
base+31; the i-th room's doors for clients of Redis, Leaf, TinyId and CosId on base+40+i,
base+50+i, base+60+i and base+70+i; with --admin-ports the i-th room's gRPC and HTTP for
operators on base+80+i and base+90+i. TinyId's token is "dev". Without --base-port
the base port is 7000, or if a port is in use there the next free one of 7100, 7200
and so on.

While it runs there is the context dev:PORT, by its base port. Commands have that
context if none was chosen (march context); of several, that of the oldest cluster.

A tag is created when a caller first asks for it.

With --tls the servers have certificates of a CA that is made at each start, and a
policy: the directory tls in the data directory has both, a certificate and a token of
an operator, who may do everything, and a certificate of a service that takes IDs.

--rooms and --boundary count at the first start only: the rooms then get equal
ranges. Later starts use the layout in the data directory.`,
		example: `  march dev
  march dev --data-dir ./data --rooms eu-1,us-1,ap-1 --boundary 1200`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		defer d.close()
		d.cmd = cmd
		return stopped(cmd.Context(), d.run(cmd.Context(), cmd))
	})
	var doors []option
	for k, kind := range doorKinds {
		doors = append(doors, option{kind.Flag, &d.Ports.Doors[k],
			"have the rooms answer clients of " + kind.System + ", too"})
	}
	return addSettings(cmd, d, doors...)
}

func (d *dev) run(ctx context.Context, cmd *cobra.Command) (err error) {
	d.log = d.common.logger(hclog.Warn)
	layout, err := firstDevLayout(d.Rooms, d.Boundary, d.Doors.CosIDMachines)
	if err != nil {
		return usageError{err}
	}
	if err := d.Ports.Check(); err != nil {
		return usageError{err}
	}
	signal.Ignore(syscall.SIGPIPE) // `march dev | head -1`: no reason to stop, let alone to leave the data behind
	d.closers = append(d.closers, d.Data.Close)
	if err := d.Data.Open(); err != nil {
		return err
	}
	d.closers = append(d.closers, d.Ports.FreeAll)
	if cmd.Flags().Changed("base-port") {
		err = d.Ports.Open(len(d.Rooms))
	} else {
		err = d.Ports.OpenFree()
	}
	if err != nil {
		return err
	}
	etcd, err := d.startEtcd(ctx)
	if err != nil {
		return err
	}
	stored, names, slots, err := d.first(ctx, layout)
	if err == nil {
		err = d.Data.Finish()
	}
	if err != nil {
		return err
	}
	if (cmd.Flags().Changed("rooms") || cmd.Flags().Changed("boundary")) && !stored.Layout.Equal(layout) {
		d.log.Warn("--rooms and --boundary are ignored, because the data directory already has a layout", "data_dir",
			d.Data.Dir, "version", stored.Layout.Version)
	}
	return d.serve(ctx, etcd, names, slots, stored)
}

func (d *dev) startEtcd(ctx context.Context) (*embedded.Server, error) {
	start, cancel := context.WithTimeout(ctx, embedded.ReadyWithin)
	defer cancel()
	etcd, err := embedded.Start(start, embedded.Config{
		Dir: d.Data.Etcd(), Client: "http://" + d.Ports.Address(portEtcdClient),
		Peer:   "http://" + d.Ports.Address(portEtcdPeer),
		Logger: d.etcdLogger(),
	})
	if err != nil && start.Err() != nil && ctx.Err() == nil {
		return nil, allocator.Errorf(allocator.Unavailable,
			"etcd in %s was not ready within %v; --log-level error shows its log", d.Data.Etcd(), embedded.ReadyWithin)
	}
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, etcd.Close)
	return etcd, nil
}

// etcdLogger is quiet unless the user set a level: etcd logs errors during a first
// start and during a clean stop. Server.Failed reports real failures.
func (d *dev) etcdLogger() hclog.Logger {
	if d.common.logLevel == "" {
		return nil
	}
	return d.log.Named("etcd")
}

// first returns the layout in the data directory, with its rooms and their slots. A new one gets the layout first.
func (d *dev) first(ctx context.Context, layout allocator.Layout) (stored record.Layout, names []allocator.Room,
	slots map[allocator.Room]int, err error) {
	cluster := clusterFlags{Endpoints: []string{d.Ports.Address(portEtcdClient)}, Cluster: "default",
		AuditLog: d.AuditLog}
	l, err := cluster.Open(ctx, d.log)
	if err != nil {
		return stored, nil, nil, err
	}
	defer func() { _ = l.Close() }()
	// A new data directory has no layout, and Refresh refuses it as it refuses a layout that cannot be
	// used. Init tells the two apart: it makes no layout where there is one.
	stored, err = l.Refresh(ctx)
	if err != nil && errors.Is(err, allocator.Refused) {
		made, initErr := admin.New(l, admin.DefaultConfig()).Init(ctx, layout, "march dev")
		if initErr == nil || allocator.KindOf(initErr) != allocator.Exists {
			stored, err = made, initErr
		}
	}
	if err == nil {
		names, slots, err = devSlots(ctx, l, stored, d.Data.Dir)
	}
	return stored, names, slots, err
}

// serve runs the console and an instance of each room by their commands.
func (d *dev) serve(ctx context.Context, etcd *embedded.Server, names []allocator.Room, slots map[allocator.Room]int,
	stored record.Layout) (err error) {
	if d.Secured {
		if d.tls, err = makeDevTLS(filepath.Join(d.Data.Dir, "tls"), names, d.AllowedHosts); err != nil {
			return err
		}
	}
	tokens := filepath.Join(d.Data.Dir, "tinyid-tokens")
	if err := os.WriteFile(tokens, []byte(devToken+" *\n"), 0o600); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	begun := make(chan runner, 1+len(names))
	run := func(what string, command func(*common) *cobra.Command, args ...string) {
		listen := func(where, address, _ string) (net.Listener, error) {
			_, port, _ := strings.Cut(where, " ")
			return d.Ports.Take(what+" "+port, address)
		}
		cmd := command(&common{output: "text", logLevel: cmp.Or(d.common.logLevel, "warn"),
			logFormat: d.common.logFormat, stdout: io.Discard, stderr: d.common.stderr, within: &within{listen, begun}})
		args = append(append(args, "--etcd", d.Ports.Address(portEtcdClient), "--audit-log", d.AuditLog),
			d.tls.Servers(strings.Fields(what)[0])...)
		// These were read already.
		lists := map[string][]string{"allowed-hosts": d.AllowedHosts, "opaque-key": d.OpaqueKeys}
		group.Go(func() error {
			cmd.SetContext(ctx)
			if err := cmd.ParseFlags(args); err != nil {
				return err
			}
			for name, list := range lists {
				if f := cmd.Flags().Lookup(name); f != nil && len(list) > 0 {
					if err := f.Value.(pflag.SliceValue).Replace(list); err != nil { //nolint:errcheck // a list's value is one
						return err
					}
					f.Changed = true
				}
			}
			return cmd.RunE(cmd, cmd.Flags().Args())
		})
	}
	run("console", newConsole, "--grpc", d.Ports.Address(portConsoleGRPC), "--http", d.Ports.Address(portConsoleHTTP),
		"--tls-ca", d.tls.Settings()["tls-ca"])
	for _, name := range names {
		run("room "+string(name), newRoom, d.roomArgs(name, slots[name], tokens)...)
	}
	// Rooms go on without etcd. In march dev it cannot come back, so its end is the end of all.
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case err := <-etcd.Failed():
			return fmt.Errorf("etcd stopped: %w", err)
		}
	})
	group.Go(func() error { return d.announce(ctx, begun, names, slots, stored) })
	return group.Wait()
}

// roomArgs are the arguments of a room at the ports of a slot.
func (d *dev) roomArgs(name allocator.Room, slot int, tokens string) []string {
	journal := d.Data.Journal()
	if d.Data.Temporary {
		journal = "off" // it is for the next process, and a temporary directory has none
	}
	return append(d.Ports.Args(slot), string(name), "--name", "dev", "--create-tags", "--journal", journal,
		"--drain", "2s", // ^C ends march dev soon, also while a client streams
		"--leaf-snowflake", string(d.Doors.LeafSnowflake), "--cosid-machines", string(d.Doors.CosIDMachines),
		"--tinyid-tokens", tokens)
}

// announce prints the addresses of all servers once all rooms are ready, so that the commands
// which it shows work at once, and a script can wait for its lines.
func (d *dev) announce(ctx context.Context, begun <-chan runner, names []allocator.Room,
	slots map[allocator.Room]int, stored record.Layout) error {
	for range 1 + len(names) {
		var server runner
		select {
		case <-ctx.Done():
			return nil
		case server = <-begun:
		}
		for r, is := server.(*room.Server); is && r.Ready() != nil; {
			if !store.Sleep(ctx, 5*time.Millisecond) {
				return nil
			}
		}
	}
	d.Ports.FreeAll() // those of rooms that the layout does not have
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprint(w, "March is running; ^C stops it.\n\n")
	if base := d.Ports.Base; !d.cmd.Flags().Changed("base-port") && base != devBasePort {
		put(w, "Ports from %d on are in use by another program, so these begin at %d.\n\n", devBasePort, base)
	}
	d.Ports.Lines(w, urlScheme(d.Secured), names, slots, stored.Layout)
	if d.Data.Temporary {
		put(w, "  data\t%s, temporary: removed at the end (--data-dir DIR keeps it)\n", d.Data.Dir)
	} else {
		put(w, "  data\t%s\n", d.Data.Dir)
	}
	if d.tls != nil {
		put(w, "  tls\t%s\tpolicy.yaml; the page takes the token in operator.token\n", d.tls.Dir)
	}
	note, room, console := d.context(d.Ports.Address(portRoomGRPC + slots[names[0]]))
	self := selfName()
	_, _ = fmt.Fprintf(w, "\n%sTry, in another terminal:\n\n  %s id next order --count 5%s\n"+
		"  %s id decode order 1%s\n  %s tag show order%s\n\n", note, self, room, self, room, self, console)
	_ = w.Flush()
	if _, err := text.WriteTo(d.common.stdout); err != nil {
		d.log.Warn("could not print the servers' addresses", "error", err)
	}
	return nil
}

// context offers the context of this cluster. It returns the flags that a command needs to reach the
// cluster: of a command that calls a room, and of one that calls the console. note is a text for the user,
// empty or lines that end with an empty one.
func (d *dev) context(room string) (note, roomFlags, consoleFlags string) {
	of := map[string]string{"console": d.Ports.Address(portConsoleGRPC), "room": room,
		"etcd": d.Ports.Address(portEtcdClient)}
	security := d.tls.Settings()
	maps.Copy(of, security)
	name, stop, err := announceContext(d.Ports.Base, of)
	if err != nil {
		d.log.Info("this cluster has no context", "error", err)
		secured := ""
		for _, setting := range sortedKeys(security) {
			secured += fmt.Sprintf(" --%s %q", setting, security[setting])
		}
		return "", " --room " + room + secured, " --console " + of["console"] + secured
	}
	d.closers = append(d.closers, stop)
	named, inUse := " --context "+name, ""
	if err := withContexts(func(f *contextFile) (bool, error) {
		inUse = cmp.Or(os.Getenv(variable("context")), f.InUse())
		return false, nil
	}); err != nil {
		d.log.Warn("other commands fail", "error", err)
	}
	if inUse != name {
		return fmt.Sprintf("Context %s is in use: commands without%s do not call this cluster.\n\n", inUse, named),
			named, named
	}
	for setting := range of {
		if _, given := os.LookupEnv(variable(setting)); given { // in the other terminal, too, perhaps
			return "", named, named
		}
	}
	return "", "", ""
}

// close closes everything, in the reverse order of opening.
func (d *dev) close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		d.closers[i]()
	}
}

// `march dev --tls` needs a CA for one run, the certificates of the servers, of an operator and of a service, a
// policy, and the operator's token.

// devCALife is how long the CA lasts: longer than a cluster for development runs.
const devCALife = 365 * 24 * time.Hour

// devPolicy is what each certificate may do.
const devPolicy = `# Who may do what in march dev --tls. It is made at each start, and read again when it changes.
grants:
  - {subjects: ["spiffe://dev/operator", "token:operator"], roles: admin}
  - {subjects: "spiffe://dev/march/*", roles: viewer} # the console, which asks the rooms
  - {subjects: "spiffe://dev/service", roles: issuer}
`

// devTLS is a folder with what was made. A nil TLS is a cluster without it.
type devTLS struct{ Dir string }

// makeDevTLS makes a folder, and writes over what is there. hosts are names, besides localhost, by
// which the servers may be called.
func makeDevTLS(dir string, rooms []allocator.Room, hosts []string) (*devTLS, error) {
	dir, err := filepath.Abs(dir) // commands may run elsewhere
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ca, err := certs.New("march dev", devCALife)
	if err != nil {
		return nil, err
	}
	if _, err := ca.WriteCA(dir, "ca"); err != nil {
		return nil, err
	}
	hosts = append([]string{"localhost", "127.0.0.1"}, hosts...)
	var ofRooms []string
	for _, room := range rooms {
		ofRooms = append(ofRooms, "spiffe://dev"+tlsfiles.Instance(string(room), "dev")[0])
	}
	for name, leaf := range map[string]certs.Leaf{
		"room": {Name: "march dev room", Hosts: hosts, URIs: ofRooms},
		// The console is a client of the rooms, too, so it is one subject.
		"console":  {Name: "march dev console", Hosts: hosts, URIs: []string{"spiffe://dev/march/console"}},
		"operator": {Name: "operator", URIs: []string{"spiffe://dev/operator"}},
		"service":  {Name: "service", URIs: []string{"spiffe://dev/service"}},
	} {
		if _, err := ca.Write(dir, name, leaf); err != nil {
			return nil, err
		}
	}
	token, line, err := access.NewToken("operator", time.Time{})
	if err != nil {
		return nil, err
	}
	for name, content := range map[string]string{"policy.yaml": devPolicy, "tokens": line + "\n",
		"operator.token": token + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	return &devTLS{dir}, nil
}

// Servers are the arguments of the rooms or of the console.
func (t *devTLS) Servers(kind string) []string {
	if t == nil {
		return nil
	}
	at := func(name string) string { return filepath.Join(t.Dir, name) }
	return []string{"--tls-client-ca", at("ca.pem"), "--tls-cert", at(kind + ".pem"), "--tls-key",
		at(kind + "-key.pem"), "--policy", at("policy.yaml"), "--tokens", at("tokens")}
}

// Settings are those with which commands call as the operator; none without TLS.
func (t *devTLS) Settings() map[string]string {
	if t == nil {
		return nil
	}
	at := func(name string) string { return filepath.Join(t.Dir, name) }
	return map[string]string{"tls-ca": at("ca.pem"), "tls-cert": at("operator.pem"), "tls-key": at("operator-key.pem")}
}
