package console_test

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// gate is a store that counts a console's writes. A test can shut it for some
// transactions, or kill it: then its console's later transactions are lost, as after a SIGKILL
// of its process.
type gate struct {
	store.Store
	writes atomic.Int64 // transactions that write, without beats, which depend on time alone
	mu     struct {
		sync.Mutex
		dead bool
		hook func(what string) verdict
	}
}

type verdict int

const (
	pass verdict = iota
	refuse
	dieBefore
	dieAfter
)

// what returns a name for a console's transaction.
func what(txn store.Txn) string {
	var move, start, finish, migration, beat bool
	for _, op := range txn.Then {
		switch {
		case op.Put != nil && strings.HasSuffix(op.Put.Key, "/layout"):
			move = true
		case op.Put != nil && strings.HasSuffix(op.Put.Key, "/migration"):
			start = true
		case op.Put != nil && strings.HasSuffix(op.Put.Key, "/beat"):
			beat = true
		case op.Put != nil && strings.Contains(op.Put.Key, "/migrations/"):
			migration = true
		case strings.HasSuffix(op.Delete, "/migration"):
			finish = true
		}
	}
	switch {
	case start:
		return "start"
	case move:
		return "move"
	case finish:
		return "finish"
	case migration:
		return "update"
	case beat:
		return "beat"
	case ledgertest.Writes(txn):
		return "write"
	}
	return "read"
}

func (g *gate) on(hook func(what string) verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.hook = hook
}

func (g *gate) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.dead = true
}

func (g *gate) gone() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.dead {
		return allocator.Errorf(allocator.Unavailable, "gate: this process is dead")
	}
	return nil
}

func (g *gate) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	if err := g.gone(); err != nil {
		return store.Answer{}, err
	}
	g.mu.Lock()
	hook := g.mu.hook
	g.mu.Unlock()
	does, is := pass, what(txn)
	if hook != nil {
		does = hook(is)
	}
	switch does {
	case refuse:
		return store.Answer{}, allocator.Errorf(allocator.Unavailable, "gate: shut")
	case dieBefore:
		g.kill()
		return store.Answer{}, g.gone()
	}
	if is != "beat" && is != "read" {
		g.writes.Add(1)
	}
	answer, err := g.Store.Txn(ctx, txn)
	if does == dieAfter {
		g.kill()
	}
	if err := g.gone(); err != nil {
		return store.Answer{}, err
	}
	return answer, err
}

// idle keeps a console from making moves and from ending migrations, as long as holds
// returns true.
func (g *gate) idle(holds func() bool) {
	g.on(func(what string) verdict {
		if (what == "move" || what == "finish") && holds() {
			return refuse
		}
		return pass
	})
}

// world is a cluster whose consoles' stores a test can reach.
type world struct {
	*testcluster.Cluster
	// try is how long its ledgers wait for an answer of the store, or 0 for 5 s.
	try time.Duration
}

func newWorld(tb testing.TB, first *marchv1.Layout) *world {
	tb.Helper()
	c := testcluster.New(tb)
	l := must(api.LayoutFromProto(first))(c)
	c.Init(l, "test")
	return &world{Cluster: c}
}

func (w *world) ledger(etcd store.Store) *ledger.Ledger {
	w.Helper()
	return w.LedgerOver(etcd, func(cfg *ledger.Config) { cfg.TryTimeout = cmp.Or(w.try, 5*time.Second) })
}

// node is a running console.
type node struct {
	*testcluster.Console
	*gate
	metrics *serve.Metrics
	log     *logged
}

// logged is a console's log.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// count returns how many lines contain all of parts.
func (l *logged) count(parts ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
lines:
	for line := range strings.Lines(l.text.String()) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		n++
	}
	return n
}

func (w *world) node() *node {
	w.Helper()
	return w.nodeOver(w.Open(w))
}

func (w *world) nodeOver(etcd store.Store) *node {
	w.Helper()
	g, ok := etcd.(*gate)
	if !ok {
		g = &gate{Store: etcd}
	}
	n := &node{gate: g, metrics: serve.NewMetrics("test", nil), log: &logged{}}
	n.Console = w.Console(func(cfg *console.Config) {
		cfg.Ledger, cfg.Metrics, cfg.Logger = w.ledger(g), n.metrics, hclog.New(&hclog.LoggerOptions{Output: n.log})
	})
	return n
}

