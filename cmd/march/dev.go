package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/embedded"
	"github.com/march-id/march/console"
	"github.com/march-id/march/room"
)

// dev is a whole cluster in one process.
type dev struct {
	common   *common
	dataDir  string
	basePort int
	rooms    []string
	boundary int64

	log       hclog.Logger
	temporary bool
	listeners map[string]net.Listener
	closers   []func() // in the order of opening
}

func newDev(c *common) *cobra.Command {
	d := &dev{common: c}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster here: etcd, rooms and a console, to try things",
		Long: `Run a whole cluster in one process: etcd, rooms and a console, all on 127.0.0.1.

Ports: console HTTP on the base port and gRPC on base+1, the i-th room's gRPC on
base+10+i and HTTP on base+20+i, etcd's client and peer ports on base+30 and
base+31. Tags are created when they are first asked for.

--rooms and --boundary count at the first start only: then the rooms get equal
ranges. Later the layout that the data directory holds does.`,
		Example: `  march dev
  march dev --data-dir ./data --rooms eu-1,us-1,ap-1 --boundary 1200`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer d.close()
			return ignoreCanceled(cmd.Context(), d.run(cmd.Context(), cmd))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&d.dataDir, "data-dir", "", "directory that keeps everything (default a temporary one, removed at the end)")
	flags.IntVar(&d.basePort, "base-port", 7000, "the first port, 1 to 65504")
	flags.StringSliceVar(&d.rooms, "rooms", []string{"a", "b"}, "the rooms, up to 10")
	flags.Int64Var(&d.boundary, "boundary", 1000, "the boundary")
	return cmd
}

// maxDevRooms is how many ports lie between the rooms' gRPC and HTTP ports.
const maxDevRooms = 10

func (d *dev) address(offset int) string {
	return fmt.Sprintf("127.0.0.1:%d", d.basePort+offset)
}

func (d *dev) run(ctx context.Context, cmd *cobra.Command) (err error) {
	if d.log, err = d.common.logger(hclog.Warn); err != nil {
		return err
	}
	layout, err := d.firstLayout()
	if err != nil {
		return usageError{err}
	}
	if d.basePort < 1 || d.basePort > 65535-31 {
		return usageError{allocator.Errorf(allocator.Invalid, "base-port: %d; allowed: 1 to %d", d.basePort, 65535-31)}
	}
	if err := d.openData(); err != nil {
		return err
	}
	etcd, err := d.startEtcd(ctx)
	if err != nil {
		return err
	}
	admin, err := d.openLedger(ctx)
	if err != nil {
		return err
	}
	record, err := admin.Refresh(ctx)
	if err != nil && errors.Is(err, allocator.Refused) {
		record, err = admin.Init(ctx, layout, "march dev")
	}
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("rooms") && !record.Layout.Equal(layout) {
		d.log.Warn("--rooms and --boundary are not used: the data directory has a layout already", "data_dir", d.dataDir, "version", record.Layout.Version)
	}
	return d.serve(ctx, etcd, admin, record)
}

// firstLayout checks --rooms and --boundary.
func (d *dev) firstLayout() (allocator.Layout, error) {
	if n := len(d.rooms); n < 1 || n > maxDevRooms {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "rooms: %d named; allowed: 1 to %d", n, maxDevRooms)
	}
	rooms := make([]allocator.Room, len(d.rooms))
	for i, name := range d.rooms {
		var err error
		if rooms[i], err = allocator.ParseRoom(strings.TrimSpace(name)); err != nil {
			return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "rooms: %w", err)
		}
	}
	if d.boundary < int64(len(rooms)) {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "boundary: %d; allowed: at least one residue for each of the %d rooms, up to %d", d.boundary, len(rooms), int64(allocator.MaxID))
	}
	return allocator.EqualLayout(d.boundary, rooms)
}

