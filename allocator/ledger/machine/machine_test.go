package machine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// newCluster reserves [50, 55) of the boundary 100 for machines, with 10 bits the numbers [512, 564).
func newCluster(t *testing.T) *memcluster.Cluster {
	t.Helper()
	return memcluster.New(t, "100 a=0-50 !cosid=50-55 b=55-100")
}

func machinesOf(c *memcluster.Cluster, room allocator.Room) (*machine.Machines, *ledgertest.Conn) {
	conn := c.Mem.Open()
	return machine.New(ledgertest.Open(c, conn), room, "cosid"), conn
}

func client(instance string) machine.Client {
	return machine.Client{Namespace: "ns", Instance: instance}
}

// Clients of many instances at once have different numbers, and each keeps its own, also
// when answers are lost.
func TestManyAtOnce(t *testing.T) {
	c := newCluster(t)
	var mu sync.Mutex
	owner := make(map[int64]string)
	var all sync.WaitGroup
	lost := atomic.Int64{}
	for k := range 4 {
		m, conn := machinesOf(c, []allocator.Room{"a", "b"}[k%2])
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
				n, _, err := m.Distribute(t.Context(), client(name), 10, time.Minute)
				for err != nil && allocator.KindOf(err) == allocator.Unavailable {
					n, _, err = m.Distribute(t.Context(), client(name), 10, time.Minute)
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
	if keys := c.Mem.Keys("/march/default/clients/"); len(keys) != len(owner) || lost.Load() < 5 {
		t.Errorf("%d keys of %d clients, %d writes", len(keys), len(owner), lost.Load())
	}
}

func TestRefusals(t *testing.T) {
	c := newCluster(t)
	m, _ := machinesOf(c, "a")
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
	if _, err := c.Admin.Ledger.Halt(t.Context(), "test", "a test"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Distribute(t.Context(), client("a"), 10, 0); err == nil {
		t.Error("a number was given while leasing is halted")
	}
}