// puppet registers an instance that reports the layouts that the test chooses.
func (w *world) puppet(in allocator.Room, name allocator.Instance, alive bool) *ledger.Instance {
	w.Helper()
	i := must(w.ledger(w.Open(w)).Join(bg, ledger.Registration{Room: in, Name: name, Address: "127.0.0.1:1"}))(w)
	if alive {
		testcluster.Run(w, i.Run)
	}
	return i
}

func (w *world) version() int64 {
	w.Helper()
	r := must(w.Admin.Ledger.Refresh(bg))(w)
	return r.Layout.Version
}

func (w *world) plan(n *node, target *marchv1.Layout) *marchv1.Plan {
	w.Helper()
	p, err := n.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: target})
	if err != nil {
		w.Fatalf("plan: %v", err)
	}
	return p.GetPlan()
}

// cost returns what a plan costs once it is counted.
func (w *world) cost(n *node, p *marchv1.Plan) *marchv1.CountPlanCostResponse {
	w.Helper()
	answer := &marchv1.CountPlanCostResponse{}
	testcluster.Await(w, "the costs are counted", func() (done bool) {
		var err error
		answer, err = n.CountPlanCost(bg, &marchv1.CountPlanCostRequest{Plan: p, Wait: durationpb.New(time.Second),
			Count: answer.GetCount()})
		if err != nil {
			w.Fatalf("cost: %v", err)
		}
		return answer.GetCost() != nil
	})
	return answer
}

func (w *world) apply(n *node, target *marchv1.Layout, hold time.Duration) *marchv1.Migration {
	w.Helper()
	m, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: w.plan(n, target), Hold: durationpb.New(hold)})
	if err != nil {
		w.Fatalf("apply: %v", err)
	}
	return m.GetMigration()
}

// follow polls a migration until done returns true for it.
func (w *world) follow(n *node, id, until string, done func(*marchv1.Migration) bool) (m *marchv1.Migration) {
	w.Helper()
	testcluster.Await(w, until, func() bool {
		r, err := n.GetMigration(bg, &marchv1.GetMigrationRequest{Id: id})
		m = r.GetMigration()
		return err == nil && done(m)
	})
	return m
}

func (w *world) ends(n *node, id, state string) *marchv1.Migration {
	w.Helper()
	m := w.follow(n, id, "it ends", func(m *marchv1.Migration) bool { return api.Ended(m.GetState()) })
	if api.Word(m.GetState()) != state {
		w.Errorf("ended %s, want %s: %v", api.Word(m.GetState()), state, m)
	}
	return m
}

// stays fails the test if a migration gets further within a while.
func stays(w *world, n *node, id string, reached int32) {
	w.Helper()
	for range 20 { // a driver looks each second
		time.Sleep(250 * time.Millisecond)
		r, err := n.GetMigration(bg, &marchv1.GetMigrationRequest{Id: id})
		if err != nil || r.GetMigration().GetReached() != reached {
			w.Fatalf("it went on: %v, %v", r, err)
		}
	}
}

// holds checks that the cluster is at a layout, and that the ledger verifies.
func (w *world) holds(want *marchv1.Layout, version int64) {
	w.Helper()
	r := must(w.Admin.Ledger.Refresh(bg))(w)
	l := must(api.LayoutFromProto(want))(w)
	if !r.Layout.Equal(l) || r.Layout.Version != version {
		w.Errorf("layout %v, want %v, version %d", r.Layout, l, version)
	}
	ledgertest.CheckCluster(w, w.Open(w), w.ClusterName, nil)
}

func reached(n int32) func(*marchv1.Migration) bool {
	return func(m *marchv1.Migration) bool { return m.GetReached() >= n }
}

// quarter is halves with residues 25 to 49 moved from a to b: a retract, then an expand.
func quarter() *marchv1.Layout {
	return layout(100, map[string][2]int64{"a": {0, 25}, "b": {25, 100}})
}

// inBubble runs a subtest in a bubble of its own.
func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { testcluster.Bubble(t, test) })
}

// bubbles runs each case in a bubble of its own.
func bubbles[T any](t *testing.T, cases map[string]T, test func(t *testing.T, name string, c T)) {
	t.Helper()
	for name, c := range cases {
		inBubble(t, name, func(t *testing.T) { test(t, name, c) })
	}
}