// openData makes and locks the data directory.
func (d *dev) openData() error {
	if d.dataDir == "" {
		dir, err := os.MkdirTemp("", "march-dev-")
		if err != nil {
			return allocator.Errorf(allocator.Invalid, "temporary data directory: %w", err)
		}
		d.dataDir, d.temporary = dir, true
		d.closers = append(d.closers, func() { _ = os.RemoveAll(dir) })
	}
	if err := os.MkdirAll(d.dataDir, 0o700); err != nil {
		return allocator.Errorf(allocator.Invalid, "data-dir: %w", err)
	}
	path := filepath.Join(d.dataDir, "lock")
	lock, err := fileutil.TryLockFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return allocator.Errorf(allocator.Refused, "data-dir: %s is in use by another march dev", d.dataDir)
	} else if err != nil {
		return allocator.Errorf(allocator.Invalid, "data-dir: %w", err)
	}
	d.closers = append(d.closers, func() { _ = lock.Close() })
	return nil
}

// startEtcd starts etcd and opens every listener: all ports are known to be
// free before anything runs.
func (d *dev) startEtcd(ctx context.Context) (*embedded.Server, error) {
	d.listeners = make(map[string]net.Listener)
	open := func(what string, offset int) error {
		l, err := listen(what, d.address(offset), "base-port")
		if err == nil {
			d.listeners[what] = l
			d.closers = append(d.closers, func() { _ = l.Close() })
		}
		return err
	}
	if err := open("console HTTP", 0); err != nil {
		return nil, err
	}
	if err := open("console gRPC", 1); err != nil {
		return nil, err
	}
	for i := range maxDevRooms {
		err := open(fmt.Sprintf("room %d gRPC", i), 10+i)
		if err == nil {
			err = open(fmt.Sprintf("room %d HTTP", i), 20+i)
		}
		if err != nil && i < len(d.rooms) { // a layout on disk may have more rooms: see room
			return nil, err
		}
	}
	for offset, what := range map[int]string{30: "etcd client", 31: "etcd peer"} {
		l, err := listen(what, d.address(offset), "base-port")
		if err != nil {
			return nil, err
		}
		_ = l.Close() // etcd opens it itself
	}
	start, cancel := context.WithTimeout(ctx, embedded.ReadyWithin)
	defer cancel()
	etcd, err := embedded.Start(start, embedded.Config{
		Dir: filepath.Join(d.dataDir, "etcd"), Client: "http://" + d.address(30), Peer: "http://" + d.address(31),
		Logger: d.etcdLogger(),
	})
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, etcd.Close)
	return etcd, nil
}

// etcdLogger is quiet unless a level was asked for: etcd logs errors in the
// course of a first start and of a clean stop. That it failed, Failed tells.
func (d *dev) etcdLogger() hclog.Logger {
	if d.common.logLevel == "" {
		return nil
	}
	return d.log.Named("etcd")
}

// openLedger opens a ledger with a connection of its own, as a process of its
// own would.
func (d *dev) openLedger(ctx context.Context) (*ledger.Ledger, error) {
	l, err := openLedger(ctx, ledger.EtcdConfig{Endpoints: []string{d.address(30)}, Logger: d.log}, "default", "", d.log)
	if err == nil {
		d.closers = append(d.closers, func() { _ = l.Close() })
	}
	return l, err
}

