package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/testcluster"
)

// consoleProcess is the environment variable that makes this test program a console in a
// process of its own. Its value is a consoleOrder.
const consoleProcess = "MARCH_TEST_CONSOLE"

// consoleOrder is the order to a console process.
type consoleOrder struct {
	Endpoint, Cluster string
	Point             killPoint
}

// killPoint is where a console process sends itself SIGKILL: at its nth request of a kind,
// or never if Kind is empty.
type killPoint struct {
	Kind string // the name that what returns, or "waiting" (a read after the first move)
	Nth  int
	When killTime
}

type killTime string

const (
	before   killTime = "before"   // it is sent
	inFlight killTime = "flight"   // it may be applied or not
	answered killTime = "answered" // it was applied, the console has not seen the answer
	after    killTime = "after"    // the console has seen the answer, and wants the next
)

var killTimes = []killTime{before, inFlight, answered, after}

// TestMigrateKilled kills the console process that makes the moves, with SIGKILL, at each
// of its requests and at each moment of the request. Another process finishes the
// migration.
func TestMigrateKilled(t *testing.T) {
	t.Parallel()
	points, times := make(map[string]killPoint), killTimes
	if testing.Short() {
		times = []killTime{inFlight, answered} // only a full run has the others
	}
	for name, p := range map[string]killPoint{
		"move 1": {Kind: "move", Nth: 1}, "waiting": {Kind: "waiting", Nth: 5},
		"move 2": {Kind: "move", Nth: 2}, "finish": {Kind: "finish", Nth: 1},
	} {
		for _, when := range times {
			p.When = when
			points[name+" "+string(when)] = p
		}
	}
	etcd := ledgertest.StartEtcd(t)
	for name, point := range points {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testMigrateKilled(t, etcd, strings.ReplaceAll("kill "+name, " ", "-"), point)
		})
	}
}

func testMigrateKilled(t *testing.T, etcd *ledgertest.Etcd, cluster string, point killPoint) {
	w := worldOver(testcluster.Over(t, cluster, etcd.Store), halves())
	idle := &gate{Store: etcd.Store(t)} // asks, and makes no move
	idle.idle(func() bool { return true })
	n := w.nodeOver(idle)
	p := w.puppet("a", "p", true)
	m := w.apply(n, quarter(), time.Hour)
	first := startConsole(t, consoleOrder{etcd.Endpoint, cluster, point})
	// While the first process lives, the instance reports only if the point comes
	// after the wait for the report.
	reports := point.Kind == "move" && point.Nth == 2 || point.Kind == "finish"
	serve := func() {
		if v := w.version(); v > 1 {
			if err := p.Serve(bg, v); err != nil {
				t.Error(err)
			}
		}
	}
	testcluster.Await(t, "the first console is killed", func() bool {
		if reports {
			serve()
		}
		return first.ended()
	})
	if status, ok := first.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() ||
		status.Signal() != syscall.SIGKILL {
		t.Fatalf("the first console ended by itself: %v\n%s", first.cmd.ProcessState, first.said.String())
	}
	stands := w.version()
	second := startConsole(t, consoleOrder{Endpoint: etcd.Endpoint, Cluster: cluster})
	end := w.follow(n, m.GetId(), "another finishes it", func(m *marchv1.Migration) bool {
		if second.ended() {
			t.Fatalf("the second console ended: %v\n%s", second.cmd.ProcessState, second.said.String())
		}
		serve()
		return m.GetState() == marchv1.MigrationState_MIGRATION_STATE_DONE
	})
	if stands < standsAt(point) {
		t.Errorf("killed at layout version %d, want %d at least", stands, standsAt(point))
	}
	if end.GetReached() != 2 || len(end.GetMoves()) != 2 {
		t.Errorf("ended: %v", end)
	}
	w.holds(quarter(), 3)
	by := "migration " + m.GetId()
	want := map[string]int{"init test": 1, "start migration " + m.GetActor(): 1, "change layout " + by: 2,
		"end migration " + by: 1}
	if got := w.audited(n); !maps.Equal(got, want) {
		t.Errorf("audit: %v, want %v", got, want)
	}
}

// standsAt is the least layout version at which a console is killed at a point.
func standsAt(p killPoint) int64 {
	switch {
	case p.Kind == "move" && p.When != before && p.When != inFlight:
		return 1 + int64(p.Nth)
	case p.Kind == "move":
		return int64(p.Nth)
	case p.Kind == "waiting":
		return 2
	case p.Kind == "finish":
		return 3
	}
	return 1
}

// audited counts the audit's entries, by action and actor.
func (w *world) audited(n *node) map[string]int {
	w.Helper()
	r, err := n.ListAudit(bg, &marchv1.ListAuditRequest{})
	if err != nil {
		w.Fatal(err)
	}
	count := make(map[string]int)
	for _, e := range r.GetEntries() {
		count[e.GetAction()+" "+e.GetActor()]++
	}
	return count
}

// consoleChild is a console process.
type consoleChild struct {
	cmd  *exec.Cmd
	done chan struct{}
	said bytes.Buffer // read when it has ended
}

// startConsole starts one. It is killed when the test ends, and ends by itself when the
// test program does.
func startConsole(t *testing.T, order consoleOrder) *consoleChild {
	t.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &consoleChild{cmd: exec.Command(program), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), consoleProcess+"="+string(text), "GORACE=atexit_sleep_ms=20")
	c.cmd.Stderr = &c.said
	alive, err := c.cmd.StdinPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
		_ = alive.Close()
	})
	return c
}

func (c *consoleChild) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// beConsole runs a console process from its beginning to its end.
func beConsole(text string) error {
	var order consoleOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		return err
	}
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{order.Endpoint}})
	if err != nil {
		return err
	}
	cfg := ledger.DefaultConfig()
	cfg.Cluster = order.Cluster
	settings := console.DefaultConfig()
	if settings.Ledger, err = ledger.New(&killStore{Store: etcd, point: order.Point}, cfg); err != nil {
		return err
	}
	if settings.GRPC, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	server, err := console.New(settings)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(bg)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the tests end
		stop()
	}()
	return errors.Join(server.Run(ctx), etcd.Close())
}

// killStore is a store that kills its own process at a point.
type killStore struct {
	store.Store
	point killPoint
	mu    struct {
		sync.Mutex
		seen  int  // requests of the point's kind
		moved bool // a move was answered
		next  bool // whether to die at the next request
	}
}

// die kills this process and does not return.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// at makes a request, and kills the process if the request is the one of its point.
func (s *killStore) at(kind string, request func()) {
	s.mu.Lock()
	if s.mu.next {
		die()
	}
	if kind == "read" && s.mu.moved {
		kind = "waiting"
	}
	hit := false
	if kind == s.point.Kind {
		s.mu.seen++
		hit = s.mu.seen == s.point.Nth
	}
	s.mu.Unlock()
	switch {
	case !hit:
		request()
	case s.point.When == before:
		die()
	case s.point.When == inFlight:
		go request()
		time.Sleep(time.Millisecond) // about the time of a request: some are applied, some are not
		die()
	case s.point.When == answered:
		request()
		die()
	default:
		request()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.moved = s.mu.moved || kind == "move"
	s.mu.next = s.mu.next || hit
}

func (s *killStore) Txn(ctx context.Context, txn store.Txn) (answer store.Answer, err error) {
	s.at(what(txn), func() { answer, err = s.Store.Txn(ctx, txn) })
	return answer, err
}
