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

// What an operator's hand, or another program, may do to epoch and layout:
// nothing is leased, by processes that knew the layout before and by others, and
// Leasable says why, until it is repaired.
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
		{"a range differs from the history", []string{"layout"}, swap(`"lower":"10"`, `"lower":"11"`), "differs from its own history"},
		{"the history differs", []string{both[1]}, swap(`"lower":"10"`, `"lower":"11"`), "differs from its own history"},
		{"the history is gone", []string{both[1]}, gone, "but there is no key"},
		{"ranges overlap", both, swap(`"upper":"10"`, `"upper":"20"`), "overlap"},
		{"an unknown format", both, swap(`"format":2`, `"format":3`), "format 3; this program knows format 2"},
		{"an unknown field", both, swap(`"ever":`, `"weight":1,"ever":`), "weight"},
		{"a field is missing", both, swap(`"actor":"test",`, ``), "actor"},
		{"a number that is not a string", both, swap(`"boundary":"100"`, `"boundary":100`), "string"},
		{"a rounded number", both, swap(`"boundary":"100"`, `"boundary":"1e2"`), "boundary"},
		{"no list of rooms that ever were", both, swap(`"ever":["a","b","c"]`, `"ever":[]`), "rooms that ever were"},
		{"a room that ever was is gone", both, swap(`"ever":["a","b","c"]`, `"ever":["a","b"]`), "has shrunk"},
		{"a room that never could be", both, swap(`"ever":["a","b","c"]`, `"ever":["a","b","c","c/t/../x"]`), "rooms that ever were"},
		{"rooms that ever were out of order", both, swap(`"ever":["a","b","c"]`, `"ever":["a","b","b","c"]`), "rooms that ever were"},
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
			p.lease(10)
			c.move("100 a=0-10 b=10-100")
			p.lease(10)
			good, _ := p.ledger.Layout()
			newcomer := open(t, c.mem.Open())
			was := map[string][]byte{}
			for _, key := range test.keys {
				was[key] = c.value(key)
				c.corrupt(key, test.make(was[key]))
			}
			mark := c.mark("b")
			for _, l := range []*ledger.Ledger{p.ledger, c.admin.Ledger} { // as Run does by itself
				_, err := l.Refresh(bg)
				wantKind(t, err, allocator.Refused, test.says)
			}
			_, err := p.tryLease("t", 10)
			wantKind(t, err, allocator.Refused, test.says)
			wantKind(t, p.ledger.Leasable(), allocator.Refused, test.says, "repaired")
			if !reflect.DeepEqual(c.mark("b"), mark) {
				t.Errorf("the mark went from %+v to %+v", mark, c.mark("b"))
			}
			if now, _ := p.ledger.Layout(); now.Layout.Version != good.Layout.Version || !now.Layout.Equal(good.Layout) {
				t.Errorf("the last good layout is not kept: %+v, was %+v", now, good)
			}
			_, err = newcomer.Join(bg, ledger.Registration{Room: "b", Name: "new"})
			wantKind(t, err, allocator.Refused, test.says)
			wantKind(t, newcomer.Leasable(), allocator.Refused, test.says)
			_, err = c.admin.ChangeLayout(bg, good, lay(t, "100 a=0-100"), "test")
			wantKind(t, err, allocator.Refused, test.says)
			for key, value := range was {
				c.corrupt(key, value)
			}
			p.lease(10)
			if err := p.ledger.Leasable(); err != nil {
				t.Errorf("after the repair: %v", err)
			}
			c.start("b").lease(10)
			c.check()
		})
	}
}

// A version that fell in layout and history together: a process that knew the higher one
// refuses it.
func TestLayoutVersionFellWithItsHistory(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	first := c.value("layout")
	c.move("100 a=50-100 b=0-50")
	p.lease(10)
	second := c.value("layout")
	c.corrupt("layouts/0000000000000000002", nil)
	c.corrupt("layout", first)
	_, err := p.tryLease("t", 10)
	wantKind(t, err, allocator.Refused, "version 1 is below 2")
	c.corrupt("layouts/0000000000000000002", second)
	c.corrupt("layout", second)
	p.lease(10)
	c.check()
}

// The epoch may be written by hand with other spaces: leases compare what
// stands there.
func TestEpochRewrittenByHand(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.lease(10)
	c.corrupt("epoch", bytes.ReplaceAll(c.value("epoch"), []byte(`,`), []byte(` , `)))
	p.lease(10)
	c.move("100 a=50-100 b=0-50")
	p.lease(10)
	c.check()
}

// A layout that is put again, unchanged, has a new stamp: another era begins.
func TestLayoutTouched(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.start("a"), c.start("b")
	a.lease(1000)
	c.corrupt("layout", c.value("layout"))
	if seg := b.lease(10); seg.First < 2000 {
		t.Errorf("room b did not pass by the floor: %v", seg)
	}
	a.lease(10)
	if eras := c.mark("a").Eras; len(eras) != 2 || eras[0].Version != eras[1].Version {
		t.Errorf("eras: %v", eras)
	}
	c.check()
}