// serve runs the console and an instance of each room.
func (d *dev) serve(ctx context.Context, etcd *embedded.Server, admin *ledger.Ledger, record ledger.LayoutRecord) error {
	names := record.Layout.Rooms()
	if len(names) > maxDevRooms {
		return allocator.Errorf(allocator.Refused, "the layout in %s has %d rooms; march dev runs up to %d", d.dataDir, len(names), maxDevRooms)
	}
	consoleConfig := console.DefaultConfig()
	consoleConfig.Ledger, consoleConfig.Logger = admin, d.log.Named("console")
	consoleConfig.GRPC, consoleConfig.HTTP = d.listeners["console gRPC"], d.listeners["console HTTP"]
	cons, err := console.New(consoleConfig)
	if err != nil {
		return err
	}
	servers, rooms := []runner{cons}, []*room.Server{}
	for i, name := range names {
		server, err := d.room(ctx, i, name)
		if err != nil {
			return err
		}
		servers, rooms = append(servers, server), append(rooms, server)
	}
	for i := len(names); i < maxDevRooms; i++ {
		for _, kind := range []string{"gRPC", "HTTP"} {
			if l := d.listeners[fmt.Sprintf("room %d %s", i, kind)]; l != nil {
				_ = l.Close()
			}
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, server := range servers {
		group.Go(func() error { return server.Run(ctx) })
	}
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case err := <-etcd.Failed():
			return fmt.Errorf("etcd stopped: %w", err)
		}
	})
	group.Go(func() error { return d.announce(ctx, rooms, record) })
	return group.Wait()
}

func (d *dev) room(ctx context.Context, i int, name allocator.Room) (*room.Server, error) {
	l, err := d.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger, cfg.Build = name, "dev", l, build()
	cfg.GRPC, cfg.HTTP = d.listeners[fmt.Sprintf("room %d gRPC", i)], d.listeners[fmt.Sprintf("room %d HTTP", i)]
	cfg.CreateTags = true
	cfg.Drain = 2 * time.Second
	cfg.Logger = d.log.Named("room")
	if cfg.GRPC == nil || cfg.HTTP == nil {
		return nil, allocator.Errorf(allocator.Refused, "a port of room %s (%s or %s) is in use; choose others with --base-port", name, d.address(10+i), d.address(20+i))
	}
	return room.New(cfg)
}

// announce says what runs where once all rooms are ready.
func (d *dev) announce(ctx context.Context, rooms []*room.Server, record ledger.LayoutRecord) error {
	ready := time.NewTicker(5 * time.Millisecond)
	defer ready.Stop()
	for _, r := range rooms {
		for r.Ready() != nil {
			select {
			case <-ctx.Done():
				return nil
			case <-ready.C:
			}
		}
	}
	w := tabwriter.NewWriter(d.common.stdout, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprint(w, "March is running; ^C stops it.\n\n")
	_, _ = fmt.Fprintf(w, "  console\tgRPC %s\tHTTP %s\n", d.address(1), d.address(0))
	for i, name := range record.Layout.Rooms() {
		_, _ = fmt.Fprintf(w, "  room %s\tgRPC %s\tHTTP %s\tissues IDs with residue in %v mod %d\n", name, d.address(10+i), d.address(20+i), record.Layout.Ranges[name], record.Layout.Boundary)
	}
	_, _ = fmt.Fprintf(w, "  etcd\tclient %s\tpeer %s\n", d.address(30), d.address(31))
	if d.temporary {
		_, _ = fmt.Fprintf(w, "  data\t%s, temporary: removed at the end (--data-dir DIR keeps it)\n", d.dataDir)
	} else {
		_, _ = fmt.Fprintf(w, "  data\t%s\n", d.dataDir)
	}
	self, flags := selfName(), [2]string{}
	if d.basePort != 7000 {
		flags = [2]string{" --room " + d.address(10), " --console " + d.address(1)}
	}
	_, _ = fmt.Fprintf(w, "\nTry, in another terminal:\n\n  %s id next order --count 5%s\n  %s id decode order 1%s\n  %s tag show order%s\n\n",
		self, flags[0], self, flags[0], self, flags[1])
	return w.Flush()
}

// selfName returns how this program was called, for examples.
func selfName() string {
	if path, err := os.Executable(); err == nil && strings.Contains(path, "go-build") {
		return "go run ./cmd/march"
	}
	return os.Args[0]
}

// close takes everything down, in the opposite order of opening.
func (d *dev) close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		d.closers[i]()
	}
}
