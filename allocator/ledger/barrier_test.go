package ledger_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// barrier returns the barrier of the halt that is in force.
func (c *cluster) barrier() *record.Barrier {
	c.Helper()
	var v struct{ Halted struct{ Nonce string } }
	if err := json.Unmarshal(c.Value("epoch"), &v); err != nil || v.Halted.Nonce == "" {
		c.Fatalf("leasing is not halted: %s, %v", c.Value("epoch"), err)
	}
	return &record.Barrier{Nonce: v.Halted.Nonce, ClusterID: ledgertest.ClusterID}
}

// afterStore calls after once a transaction was done, before its answer comes.
type afterStore struct {
	store.Store
	after func(store.Txn)
}

func (s *afterStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	if s.after != nil {
		s.after(txn)
	}
	return answer, err
}

// A lease whose answer is still under way when the barrier is passed is lost,
// however late it comes; and nothing is leased before there is a new epoch.
func TestBarrier(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.process()
	etcd := &afterStore{Store: p.Conn}
	p.Ledger = ledgertest.Open(t, etcd)
	var err error
	if p.Instance, err = p.Ledger.Join(bg, ledger.Registration{Room: "a", Name: "one",
		Address: "one.test:7010"}); err != nil {
		t.Fatal(err)
	}
	p.Lease(10)
	var memory record.Memory
	etcd.after = func(txn store.Txn) {
		if ledgertest.PutsUnder("marks/")(txn) && memory.UUID == "" {
			if _, err := c.Admin.Ledger.Halt(bg, "ann", "a recover"); err != nil {
				t.Error(err)
			}
			memory = p.Memory(bg, record.Question{Barrier: c.barrier()})
		}
	}
	seg, err := p.TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.WentBack, "halted by ann")
	if !memory.Barred || memory.Marks[0].Next != 21 || c.Mark("a").Next != 21 { // what was sent counts, too
		t.Errorf("remembered %+v, the mark is %d, leased %v", memory, c.Mark("a").Next, seg)
	}
	c.mustRecover([]*process{p})
	p.hear()
	p.Lease(10)
	c.Check()
}

// A barrier bars an instance only where the instance's own etcd shows the halt that
// it names: a stranger's call, a rehearsal of recover on a restored copy, and a
// question that comes after the recover has ended bar none. Two anonymous calls
// once stopped a cluster for good.
func TestBarrierIsRefused(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.Lease(10)
	refused := func(name string, b *record.Barrier) {
		t.Helper()
		m := p.Memory(bg, record.Question{Barrier: b})
		if m.Barred || m.Unbarred == "" || len(m.Marks) == 0 {
			t.Errorf("%s: %+v", name, m)
		}
		if _, is := p.Barred(); is {
			t.Errorf("%s: barred", name)
		}
		p.Lease(10)
	}
	refused("a stranger's call", &record.Barrier{Nonce: "guessed", ClusterID: ledgertest.ClusterID})
	refused("an empty one", &record.Barrier{})

	// The rehearsal recovers a copy, with production's addresses.
	rehearsal := c.Mem.Copy(ledgertest.ClusterID, 1000)
	report, err := c.recover(rehearsal.Open(), []*process{p})
	ledgertest.WantKind(t, err, allocator.Refused, "not every instance answered")
	if len(report.Missing) != 1 {
		t.Errorf("rehearsal: %+v", report)
	}
	p.Lease(10)

	if _, err := c.Admin.Ledger.Halt(bg, "ann", "a recover"); err != nil {
		t.Fatal(err)
	}
	late := c.barrier()
	c.mustRecover([]*process{p})
	p.hear()
	refused("a late question", late)
	if why := c.isHalted(); why != "" {
		t.Errorf("halted: %s", why)
	}
	c.Check()
}

// A barrier is void once its instance meets an epoch in force: recover confirms the
// answers before it writes the epoch.
func TestBarrierIsVoidAfterAnEpoch(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.Lease(10)
	if _, err := c.Admin.Ledger.Halt(bg, "ann", "a recover"); err != nil {
		t.Fatal(err)
	}
	b := c.barrier()
	if m := p.Memory(bg, record.Question{Barrier: b}); !m.Barred {
		t.Fatalf("%+v", m)
	}
	halted := c.Value("epoch")
	c.mustRecover([]*process{p})
	p.hear()
	p.Lease(10)
	c.Corrupt("epoch", halted) // etcd went back to the halt
	if m := p.Memory(bg, record.Question{Barrier: b}); m.Barred {
		t.Errorf("barred by a halt that an epoch has followed: %+v", m)
	}
}
