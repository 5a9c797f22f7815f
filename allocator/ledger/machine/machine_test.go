package machine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/store"
)

// start is when the clocks of tests begin, in Unix ms.
const start = int64(1_800_000_000_000)

// cluster is a cluster in memory, of boundary 100.
type cluster struct {
	*testing.T
	fake   *ledgertest.Fake
	ledger *ledger.Ledger
	now    atomic.Int64 // Unix ms
}

// reserved keeps [50, 55) for machines, with 10 bits the numbers [512, 564).
var reserved = allocator.Layout{
	Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50},
		"b": {Lower: 55, Upper: 100}},
	Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 50, Upper: 55}},
}

func newCluster(t *testing.T, layout allocator.Layout) *cluster {
	t.Helper()
	c := &cluster{T: t, fake: ledgertest.NewFake(t)}
	c.now.Store(start)
	c.ledger, _ = c.open()
	if _, err := admin.New(c.ledger, admin.DefaultConfig()).Init(t.Context(), layout, "test"); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) open() (*ledger.Ledger, *ledgertest.Conn) {
	c.Helper()
	cfg := ledger.DefaultConfig()
	cfg.Now = func() time.Time { return time.UnixMilli(c.now.Load()) }
	conn := c.fake.Open()
	l, err := ledger.New(conn, cfg)
	if err != nil {
		c.Fatal(err)
	}
	return l, conn
}

func (c *cluster) machinesOf(room allocator.Room) (*machine.Machines, *ledgertest.Conn) {
	c.Helper()
	l, conn := c.open()
	m := machine.New(l, room, "cosid")
	m.Runs = func() time.Duration { return time.Duration(c.now.Load()-start) * time.Millisecond }
	return m, conn
}

func (c *cluster) pass(d time.Duration) { c.now.Add(d.Milliseconds()) }

func client(instance string) machine.Client {
	return machine.Client{Namespace: "ns", Instance: instance}
}

// gives checks the number and the time of a client.
func (c *cluster) gives(m *machine.Machines, of machine.Client, bits int, guard time.Duration, number, last int64) {
	c.Helper()
	got, at, err := m.Distribute(c.Context(), of, bits, guard)
	if err != nil || got != number || at-start != last {
		c.Errorf("%v: %d since %d, %v; want %d since %d", of, got, at-start, err, number, last)
	}
}

func (c *cluster) no(want, err error) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Errorf("got %v, want %v", err, want)
	}
}

// Clients of many instances at once have different numbers, and each keeps its own, also
// when answers are lost.
func TestManyAtOnce(t *testing.T) {
	c := newCluster(t, reserved)
	var mu sync.Mutex
	owner := make(map[int64]string)
	var all sync.WaitGroup
	lost := atomic.Int64{}
	for k := range 4 {
		m, conn := c.machinesOf([]allocator.Room{"a", "b"}[k%2])
		conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if len(txn.Then) > 0 && txn.Then[0].Put != nil && strings.Contains(txn.Then[0].Put.Key, "/clients/") &&
				lost.Add(1)%5 == 0 {
				return ledgertest.Fate{Name: ledgertest.DoneAnswerLost}
			}
			return ledgertest.Fate{}
		})
		all.Go(func() {
			for j := range 12 {
				name := fmt.Sprintf("h%d:%d", k, j)
				n, _, err := m.Distribute(c.Context(), client(name), 10, time.Minute)
				for err != nil && allocator.KindOf(err) == allocator.Unavailable {
					n, _, err = m.Distribute(c.Context(), client(name), 10, time.Minute)
				}
				mu.Lock()
				if other, twice := owner[n]; err != nil || twice {
					t.Errorf("%s has %d, as %s, %v", name, n, other, err)
				}
				owner[n] = name
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if keys := c.fake.Keys("/march/default/clients/"); len(keys) != len(owner) || lost.Load() < 5 {
		t.Errorf("%d keys of %d clients, %d writes", len(keys), len(owner), lost.Load())
	}
}

func TestRefusals(t *testing.T) {
	c := newCluster(t, reserved)
	m, _ := c.machinesOf("a")
	for _, tt := range []struct {
		of    machine.Client
		bits  int
		guard time.Duration
		says  string
	}{
		{client("a"), 0, 0, "machineBit: 0; allowed: 1 to 31"},
		{client("a"), 32, 0, "machineBit: 32; allowed: 1 to 31"},
		{client("a"), 10, -1, "safeGuardDuration: -1ns; allowed"},
		{client(""), 10, 0, `instanceId: ""; allowed: 1 to 255 bytes`},
		{client(strings.Repeat("x", 256)), 10, 0, "instanceId: "},
		{machine.Client{Instance: "a"}, 10, 0, `namespace: ""; allowed`},
	} {
		_, _, err := m.Distribute(context.Background(), tt.of, tt.bits, tt.guard)
		if allocator.KindOf(err) != allocator.Invalid || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("got %v, want %s", err, tt.says)
		}
	}
	if _, err := c.ledger.Halt(t.Context(), "test", "a test"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Distribute(t.Context(), client("a"), 10, 0); err == nil {
		t.Error("a number was given while leasing is halted")
	}
}