const halted = `{"format":2,"halted":{"by":"i1","why":"a restore was seen","time":"2026-01-02T03:04:05Z","nonce":"n"}}`

func TestHalted(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.lease(10)
	from, _ := c.admin.Ledger.Refresh(bg)
	if n := p.ledger.Regressions(); n != 0 {
		t.Errorf("%d regressions before any", n)
	}
	c.corrupt("epoch", []byte(halted))
	_, err := p.tryLease("t", 10)
	wantKind(t, err, allocator.WentBack, "halted by i1 since 2026-01-02T03:04:05Z: a restore was seen", "march recover")
	wantKind(t, p.ledger.Leasable(), allocator.WentBack, "halted by i1")
	if n := p.ledger.Regressions(); n != 1 {
		t.Errorf("%d regressions, want the one that halted", n)
	}
	// Also a process that has not heard of it: its transaction does not happen, and it says so.
	_, err = c.admin.ChangeLayout(bg, from, lay(t, "10 a=0-10"), "test")
	wantKind(t, err, allocator.WentBack, "halted by i1")
	_, err = c.admin.ChangeLayout(bg, from, lay(t, "10 a=0-10"), "test")
	wantKind(t, err, allocator.WentBack, "halted by i1")
	late := c.start("b") // may register, and
	_, err = late.tryLease("t", 10)
	wantKind(t, err, allocator.WentBack)
	// A new epoch: the mark's stamp is no longer good, so a lease passes by the floor.
	c.mustRecover([]*process{p, late})
	p.hear()
	p.lease(10)
	c.check()
}

func TestRefreshDoesNotGoBack(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	c.move("100 a=50-100 b=0-50")
	if _, err := p.ledger.Refresh(bg); err != nil {
		t.Fatal(err)
	}
	// A stale read is looked at again, in a way that cannot be stale; an etcd that
	// stays in the past went back.
	p.next(ledgertest.Fate{Name: ledgertest.StaleRead, N: 1}, func(store.Txn) bool { return true })
	if r, err := p.ledger.Refresh(bg); err != nil || r.Layout.Version != 2 {
		t.Errorf("after one stale read: %+v, %v", r, err)
	}
	p.conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.StaleRead, N: 1} })
	if r, err := p.ledger.Refresh(bg); err != nil || r.Layout.Version != 2 {
		t.Errorf("while all reads are stale: %+v, %v", r, err)
	}
	c.check()
	p.conn.Fate(nil)
	first := c.mem.Revision()
	c.tag("u", func(*record.TagSettings) {})
	if _, err := p.ledger.Refresh(bg); err != nil {
		t.Fatal(err)
	}
	c.mem.Restore(first, 0, ledgertest.ClusterID)
	_, err := p.ledger.Refresh(bg)
	if h, ok := p.ledger.Halted(); err != nil || !ok || h.By != "instance a/i1" || !strings.Contains(h.Why, "after it had shown revision") {
		t.Errorf("after a restore: %+v, %v, %v", h, ok, err)
	}
	if n := p.ledger.Regressions(); n != 1 {
		t.Errorf("%d regressions, want 1", n)
	}
	if r, _ := p.ledger.Layout(); r.Layout.Version != 2 {
		t.Errorf("adopted version %d", r.Layout.Version)
	}
	// A process that leases nothing says what it sees, and halts no other.
	fresh := open(t, c.mem.Open())
	if _, err := fresh.Refresh(bg); err != nil {
		t.Errorf("newcomer: %v", err)
	}
	wantKind(t, fresh.Leasable(), allocator.WentBack, "halted by instance a/i1")
}

// NoRange and Exhausted are not said from memory: a room that was given a range
// while no process watched leases at once.
func TestNewsIsReadBeforeRefusing(t *testing.T) {
	c := newCluster(t, "100 a=0-100")
	b := c.start("b")
	_, err := b.tryLease("t", 1)
	wantKind(t, err, allocator.NoRange, "room b", "version 1")
	c.move("100 a=0-50 b=50-100")
	b.lease(1)
	c.check()
}

func TestLessableBeforeAnythingWasRead(t *testing.T) {
	l := open(t, ledgertest.NewFake(t).Open())
	wantKind(t, l.Leasable(), allocator.Unavailable, "not read yet")
	if r, _ := l.Layout(); r.Layout.Version != 0 {
		t.Errorf("layout %+v", r)
	}
	_, err := l.Refresh(bg)
	wantKind(t, err, allocator.Refused, "march layout init")
	_, err = l.Cluster().Dump(context.Background())
	if err != nil {
		t.Errorf("dump of nothing: %v", err)
	}
}
