package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
)

// Of two recovers at once, the one that another overtakes ends, whatever it was
// doing, and takes nothing with it: not what it found, nor what it asked. The
// other one is whole.
func TestRecoversAtOnce(t *testing.T) {
	overtaken := 0
	for at := 1; ; at++ {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a, b := c.start("a"), c.start("b")
		a.Lease(10)
		b.Lease(10)
		backup := c.Mem.Revision()
		a.Lease(1000)
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		living := []*process{a, b}
		conn := c.Mem.Open()
		var mu sync.Mutex
		met, other := 0, (*recovery.Report)(nil)
		conn.Fate(func(store.Txn) ledgertest.Fate {
			mu.Lock()
			met++
			now := met == at
			mu.Unlock()
			if now {
				other = c.mustRecover(living)
				for _, p := range living {
					p.hear()
					p.Lease(10)
				}
			}
			return ledgertest.Fate{}
		})
		report, err := c.recover(conn, living)
		if err != nil {
			if kind := allocator.KindOf(err); kind != allocator.Conflict && kind != allocator.Refused {
				t.Errorf("overtaken before transaction %d: %v", at, err)
			}
			overtaken++
			report = other
		}
		// It may have ended just before the other one began.
		if is := string(c.Value("epoch")); report == nil || !strings.Contains(is, report.Epoch) &&
			(other == nil || !strings.Contains(is, other.Epoch)) {
			t.Fatalf("before transaction %d: %v, the epoch is %s, the report %+v", at, err, is, report)
		}
		for _, p := range living {
			p.hear()
			p.Lease(10)
		}
		verified(t, c)
		c.Check()
		if met < at {
			break // there was no such transaction
		}
	}
	if overtaken < 5 {
		t.Errorf("%d were overtaken", overtaken)
	}
}

// Etcd is restored while a recover runs, before each of its transactions in turn.
// That recover, or one after it, brings the cluster back whole.
func TestRestoreDuringRecover(t *testing.T) {
	overtaken := 0
	for at := 1; ; at++ {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a, b := c.start("a"), c.start("b")
		a.Lease(10)
		backup := c.Mem.Revision()
		for _, layout := range []string{"100 a=0-30 b=50-100", "10 a=0-3 b=3-10", "100 a=0-30 b=50-100"} {
			c.Move(layout)
			a.Lease(100)
			b.Lease(1000)
		}
		living := []*process{a, b}
		conn := c.Mem.Open()
		var mu sync.Mutex
		met := 0
		conn.Fate(func(store.Txn) ledgertest.Fate {
			mu.Lock()
			defer mu.Unlock()
			if met++; met == at {
				c.Mem.Restore(backup, 0, ledgertest.ClusterID)
			}
			return ledgertest.Fate{}
		})
		if _, err := c.recover(conn, living); err != nil {
			overtaken++
			if !errors.Is(err, allocator.Conflict) && !errors.Is(err, allocator.WentBack) &&
				!errors.Is(err, allocator.Refused) {
				t.Errorf("before transaction %d: %v", at, err)
			}
		}
		if report, err := c.recover(c.Mem.Open(), living); err != nil || len(report.Missing) > 0 {
			t.Fatalf("before transaction %d: %+v, %v", at, report, err)
		}
		for range 2 {
			for _, p := range living {
				p.hear()
				p.Lease(100)
			}
		}
		verified(t, c)
		c.Check()
		if met < at {
			break // there was no such transaction
		}
	}
	if overtaken < 3 {
		t.Errorf("%d were overtaken", overtaken)
	}
}

// Marks are raised many in one transaction. Where one of them changed meanwhile, none of
// that transaction is raised, and all are in the next try; and none falls.
func TestRecoverRaisesAllThoughOneChanged(t *testing.T) {
	const tags = 250 // three transactions
	c := newCluster(t, "100 a=0-50 b=50-100")
	a := c.start("a")
	name := func(i int) allocator.Tag { return allocator.Tag(fmt.Sprintf("tag-%03d", i)) }
	for i := range tags {
		c.Tag(name(i), func(*record.TagSettings) {})
	}
	backup := c.Mem.Revision()
	for i := range tags {
		if _, err := a.TryLease(name(i), 10); err != nil {
			t.Fatal(err)
		}
	}
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	conn := c.Mem.Open()
	var mu sync.Mutex
	var sizes []int
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if ledgertest.PutsUnder("marks/")(txn) {
			mu.Lock()
			defer mu.Unlock()
			if sizes = append(sizes, len(txn.Then)); len(sizes) == 1 {
				c.Corrupt("marks/a/"+string(name(7)), []byte(`{"format":2,"next":"1000000"}`))
				c.Corrupt("marks/a/"+string(name(125)), []byte(`{"format":2,"next":"1000000"}`))
				c.Corrupt("marks/a/"+string(name(245)), []byte(`{"format":2,"next":"1000000"}`))
			}
		}
		return ledgertest.Fate{}
	})
	report, err := c.recover(conn, []*process{a})
	if err != nil || report.Raised != tags {
		t.Fatalf("%+v, %v", report, err)
	}
	if len(sizes) < 4 || slices.Max(sizes) < 100 {
		t.Errorf("it raised %v marks in a transaction: one should have been refused, with many in it", sizes)
	}
	for i := range tags {
		want := a.Last(name(i)) + 1
		if i == 7 || i == 125 || i == 245 {
			want = 1_000_000
		}
		if m := c.markOf("a", name(i)); m.Next != want {
			t.Errorf("tag %s: its mark is %d, want %d", name(i), m.Next, want)
		}
	}
}
