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
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

var bg = context.Background()

// start is the first time of the tests' clocks, in Unix ms: a full second.
const start = int64(1_800_000_000_000)

// cluster is a cluster of rooms. open connects to its etcd, which is real or in memory.
type cluster struct {
	tb         testing.TB
	open       func() store.Store
	fake       *ledgertest.Fake // nil with a real etcd
	admin      *ledger.Ledger
	manage     *admin.Admin // over the same ledger
	now        atomic.Int64 // Unix ms
	names      int
	noEtcdTime bool         // etcd does not tell the time
	log        hclog.Logger // of ledgers from then on; nil for none

	journals []record.Memory // given to recover
}

// newCluster makes a cluster in memory with a layout of boundary 100.
func newCluster(tb testing.TB, rooms map[allocator.Room]allocator.Range) *cluster {
	tb.Helper()
	fake := ledgertest.NewFake(tb)
	c := newClusterOn(tb, func() store.Store { return fake.Open() }, rooms)
	c.fake = fake
	return c
}

func newClusterOn(tb testing.TB, open func() store.Store, rooms map[allocator.Room]allocator.Range,
	change ...func(*admin.Config)) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, open: open}
	c.now.Store(start)
	c.admin = c.ledger(open())
	cfg := admin.DefaultConfig()
	for _, f := range change {
		f(&cfg)
	}
	c.manage = admin.New(c.admin, cfg)
	if _, err := c.manage.Init(bg, allocator.Layout{Boundary: 100, Ranges: rooms}, "test"); err != nil {
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

// move changes the layout.
func (c *cluster) move(rooms map[allocator.Room]allocator.Range) {
	c.tb.Helper()
	from, err := c.admin.Refresh(bg)
	if err != nil {
		c.tb.Fatalf("refresh: %v", err)
	}
	if _, err := c.manage.ChangeLayout(bg, from, allocator.Layout{Boundary: 100, Ranges: rooms}, "test"); err != nil {
		c.tb.Fatalf("change layout: %v", err)
	}
}

// stored returns the last window of a worker as etcd has it.
func (c *cluster) stored(id record.WorkerID) (last record.Worker) {
	c.tb.Helper()
	for _, room := range []allocator.Room{"a", "b", "c"} {
		kv := store.KV{Key: record.Keys("/march/default/").Window(room, id)}
		var there bool
		if kv.Value, there = c.fake.Value(kv.Key); !there {
			continue
		}
		_, w, err := record.Keys("/march/default/").DecodeWorker(kv)
		if err != nil {
			c.tb.Fatalf("worker %v: %v", id, err)
		}
		last = last.Raised(w)
	}
	return last
}

// process is an instance that leases workers.
type process struct {
	*ledger.Instance
	*worker.Workers
	c       *cluster
	conn    *ledgertest.Conn
	ledger  *ledger.Ledger
	ahead   atomic.Int64 // of its clock, in ms
	began   int64
	address string
}

// start starts an instance with a name of its own.
func (c *cluster) start(room allocator.Room, change ...func(*worker.Config)) *process {
	c.tb.Helper()
	c.names++
	return c.startAs(room, allocator.Instance(fmt.Sprintf("i%d", c.names)), change...)
}

func (c *cluster) startAs(room allocator.Room, name allocator.Instance, change ...func(*worker.Config)) *process {
	c.tb.Helper()
	return c.startWith(ledger.Registration{Room: room, Name: name, Address: string(name) + ".test:7010",
		Build: "test"}, change...)
}

func (c *cluster) startWith(r ledger.Registration, change ...func(*worker.Config)) *process {
	c.tb.Helper()
	p := &process{c: c, began: c.now.Load(), address: r.Address}
	etcd := c.open()
	p.conn, _ = etcd.(*ledgertest.Conn)
	p.ledger = c.ledger(etcd)
	var err error
	if p.Instance, err = p.ledger.Join(bg, r); err != nil {
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

// next sets the fate of the next transaction that match accepts.
func (p *process) next(fate ledgertest.Fate, match func(store.Txn) bool) {
	met := false
	p.conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if met || !match(txn) {
			return ledgertest.Fate{}
		}
		met = true
		return fate
	})
}

// window checks a worker's window, from and until counted in ms from start.
func (p *process) window(w *worker.Worker, from, until int64) {
	p.c.tb.Helper()
	if got, want := w.Window(), (timeid.Window{From: start + from, Until: start + until}); got != want {
		p.c.tb.Errorf("worker %v: window [%d, %d), want [%d, %d)", w.ID(), got.From-start, got.Until-start, from, until)
	}
	if p.c.fake == nil {
		return
	}
	if stored := p.c.stored(w.ID()); stored.Window() != w.Window() || stored.Incarnation != p.Incarnation() {
		p.c.tb.Errorf("worker %v: etcd has %+v", w.ID(), stored)
	}
}

// corrupt writes a value by hand.
func (c *cluster) corrupt(key string, value []byte) {
	c.fake.Corrupt(store.OpPut(key, value))
}
