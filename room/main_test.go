package room_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/observe"
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

// halves is the layout that most tests begin with: boundary 100, a [0, 50), b
// [50, 100).
func halves() allocator.Layout {
	return layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 100}})
}

func layout(boundary int64, ranges map[allocator.Room]allocator.Range) allocator.Layout {
	return allocator.Layout{Boundary: boundary, Ranges: ranges}
}

// cluster is a real etcd with a cluster in it.
type cluster struct {
	testing.TB
	etcd   *ledgertest.Etcd
	admin  *admin.Admin
	tracer trace.TracerProvider // of instances launched from now on, nil for none
	onTxn  func(store.Txn)      // called for each transaction of instances launched from now on, where set
}

func newCluster(tb testing.TB, first allocator.Layout) *cluster {
	tb.Helper()
	c := &cluster{TB: tb, etcd: ledgertest.StartEtcd(tb)}
	c.admin = admin.New(c.ledger(c.etcd.Store(tb)), admin.DefaultConfig())
	if _, err := c.admin.Init(bg, first, "test"); err != nil {
		tb.Fatalf("init: %v", err)
	}
	return c
}

// store returns a connection to etcd.
func (c *cluster) store() store.Store {
	c.Helper()
	if c.tracer == nil {
		return c.etcd.Store(c)
	}
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{c.etcd.Endpoint}, Tracer: c.tracer})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

func (c *cluster) ledger(etcd store.Store) *ledger.Ledger {
	c.Helper()
	l, err := ledger.New(etcd, ledger.DefaultConfig())
	if err != nil {
		c.Fatal(err)
	}
	return l
}

// tag creates tags with the default settings as change modifies them.
func (c *cluster) tag(change func(*record.TagSettings), names ...allocator.Tag) {
	c.Helper()
	for _, name := range names {
		settings := record.DefaultTag()
		if change != nil {
			change(&settings)
		}
		if _, err := c.admin.CreateTag(bg, name, settings, "test"); err != nil {
			c.Fatalf("create tag: %v", err)
		}
	}
}

func (c *cluster) update(name allocator.Tag, change func(*record.TagSettings)) {
	c.Helper()
	_, err := c.admin.UpdateTag(bg, name, func(s *record.TagSettings) error { change(s); return nil }, "test")
	if err != nil {
		c.Fatalf("update tag: %v", err)
	}
}

// change changes the layout and returns its version.
func (c *cluster) change(to allocator.Layout) int64 {
	c.Helper()
	from, err := c.admin.Ledger.Refresh(bg)
	if err != nil {
		c.Fatalf("refresh: %v", err)
	}
	stored, err := c.admin.ChangeLayout(bg, from, to, "test")
	if err != nil {
		c.Fatalf("change layout: %v", err)
	}
	return stored.Layout.Version
}

// registered returns the registration of an instance, nil when there is none.
func (c *cluster) registered(in allocator.Room, name allocator.Instance) *record.Instance {
	c.Helper()
	instances, _, err := c.admin.Instances(bg, in)
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
	marchv1.IDServiceClient
	conn     *grpc.ClientConn
	grpc     string
	http     string
	store    *countingStore
	stop     context.CancelFunc
	stopped  chan struct{} // closed when Run has returned
	err      error         // of Run, then
	room     allocator.Room
	instance allocator.Instance
}

// launch starts an instance and does not wait for it.
func (c *cluster) launch(in allocator.Room, name allocator.Instance, change func(*room.Config)) *instance {
	c.Helper()
	i := &instance{
		TB: c.TB, room: in, instance: name, stopped: make(chan struct{}),
		store: &countingStore{Store: c.store()},
	}
	if c.onTxn != nil {
		i.store.onTxn(c.onTxn)
	}
	cfg := room.DefaultConfig()
	cfg.Metrics = observe.New("test", prometheus.Labels{"room": string(in)})
	ledgerConfig := ledger.DefaultConfig()
	ledgerConfig.Observe, ledgerConfig.Tracer = cfg.Metrics.Transaction, c.tracer
	var err error
	if cfg.Ledger, err = ledger.New(i.store, ledgerConfig); err != nil {
		c.Fatal(err)
	}
	cfg.Metrics.Ledger(cfg.Ledger)
	cfg.Room, cfg.Name, cfg.Build, cfg.Tracer = in, name, "test", c.tracer
	cfg.GRPC, cfg.HTTP = listen(c), listen(c)
	cfg.Drain = 2 * time.Second
	if change != nil {
		change(&cfg)
	}
	i.grpc, i.http = cfg.GRPC.Addr().String(), cfg.HTTP.Addr().String()
	server, err := room.New(cfg)
	if err != nil {
		c.Fatalf("new: %v", err)
	}
	ctx, stop := context.WithCancel(bg)
	i.stop = stop
	go func() {
		defer close(i.stopped)
		i.err = server.Run(ctx)
	}()
	i.conn = dial(c, i.grpc)
	i.IDServiceClient = marchv1.NewIDServiceClient(i.conn)
	c.Cleanup(func() {
		_ = i.conn.Close()
		stop()
		<-i.stopped
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

// wait returns Run's error.
func (i *instance) wait() error {
	i.Helper()
	select {
	case <-i.stopped:
		return i.err
	case <-time.After(patience):
		i.Fatalf("instance %s of room %s did not stop within %v", i.instance, i.room, patience)
		return nil
	}
}

// get asks the HTTP side; code 0 when it does not answer.
func (i *instance) get(path string) (code int, body string) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + i.http + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

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
	r, err := marchv1.NewRoomServiceClient(i.conn).GetChain(bg, &marchv1.GetChainRequest{Tag: tag})
	if err != nil {
		return nil
	}
	return r.GetChain()
}

func (i *instance) await(what string, done func() bool) {
	i.Helper()
	await(i, what, done)
}

// patience is how long a test waits for an event that takes milliseconds on an idle
// machine. It detects an event that never happens; took checks how long an event takes.
const patience = time.Minute

// await polls until done or fails the test.
func await(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(tb testing.TB, address string) *grpc.ClientConn {
	tb.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	return conn
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
		return fmt.Sprintf("got %v %q of %q (%v), want %v %q", code, info.GetReason(), info.GetDomain(), err, w.code, w.reason)
	}
	return says(err, w.says...)
}
