package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/embedded"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// processes is a whole cluster: etcd, and an instance of each room. These are the march that
// users run, in processes of their own.
type processes struct {
	*part
	dir   string
	etcd  *process
	store store.Store
	admin *admin.Admin
	rooms map[allocator.Room]*exec.Cmd
	// roomsAt and consoleAt are where rooms and the console reach etcd; empty for its own address.
	roomsAt, consoleAt string
}

// prefix is the prefix of all keys of the cluster.
const prefix = "/march/default/"

// model is the tag that all others are copies of.
const model = allocator.Tag("model")

// patience bounds each wait.
const patience = 5 * time.Minute

// processes starts etcd and makes a cluster with a layout, and the model.
func (p *part) processes(layout allocator.Layout) *processes {
	if _, err := os.Stat(p.march); err != nil {
		p.Fatalf("%v; build it first (make build), or say where it is (-march)", err)
	}
	c := p.bare(false, layout)
	_ = must(c.admin.CreateTag(p.ctx, model, record.DefaultTag(), "scale"))
	return c
}

// bare starts etcd, which syncs its log or not, with settings of its environment, and
// makes a cluster with a layout.
func (p *part) bare(sync bool, layout allocator.Layout, env ...string) *processes {
	c := &processes{part: p, dir: p.TempDir(), rooms: make(map[allocator.Room]*exec.Cmd)}
	c.etcd = p.startEtcd(c.dir, "", sync, env...)
	c.store = must(store.NewEtcd(store.EtcdConfig{Endpoints: []string{c.etcd.Address}}))
	c.admin = admin.New(p.ledger(c.store), admin.DefaultConfig())
	_ = must(c.admin.Init(p.ctx, layout, "scale"))
	p.Cleanup(c.stopRooms)
	return c
}

// ledger returns a ledger with long timeouts, for a busy machine.
func (p *part) ledger(etcd store.Store) *ledger.Ledger {
	cfg := ledger.DefaultConfig()
	cfg.TryTimeout = 30 * time.Second
	l := must(ledger.New(etcd, cfg))
	p.Cleanup(func() { _ = l.Close() })
	return l
}

// startRooms starts an instance of each room, and returns their addresses once all answer. They
// have no journals: those would share the disk with etcd here, and a recover does not read the
// journal of an instance that runs.
func (c *processes) startRooms(rooms ...allocator.Room) map[allocator.Room]string {
	for _, room := range rooms {
		c.launch(room)
	}
	addresses := make(map[allocator.Room]string)
	c.await("all rooms to register", func() bool {
		all, _, err := c.admin.Instances(c.ctx, "")
		for _, i := range all {
			addresses[i.Room] = i.Address
		}
		return err == nil && len(addresses) == len(rooms)
	})
	for room, address := range addresses {
		client := marchv1.NewRoomServiceClient(c.dial(address))
		c.await(fmt.Sprintf("room %s to answer", room), func() bool {
			_, err := client.ListChains(c.ctx, &marchv1.ListChainsRequest{})
			return err == nil
		})
	}
	return addresses
}

// launch starts an instance of a room, with more flags, and does not wait for it.
func (c *processes) launch(room allocator.Room, flags ...string) {
	c.rooms[room] = c.begin(string(room), append([]string{"room", string(room), "--name", "one",
		"--etcd", cmp.Or(c.roomsAt, c.etcd.Address), "--grpc", "127.0.0.1:0", "--http", "", "--journal", "off",
		"--idle-after", "24h"}, flags...)...)
}

// begin starts march, with a log by this name.
func (c *processes) begin(name string, args ...string) *exec.Cmd {
	log := must(os.Create(filepath.Join(c.dir, name+".log")))
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.CommandContext(c.ctx, c.march, args...)
	cmd.Stdout, cmd.Stderr = log, log
	c.check(cmd.Start())
	return cmd
}

// end ends a process of march cleanly.
func (c *processes) end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil && c.ctx.Err() == nil {
		c.Fatalf("%v: %v", cmd.Args, err)
	}
}

// stopRooms stops all instances.
func (c *processes) stopRooms() {
	for room, cmd := range c.rooms {
		delete(c.rooms, room)
		c.end(cmd)
	}
}

// fill creates tags that are copies of the model: of its settings, and of its mark in each room
// that leased it. No room runs.
func (c *processes) fill(tags int) {
	var like []store.KV
	c.each(prefix, func(kv store.KV) {
		if strings.HasSuffix(kv.Key, "/"+string(model)) {
			like = append(like, kv)
		}
	})
	now := must(c.store.Status(c.ctx)).Revision
	c.check(c.etcd.close())
	c.check(addKeys(c.dir, now, tags*len(like), func(n int) (key string, value []byte) {
		kv := like[n%len(like)]
		return strings.TrimSuffix(kv.Key, string(model)) + string(tagName(n/len(like))), kv.Value
	}))
	c.etcd = c.startEtcd(c.dir, "", false)
}

// each calls use with all keys that begin with start, in their order.
func (c *processes) each(start string, use func(store.KV)) {
	const page = 10_000
	for from, n := start, page; n == page; {
		get := &store.Get{Interval: store.Interval{Key: from, End: store.PrefixEnd(start)}, Limit: page}
		answer := must(c.store.Txn(c.ctx, store.Txn{Then: []store.Op{{Get: get}}}))
		n = len(answer.Got[0])
		for _, kv := range answer.Got[0] {
			use(kv)
			from = kv.Key + "\x00"
		}
	}
}

