package ledger_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// The epoch may be written by hand with other spaces: leases compare what
// stands there.
func TestEpochRewrittenByHand(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.Lease(10)
	c.Corrupt("epoch", bytes.ReplaceAll(c.Value("epoch"), []byte(`,`), []byte(` , `)))
	p.Lease(10)
	c.Move("100 a=50-100 b=0-50")
	p.Lease(10)
	c.Check()
}

const halted = `{"format":2,"halted":{"by":"i1","why":"a restore was seen","time":"2026-01-02T03:04:05Z","nonce":"n"}}`

func TestHalted(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.Lease(10)
	from, _ := c.Admin.Ledger.Refresh(bg)
	if n := p.Ledger.Regressions(); n != 0 {
		t.Errorf("%d regressions before any", n)
	}
	c.Corrupt("epoch", []byte(halted))
	_, err := p.TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.WentBack, "halted by i1 since 2026-01-02T03:04:05Z: a restore was seen",
		"march recover")
	ledgertest.WantKind(t, p.Ledger.Leasable(), allocator.WentBack, "halted by i1")
	if n := p.Ledger.Regressions(); n != 1 {
		t.Errorf("%d regressions, want the one that halted", n)
	}
	// Also a process that has not heard of it: its transaction does not happen, and it says so.
	_, err = c.Admin.ChangeLayout(bg, from, ledgertest.Lay(t, "10 a=0-10"), "test")
	ledgertest.WantKind(t, err, allocator.WentBack, "halted by i1")
	_, err = c.Admin.ChangeLayout(bg, from, ledgertest.Lay(t, "10 a=0-10"), "test")
	ledgertest.WantKind(t, err, allocator.WentBack, "halted by i1")
	late := c.start("b") // may register, and
	_, err = late.TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.WentBack)
	// A new epoch: the mark's stamp is no longer good, so a lease passes by the floor.
	c.mustRecover([]*process{p, late})
	p.hear()
	p.Lease(10)
	c.Check()
}

func TestRefreshDoesNotGoBack(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	c.Move("100 a=50-100 b=0-50")
	if _, err := p.Ledger.Refresh(bg); err != nil {
		t.Fatal(err)
	}
	// A stale read is looked at again, in a way that cannot be stale; an etcd that
	// stays in the past went back.
	p.Conn.Next(ledgertest.Fate{Name: ledgertest.StaleRead, N: 1}, func(store.Txn) bool { return true })
	if r, err := p.Ledger.Refresh(bg); err != nil || r.Layout.Version != 2 {
		t.Errorf("after one stale read: %+v, %v", r, err)
	}
	p.Conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.StaleRead, N: 1} })
	if r, err := p.Ledger.Refresh(bg); err != nil || r.Layout.Version != 2 {
		t.Errorf("while all reads are stale: %+v, %v", r, err)
	}
	c.Check()
	p.Conn.Fate(nil)
	first := c.Mem.Revision()
	c.Tag("u", func(*record.TagSettings) {})
	if _, err := p.Ledger.Refresh(bg); err != nil {
		t.Fatal(err)
	}
	c.Mem.Restore(first, 0, ledgertest.ClusterID)
	_, err := p.Ledger.Refresh(bg)
	if h, ok := p.Ledger.Halted(); err != nil || !ok || h.By != "instance a/i1" ||
		!strings.Contains(h.Why, "after it had shown revision") {
		t.Errorf("after a restore: %+v, %v, %v", h, ok, err)
	}
	if n := p.Ledger.Regressions(); n != 1 {
		t.Errorf("%d regressions, want 1", n)
	}
	if r, _ := p.Ledger.Layout(); r.Layout.Version != 2 {
		t.Errorf("adopted version %d", r.Layout.Version)
	}
	// A process that leases nothing says what it sees, and halts no other.
	fresh := ledgertest.Open(t, c.Mem.Open())
	if _, err := fresh.Refresh(bg); err != nil {
		t.Errorf("newcomer: %v", err)
	}
	ledgertest.WantKind(t, fresh.Leasable(), allocator.WentBack, "halted by instance a/i1")
}

func TestLeasableBeforeAnythingWasRead(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.NewFake(t).Open())
	ledgertest.WantKind(t, l.Leasable(), allocator.Unavailable, "has not been read from etcd yet")
	if r, _ := l.Layout(); r.Layout.Version != 0 {
		t.Errorf("layout %+v", r)
	}
	_, err := l.Refresh(bg)
	ledgertest.WantKind(t, err, allocator.Refused, "march layout init")
}
