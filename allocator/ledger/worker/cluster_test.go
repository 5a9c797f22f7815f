package worker_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

var bg = context.Background()

var _ worker.Instance = (*ledger.Instance)(nil)

var halves = map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 100}}

// start is the first time of the tests' clocks, in Unix ms: a full second.
const start = int64(1_800_000_000_000)

// cluster is a cluster of rooms. open connects to its etcd, which is real or in memory.
type cluster struct {
	tb         testing.TB
	open       func() store.Store
	fake       *ledgertest.Fake // nil with a real etcd
	now        atomic.Int64     // Unix ms
	names      int
	noEtcdTime bool         // etcd does not tell the time
	log        hclog.Logger // of ledgers from then on; nil for none
}

// newCluster makes a cluster in memory with a layout of boundary 100.
func newCluster(tb testing.TB, rooms map[allocator.Room]allocator.Range) *cluster {
	tb.Helper()
	fake := ledgertest.NewFake(tb)
	c := newClusterOn(tb, func() store.Store { return fake.Open() }, rooms)
	c.fake = fake
	return c
}

func newClusterOn(tb testing.TB, open func() store.Store, rooms map[allocator.Room]allocator.Range) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, open: open}
	c.now.Store(start)
	l := c.ledger(open())
	if _, err := admin.New(l, admin.DefaultConfig()).Init(bg, allocator.Layout{Boundary: 100, Ranges: rooms},
		"test"); err != nil {
		tb.Fatalf("init: %v", err)
	}
	return c
}

func (c *cluster) ledger(etcd store.Store) *ledger.Ledger {
	c.tb.Helper()
	cfg := ledger.DefaultConfig()
	cfg.Logger = c.log
	cfg.Now = func() time.Time { return time.UnixMilli(c.now.Load()) }
	l, err := ledger.New(etcd, cfg)
	if err != nil {
		c.tb.Fatalf("new ledger: %v", err)
	}
	return l
}

// pass lets time pass.
func (c *cluster) pass(d time.Duration) { c.now.Add(d.Milliseconds()) }

// process is an instance that leases workers.
type process struct {
	*ledger.Instance
	*worker.Workers
	c      *cluster
	conn   *ledgertest.Conn
	ledger *ledger.Ledger
	ahead  atomic.Int64 // of its clock, in ms
	began  int64
}

// start starts an instance with a name of its own.
func (c *cluster) start(room allocator.Room, change ...func(*worker.Config)) *process {
	c.tb.Helper()
	c.names++
	return c.startAs(room, allocator.Instance(fmt.Sprintf("i%d", c.names)), change...)
}

func (c *cluster) startAs(room allocator.Room, name allocator.Instance, change ...func(*worker.Config)) *process {
	c.tb.Helper()
	p := &process{c: c, began: c.now.Load()}
	etcd := c.open()
	p.conn, _ = etcd.(*ledgertest.Conn)
	p.ledger = c.ledger(etcd)
	var err error
	if p.Instance, err = p.ledger.Join(bg, ledger.Registration{Room: room, Name: name,
		Address: string(name) + ".test:7010", Build: "test"}); err != nil {
		c.tb.Fatalf("join: %v", err)
	}
	cfg := worker.DefaultConfig()
	cfg.Now = func() time.Time { return time.UnixMilli(c.now.Load() + p.ahead.Load()) }
	cfg.Elapsed = func() time.Duration { return time.Duration(c.now.Load()-p.began) * time.Millisecond }
	for _, f := range change {
		f(&cfg)
	}
	if p.Workers, err = worker.New(clocked{p.Instance, c}, cfg); err != nil {
		c.tb.Fatalf("new workers: %v", err)
	}
	return p
}

// clocked is an instance of a cluster whose etcd has a clock: that of the cluster.
type clocked struct {
	*ledger.Instance
	c *cluster
}

// EtcdTime implements worker.Instance.
func (i clocked) EtcdTime(ctx context.Context) (time.Time, time.Duration, error) {
	if i.c.noEtcdTime {
		return i.Instance.EtcdTime(ctx)
	}
	return time.UnixMilli(i.c.now.Load()), time.Second, nil
}

// ms is a request for a worker of some bits, for tags that count ms.
func ms(bits int) worker.Request { return worker.Request{Bits: bits, Tick: time.Millisecond} }

// take takes a worker, and fails the test on an error.
func (p *process) take(r worker.Request) *worker.Worker {
	p.c.tb.Helper()
	w, err := p.Take(bg, r)
	if err != nil {
		p.c.tb.Fatalf("take: %v", err)
	}
	return w
}

// renew renews a worker, and fails the test on an error.
func (p *process) renew(w *worker.Worker) {
	p.c.tb.Helper()
	if err := p.Renew(bg, w); err != nil {
		p.c.tb.Fatalf("renew: %v", err)
	}
}

// corrupt writes a value by hand.
func (c *cluster) corrupt(key string, value []byte) {
	c.fake.Corrupt(store.OpPut(key, value))
}
