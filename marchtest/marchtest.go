// Package marchtest runs March in the process of a test: an etcd, rooms and a console, with all of which a test may do
// what happens in production. It is a module of its own, so that a service needs its dependencies for tests alone.
//
//	func TestOrders(t *testing.T) {
//		march := marchtest.Start(t, marchtest.Rooms("eu", "us"), marchtest.Boundary(1000))
//		service := newService(march.Client("eu"))
//		...
//		march.StopEtcd() // the service goes on
//	}
//
// Everything ends with the test. For a unit test that needs no room, see package clienttest.
//
// Your go.mod requires this module and github.com/march-id/march at the same version, the release that your rooms run:
// go get github.com/march-id/march@VERSION github.com/march-id/march/marchtest@VERSION. The replace directive of this
// module's go.mod, which has both build from one checkout, holds for no module but this one. To build against a
// checkout of your own, replace both modules in your go.mod, as clients/go/example does.
package marchtest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// Option changes a cluster before it starts.
type Option func(*options)

type options struct {
	rooms, tags []string
	boundary    int64
	instances   int
	change      func(*room.Config)
}

// Rooms names the rooms, which have equal parts of the boundary in this order. Default a and b.
func Rooms(names ...string) Option { return func(o *options) { o.rooms = names } }

// Boundary is the modulus of the ranges. Default 1000.
func Boundary(boundary int64) Option { return func(o *options) { o.boundary = boundary } }

// Tags makes these tags, with default settings. Default: a tag is made when an ID of it is first asked for.
func Tags(names ...string) Option { return func(o *options) { o.tags = names } }

// Instances is how many instances each room has. Default 1.
func Instances(n int) Option { return func(o *options) { o.instances = n } }

// Config changes the settings of each instance.
func Config(change func(*room.Config)) Option { return func(o *options) { o.change = change } }

// Cluster is a running cluster. Its methods fail the test where they cannot do what they should, and are for the
// test's own goroutine.
type Cluster struct {
	tb      testing.TB
	options options
	cluster *testcluster.Cluster
	console *testcluster.Console
	rooms   map[string][]*instance
}

// instance is an instance of a room. Its addresses stay when it is started again.
type instance struct {
	*testcluster.Room
	admin marchv1.RoomServiceClient
	skew  atomic.Int64
	life  *life // nil while it does not run
}

// Start starts a cluster, which runs until the test ends, and returns when its rooms have joined it. It fails in a
// bubble of testing/synctest: a program's own connections to it would stop the bubble's clock.
func Start(tb testing.TB, given ...Option) *Cluster {
	tb.Helper()
	if ledgertest.InBubble() {
		tb.Fatal("marchtest in a bubble of testing/synctest: its etcd and its rooms need the real clock and real " +
			"sockets; call Start outside, or test with clienttest")
	}
	o := options{rooms: []string{"a", "b"}, boundary: 1000, instances: 1}
	for _, option := range given {
		option(&o)
	}
	c := &Cluster{tb: tb, options: o, cluster: testcluster.New(tb), rooms: make(map[string][]*instance)}
	names := make([]allocator.Room, len(o.rooms))
	for k, name := range o.rooms {
		names[k] = allocator.Room(name)
	}
	layout, err := allocator.EqualLayout(o.boundary, names)
	if err != nil {
		tb.Fatal(err)
	}
	c.cluster.Init(layout, "marchtest")
	for _, name := range o.tags {
		c.cluster.Tag(nil, "marchtest", allocator.Tag(name))
	}
	c.console = c.cluster.Console(nil)
	for _, name := range o.rooms {
		for range o.instances {
			i := &instance{}
			c.start(name, len(c.rooms[name]), i)
			c.rooms[name] = append(c.rooms[name], i)
		}
	}
	return c
}

// start starts an instance for the first time, or again.
func (c *Cluster) start(in string, number int, i *instance) {
	c.tb.Helper()
	over := &life{Store: c.cluster.Open(c.tb)}
	grpc, http := "", ""
	if i.Room != nil {
		grpc, http = i.Address, i.HTTP
	}
	name := allocator.Instance(fmt.Sprintf("%s-%d", in, number+1))
	i.Room = c.cluster.Room(allocator.Room(in), name, func(cfg *room.Config) {
		cfg.Ledger = c.cluster.LedgerOver(over, func(cfg *ledger.Config) {
			cfg.Now = func() time.Time { return time.Now().Add(time.Duration(i.skew.Load())) }
		})
		cfg.GRPC, cfg.HTTP = testcluster.Listen(c.tb, grpc), testcluster.Listen(c.tb, http)
		cfg.CreateTags, cfg.Drain = len(c.options.tags) == 0, time.Second
		if c.options.change != nil {
			c.options.change(cfg)
		}
	})
	i.admin, i.life = marchv1.NewRoomServiceClient(i.Conn), over
}