// restore takes etcd back to a backup. The rooms run on.
func (c *processes) restore(backup string) {
	c.check(c.etcd.close())
	c.etcd = c.startEtcd(c.dir, backup, true)
}

// equal returns a layout with equal ranges.
func equal(rooms ...allocator.Room) allocator.Layout {
	slices.Sort(rooms)
	return must(allocator.EqualLayout(int64(100*len(rooms)), rooms))
}

// await polls until done returns true, or ends the part if that takes too long.
func (p *part) await(what string, done func() bool) {
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		p.check(p.ctx.Err())
		if time.Now().After(end) {
			p.Fatalf("waiting for %s", what)
		}
	}
}

// dial connects to a room. The connection ends with the part.
func (p *part) dial(address string) *grpc.ClientConn { return testcluster.Dial(p, address) }

// dialFrom connects to a room from an address of this machine, with a wrapper around each connection.
func dialFrom(address, from string, wrap func(net.Conn) net.Conn) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := testcluster.DialFrom(ctx, from, address)
			if err != nil {
				return nil, err
			}
			return wrap(conn), nil
		}))
}

// leasing is how many rooms lease each tag.
const leasing = 3

// leased returns a cluster of rooms with a number of tags, all leased in the first three rooms. No room runs.
func (p *part) leased(tags int, rooms ...allocator.Room) *processes {
	c := p.processes(equal(rooms...))
	addresses := c.startRooms(rooms...)
	for _, room := range rooms[:min(leasing, len(rooms))] {
		c.lease(addresses[room], model)
	}
	c.stopRooms()
	c.fill(tags)
	p.Logf("%d tags are in etcd", tags)
	return c
}

// lease makes a room issue an ID of a tag.
func (p *part) lease(address string, tag allocator.Tag) {
	_ = must(marchv1.NewIDServiceClient(p.dial(address)).Next(p.ctx, &marchv1.NextRequest{Tag: string(tag)},
		grpc.WaitForReady(true)))
}

// etcdReady is how long etcd may take to start: it reads all keys.
const etcdReady = 5 * time.Minute

// startEtcd starts etcd in a process of its own. Its data is in dir, from before or from a
// backup. With sync it syncs its log, as in production; a measurement that only fills etcd does
// not need that. env is added to this program's environment.
func (p *part) startEtcd(dir, backup string, sync bool, env ...string) *process {
	return p.start(env, "child-etcd", dir, backup, fmt.Sprint(sync))
}

// childEtcd serves etcd.
func childEtcd(args []string) (address string, answer func(string) reply, end func() error, err error) {
	dir, backup := args[0], args[1]
	cfg := embedded.Config{
		Dir:    filepath.Join(dir, "data"),
		Client: "unix://" + filepath.Join(dir, "c"), Peer: "unix://" + filepath.Join(dir, "p"),
		NoSync: args[2] != "true", Quota: 8 << 30,
	}
	if backup != "" {
		if err := restoreBackup(backup, cfg); err != nil {
			return "", nil, nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), etcdReady)
	defer cancel()
	server, err := embedded.Start(ctx, cfg)
	if err != nil {
		return "", nil, nil, err
	}
	return cfg.Client, func(string) reply { return reply{Error: "no commands"} }, func() error {
		server.Close()
		return nil
	}, nil
}

// addKeys writes keys into the database of an etcd that does not run, each with a revision of its own after the last
// one. Four million of them would take minutes through etcd.
func addKeys(dir string, last int64, n int, at func(int) (key string, value []byte)) error {
	const atOnce = 100_000
	db, err := bbolt.Open(filepath.Join(dir, "data", "member", "snap", "db"), 0o600,
		&bbolt.Options{NoSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for from := 0; from < n; from += atOnce {
		if err := db.Update(func(tx *bbolt.Tx) error {
			keys := tx.Bucket([]byte("key"))
			keys.FillPercent = 1 // revisions only grow
			for i := from; i < min(from+atOnce, n); i++ {
				key, value := at(i)
				rev := last + 1 + int64(i)
				kv, err := proto.Marshal(&mvccpb.KeyValue{Key: []byte(key), Value: value, CreateRevision: rev,
					ModRevision: rev, Version: 1})
				if err != nil {
					return err
				}
				if err := keys.Put(mvcc.RevToBytes(mvcc.Revision{Main: rev}, mvcc.NewRevBytes()), kv); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// saveBackup saves a backup as `etcdctl snapshot save` does.
func saveBackup(ctx context.Context, endpoint, path string) error {
	cfg := clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()}
	_, err := snapshot.NewV3(zap.NewNop()).Save(ctx, cfg, path)
	return err
}

// restoreBackup restores a backup as `etcdutl snapshot restore` does.
func restoreBackup(path string, cfg embedded.Config) error {
	if err := os.RemoveAll(cfg.Dir); err != nil {
		return err
	}
	return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: "dev", OutputDataDir: cfg.Dir, PeerURLs: []string{cfg.Peer},
		InitialCluster: "dev=" + cfg.Peer, InitialClusterToken: "etcd-cluster",
	})
}
