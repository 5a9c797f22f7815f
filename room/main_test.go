package room_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

func TestMain(m *testing.M) {
	// Parallel tests wait more than they work. So this many run at once, however few
	// processors there are. A flag overrides it.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// bg is for calls that must outlive the test's own context.
var bg = context.Background()

func layout(boundary int64, ranges map[allocator.Room]allocator.Range) allocator.Layout {
	return allocator.Layout{Boundary: boundary, Ranges: ranges}
}

// cluster is a real etcd with a cluster in it.
type cluster struct {
	*testcluster.Cluster
	tracer trace.TracerProvider // of instances launched from now on, nil for none
	now    func() time.Time     // the clock of instances launched from now on, nil for the computer's
	onTxn  func(store.Txn)      // called for each transaction of instances launched from now on, where set
}

func newCluster(tb testing.TB, first allocator.Layout) *cluster {
	tb.Helper()
	c := &cluster{Cluster: testcluster.New(tb)}
	c.Init(first, "test")
	return c
}

// store returns a connection to etcd.
func (c *cluster) store() store.Store {
	c.Helper()
	if c.tracer == nil {
		return c.Open(c)
	}
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{c.Etcd.Endpoint}, Tracer: c.tracer})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

func (c *cluster) tag(change func(*record.TagSettings), names ...allocator.Tag) {
	c.Helper()
	c.Tag(change, "test", names...)
}

func (c *cluster) update(name allocator.Tag, change func(*record.TagSettings)) {
	c.Helper()
	_, err := c.Admin.UpdateTag(bg, name, func(s *record.TagSettings) error { change(s); return nil }, "test")
	if err != nil {
		c.Fatalf("update tag: %v", err)
	}
}

// registered returns the registration of an instance, nil when there is none.
func (c *cluster) registered(in allocator.Room, name allocator.Instance) *record.Instance {
	c.Helper()
	instances, _, err := c.Admin.Instances(bg, in)
	if err != nil {
		c.Fatalf("instances: %v", err)
	}
	for _, i := range instances {
		if i.Name == name {
			return &i
		}
	}
	return nil
}

// instance is a running room server.
type instance struct {
	testing.TB
	*testcluster.Room
	store *countingStore
}

// launch starts an instance and does not wait for it.
func (c *cluster) launch(in allocator.Room, name allocator.Instance, change func(*room.Config)) *instance {
	c.Helper()
	i := &instance{TB: c.TB, store: &countingStore{Store: c.store()}}
	if c.onTxn != nil {
		i.store.onTxn(c.onTxn)
	}
	i.Room = c.Launch(in, name, func(cfg *room.Config) {
		metrics := serve.NewMetrics("test", prometheus.Labels{"room": string(in)})
		cfg.Ledger = c.LedgerOver(i.store, func(cfg *ledger.Config) {
			cfg.Observe, cfg.Tracer, cfg.Now = metrics.Transaction, c.tracer, c.now
		})
		metrics.Ledger(cfg.Ledger)
		cfg.Metrics, cfg.Build, cfg.Tracer = metrics, "test", c.tracer
		cfg.HTTP = testcluster.Listen(c, "")
		cfg.Drain = 2 * time.Second
		if change != nil {
			change(cfg)
		}
	})
	return i
}

// start starts an instance and waits until it is ready.
func (c *cluster) start(in allocator.Room, name allocator.Instance, change func(*room.Config)) *instance {
	c.Helper()
	i := c.launch(in, name, change)
	i.await("ready", func() bool { code, _ := i.get("/readyz"); return code == http.StatusOK })
	return i
}

// get asks the HTTP side; code 0 when it does not answer.
func (i *instance) get(path string) (code int, body string) { return testcluster.Get(i.HTTP, path) }

// next returns an ID.
func (i *instance) next(tag string) (int64, error) {
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	r, err := i.Next(ctx, &marchv1.NextRequest{Tag: tag})
	return r.GetId(), err
}

// mustNext returns an ID or ends the test.
func (i *instance) mustNext(tag string) int64 {
	i.Helper()
	id, err := i.next(tag)
	if err != nil {
		i.Fatalf("next %s: %v", tag, err)
	}
	return id
}

// chain returns the instance's report on a tag's chain, or nil if it has none.
func (i *instance) chain(tag string) *marchv1.Chain {
	r, err := marchv1.NewRoomServiceClient(i.Conn).GetChain(bg, &marchv1.GetChainRequest{Tag: tag})
	if err != nil {
		return nil
	}
	return r.GetChain()
}

func (i *instance) await(what string, done func() bool) {
	i.Helper()
	await(i, what, done)
}

const patience = testcluster.Patience

func await(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	testcluster.Await(tb, what, done)
}

// countingStore counts transactions. A test can run code before each of them, or cut
// them off.
type countingStore struct {
	store.Store
	cut    atomic.Bool
	txns   atomic.Int64
	writes atomic.Int64
	before struct {
		sync.Mutex
		hook func(store.Txn)
	}
}

func (s *countingStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	if s.cut.Load() {
		return store.Answer{}, allocator.Errorf(allocator.Unavailable, "cut off")
	}
	s.txns.Add(1)
	if ledgertest.Writes(txn) {
		s.writes.Add(1)
	}
	s.before.Lock()
	hook := s.before.hook
	s.before.Unlock()
	if hook != nil {
		hook(txn)
	}
	return s.Store.Txn(ctx, txn)
}

// onTxn has hook called before each transaction.
func (s *countingStore) onTxn(hook func(store.Txn)) {
	s.before.Lock()
	defer s.before.Unlock()
	s.before.hook = hook
}

// reason returns the code and the ErrorInfo of a status.
func reason(err error) (codes.Code, *errdetails.ErrorInfo) {
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return s.Code(), info
		}
	}
	return s.Code(), &errdetails.ErrorInfo{}
}

// want describes a status.
type want struct {
	code   codes.Code
	reason string
	says   []string // in the message
}

// check returns how err differs from w, or an empty string if it does not.
func (w want) check(err error) string {
	code, info := reason(err)
	if code != w.code || info.GetReason() != w.reason || info.GetDomain() != "march" {
		return fmt.Sprintf("got %v %q of %q (%v), want %v %q", code, info.GetReason(),
			info.GetDomain(), err, w.code, w.reason)
	}
	return says(err, w.says...)
}
