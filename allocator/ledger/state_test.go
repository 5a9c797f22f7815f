package ledger_test

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// An operator's hand, or another program, may damage epoch and layout. Then nothing is
// leased, by processes that knew the layout before and by others, and Leasable says why,
// until the values are repaired.
func TestInvalidLayoutLeasesNothing(t *testing.T) {
	swap := func(from, to string) func([]byte) []byte {
		return func(b []byte) []byte {
			if !bytes.Contains(b, []byte(from)) {
				panic(from + " is not in " + string(b))
			}
			return bytes.ReplaceAll(b, []byte(from), []byte(to))
		}
	}
	gone := func([]byte) []byte { return nil }
	both := []string{"layout", "layouts/0000000000000000002"}
	for _, test := range []struct {
		name string
		keys []string
		make func([]byte) []byte
		says string
	}{
		{"layout is garbage", []string{"layout"}, func([]byte) []byte { return []byte("garbage") }, "not a value"},
		{"layout is empty", []string{"layout"}, func([]byte) []byte { return []byte{} }, "not a value"},
		{"layout is gone", []string{"layout"}, gone, "layout: it is missing"},
		{"a range differs from the history", []string{"layout"}, swap(`"lower":"10"`, `"lower":"11"`),
			"differs from its own history"},
		{"the history differs", []string{both[1]}, swap(`"lower":"10"`, `"lower":"11"`),
			"differs from its own history"},
		{"the history is gone", []string{both[1]}, gone, "but there is no key"},
		{"ranges overlap", both, swap(`"upper":"10"`, `"upper":"20"`), "overlap"},
		{"an unknown format", both, swap(`"format":3`, `"format":9`), "format 9; this program knows format 3"},
		{"an unknown field", both, swap(`"ever":`, `"weight":1,"ever":`), "weight"},
		{"a field is missing", both, swap(`"actor":"test",`, ``), "actor"},
		{"a number that is not a string", both, swap(`"boundary":"100"`, `"boundary":100`), "string"},
		{"a rounded number", both, swap(`"boundary":"100"`, `"boundary":"1e2"`), "boundary"},
		{"no list of rooms that ever were", both, swap(`"ever":["a","b","c"]`, `"ever":[]`), "rooms that ever were"},
		{"a room that ever was is gone", both, swap(`"ever":["a","b","c"]`, `"ever":["a","b"]`), "has shrunk"},
		{"a room that never could be", both, swap(`"ever":["a","b","c"]`, `"ever":["a","b","c","c/t/../x"]`),
			"rooms that ever were"},
		{"rooms that ever were out of order", both, swap(`"ever":["a","b","c"]`, `"ever":["a","b","b","c"]`),
			"rooms that ever were"},
		{"the version fell", []string{"layout"}, swap(`"version":"2"`, `"version":"1"`), "history goes on to"},
		{"the version rose", []string{"layout"}, swap(`"version":"2"`, `"version":"3"`), "but there is no key"},
		{"epoch is gone", []string{"epoch"}, gone, "epoch"},
		{"epoch is garbage", []string{"epoch"}, func([]byte) []byte { return []byte("{}") }, "epoch"},
		{"epoch is empty", []string{"epoch"}, func([]byte) []byte { return []byte(`{"format":2}`) }, "is empty"},
		{"epoch has an unknown format", []string{"epoch"}, swap(`"format":2`, `"format":9`), "format 9"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, "100 a=0-10 b=10-50 c=50-100")
			p := c.start("b")
			p.Lease(10)
			c.Move("100 a=0-10 b=10-100")
			p.Lease(10)
			good, _ := p.Ledger.Layout()
			newcomer := ledgertest.Open(t, c.Mem.Open())
			was := map[string][]byte{}
			for _, key := range test.keys {
				was[key] = c.Value(key)
				c.Corrupt(key, test.make(was[key]))
			}
			mark := c.Mark("b")
			for _, l := range []*ledger.Ledger{p.Ledger, c.Admin.Ledger} { // as Run does by itself
				_, err := l.Refresh(bg)
				ledgertest.WantKind(t, err, allocator.Refused, test.says)
			}
			_, err := p.TryLease("t", 10)
			ledgertest.WantKind(t, err, allocator.Refused, test.says)
			ledgertest.WantKind(t, p.Ledger.Leasable(), allocator.Refused, test.says, "repaired")
			if !reflect.DeepEqual(c.Mark("b"), mark) {
				t.Errorf("the mark went from %+v to %+v", mark, c.Mark("b"))
			}
			if now, _ := p.Ledger.Layout(); now.Layout.Version != good.Layout.Version ||
				!now.Layout.Equal(good.Layout) {
				t.Errorf("the last good layout is not kept: %+v, was %+v", now, good)
			}
			_, err = newcomer.Join(bg, ledger.Registration{Room: "b", Name: "new"})
			ledgertest.WantKind(t, err, allocator.Refused, test.says)
			ledgertest.WantKind(t, newcomer.Leasable(), allocator.Refused, test.says)
			_, err = c.Admin.ChangeLayout(bg, good, ledgertest.Lay(t, "100 a=0-100"), "test")
			ledgertest.WantKind(t, err, allocator.Refused, test.says)
			for key, value := range was {
				c.Corrupt(key, value)
			}
			p.Lease(10)
			if err := p.Ledger.Leasable(); err != nil {
				t.Errorf("after the repair: %v", err)
			}
			c.start("b").Lease(10)
			c.Check()
		})
	}
}

// A version that fell in layout and history together: a process that knew the higher one
// refuses it.
func TestLayoutVersionFellWithItsHistory(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	first := c.Value("layout")
	c.Move("100 a=50-100 b=0-50")
	p.Lease(10)
	second := c.Value("layout")
	c.Corrupt("layouts/0000000000000000002", nil)
	c.Corrupt("layout", first)
	_, err := p.TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.Refused, "version 1 is below 2")
	c.Corrupt("layouts/0000000000000000002", second)
	c.Corrupt("layout", second)
	p.Lease(10)
	c.Check()
}

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

// A layout that is put again, unchanged, has a new stamp: another era begins.
func TestLayoutTouched(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.start("a"), c.start("b")
	a.Lease(1000)
	c.Corrupt("layout", c.Value("layout"))
	if seg := b.Lease(10); seg.First < 2000 {
		t.Errorf("room b did not pass by the floor: %v", seg)
	}
	a.Lease(10)
	if eras := c.Mark("a").Eras; len(eras) != 2 || eras[0].Version != eras[1].Version {
		t.Errorf("eras: %v", eras)
	}
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
	_, err = l.Cluster().Dump(context.Background())
	if err != nil {
		t.Errorf("dump of nothing: %v", err)
	}
}