// of returns the instances of a room.
func (c *Cluster) of(name string) []*instance {
	c.tb.Helper()
	if len(c.rooms[name]) == 0 {
		c.tb.Fatalf("there is no room %s; rooms: %v", name, c.options.rooms)
	}
	return c.rooms[name]
}

// Addresses returns the gRPC addresses of a room's instances, for client.Options.Addresses.
func (c *Cluster) Addresses(name string) (addresses []string) {
	c.tb.Helper()
	for _, i := range c.of(name) {
		addresses = append(addresses, i.Address)
	}
	return addresses
}

// URLs returns the addresses of a room's instances for HTTP/JSON, http://HOST:PORT.
func (c *Cluster) URLs(name string) (urls []string) {
	c.tb.Helper()
	for _, i := range c.of(name) {
		urls = append(urls, "http://"+i.HTTP)
	}
	return urls
}

// Console returns the gRPC address of the console, for client.Discover.
func (c *Cluster) Console() string {
	return strings.TrimPrefix(c.console.Conn.Target(), "passthrough:///")
}

// Client returns a client of a room, with its options as changes modify them. It is closed when the test ends.
func (c *Cluster) Client(name string, changes ...func(*client.Options)) *client.Client {
	c.tb.Helper()
	options := client.Options{Addresses: c.Addresses(name)}
	for _, change := range changes {
		change(&options)
	}
	ids, err := client.New(c.tb.Context(), options)
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(ids.Close)
	return ids
}

// Layout returns the layout that etcd has: Move, a migration of the console, or Restore may have changed it.
// It asks etcd, and fails the test where etcd does not answer.
func (c *Cluster) Layout() client.Layout {
	c.tb.Helper()
	l := c.cluster.Ledger() // a new one remembers nothing of the time before a Restore
	defer func() { _ = l.Close() }()
	stored, err := l.Refresh(context.WithoutCancel(c.tb.Context())) // a cleanup may ask, too
	if err != nil {
		c.tb.Fatalf("layout: %v", err)
	}
	return stored.Layout
}

// Move gives rooms the ranges [lower, upper), and leaves the other rooms theirs. A room that is new has no instances.
// Move returns when each instance that runs serves the new layout.
func (c *Cluster) Move(ranges map[string][2]int64) {
	c.tb.Helper()
	next := c.Layout()
	next.Ranges = maps.Clone(next.Ranges)
	for name, r := range ranges {
		next.Ranges[allocator.Room(name)] = allocator.Range{Lower: r[0], Upper: r[1]}
	}
	next.Version = c.cluster.Change(next, "marchtest")
	for name, all := range c.rooms {
		for _, i := range all {
			testcluster.Await(c.tb, "room "+name+" serves the new layout", func() bool {
				ctx, cancel := context.WithTimeout(c.tb.Context(), time.Second)
				defer cancel()
				answer, err := i.admin.GetInstance(ctx, &marchv1.GetInstanceRequest{})
				return i.life == nil || err == nil && answer.GetStatus().GetVersion() >= next.Version
			})
		}
	}
}

// StopEtcd stops etcd: rooms and clients go on with what they hold.
func (c *Cluster) StopEtcd() { c.cluster.Etcd.Stop() }

// StartEtcd starts it again.
func (c *Cluster) StartEtcd() {
	c.tb.Helper()
	c.cluster.Etcd.Start(c.tb)
}

// KillRoom ends all instances of a room at once, as if their machines were gone: they sign off nowhere.
func (c *Cluster) KillRoom(name string) {
	c.tb.Helper()
	for _, i := range c.of(name) {
		if i.life != nil {
			i.life.over.Store(true)
			i.Cancel()
			_ = i.Wait() // that it could not sign off
			i.life = nil
		}
	}
}

// StartRoom starts the instances of a room again that KillRoom ended, at the same addresses.
func (c *Cluster) StartRoom(name string) {
	c.tb.Helper()
	for k, i := range c.of(name) {
		if i.life == nil {
			c.start(name, k, i)
		}
	}
}

// Backup saves what etcd has.
func (c *Cluster) Backup() (backup string) {
	c.tb.Helper()
	return c.cluster.Etcd.Backup(c.tb)
}

// Restore takes etcd back to the last Backup. Rooms notice, and lease no more until an operator recovers the cluster:
// calls that find nothing held fail with client.WentBack. Move fails the test then.
func (c *Cluster) Restore(backup string) {
	c.tb.Helper()
	c.cluster.Etcd.Restore(c.tb, backup, 0, "")
}

// Skew puts the clocks of a room's instances ahead, or with a negative time back.
func (c *Cluster) Skew(name string, by time.Duration) {
	c.tb.Helper()
	for _, i := range c.of(name) {
		i.skew.Store(int64(by))
	}
}

// life is the store of an instance, which does not reach it once its life is over.
type life struct {
	store.Store
	over atomic.Bool
}

// Txn implements store.Store.
func (l *life) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	if l.over.Load() {
		return store.Answer{}, allocator.Errorf(allocator.Unavailable, "the instance was killed")
	}
	return l.Store.Txn(ctx, txn)
}
