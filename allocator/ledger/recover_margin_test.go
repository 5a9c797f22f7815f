package ledger_test

import (
	"math"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// A raise takes over the margin total of the lease that it is for. It once kept the mark's: the
// room then got the margins of earlier recovers once more, and went further than the total said.
func TestRaiseTakesOverTheTotalOfItsLease(t *testing.T) {
	c := newCluster(t, "1000 a=0-500 b=500-1000")
	c.Tag("t1", steps(500))
	const span = 2 * 1000
	a, b := c.start("a"), c.start("b")
	lease := func(n int64) allocator.Segment {
		t.Helper()
		a.hear()
		seg, err := a.TryLease("t1", n)
		if err != nil {
			t.Fatal(err)
		}
		return seg
	}
	lease(10)
	backup := c.Mem.Revision()
	c.mustRecover([]*process{a}, without(b.id()), margin(5))
	lost := lease(10)
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	if report := c.mustRecover([]*process{a}, without(b.id()), margin(3)); report.Total != 8 {
		t.Fatalf("total %d", report.Total)
	}
	if m := c.markOf("a", "t1"); m.Next != lost.Last()+1 || m.Total != 5 {
		t.Errorf("the raised mark: %+v", m)
	}
	if seg := lease(10); seg.First < lost.Last()+3*span || seg.First > lost.Last()+3*span+1000 {
		t.Errorf("after the second recover: %v; the lost lease ended at %d", seg, lost.Last())
	}
	c.Check()
}

// Margins that do not fit together would be none: the sum was below zero, so no mark lacked any, or no program could
// read the epoch. A room's user of etcd could bring that about by its own mark, which a mirror saw.
func TestMarginsThatDoNotFit(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.start("a"), c.start("b")
	a.Lease(10)
	b.Lease(10)
	_, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), margin(math.MaxInt64))
	ledgertest.WantKind(t, err, allocator.Refused, "margin: 9223372036854775807")
	mark := value[record.Mark](c, "marks/a/t")
	mark.Next, mark.Total = mark.Next+1, math.MaxInt64
	backup := c.Mem.Revision()
	c.Corrupt("marks/a/t", mark.Encode())
	saw := c.mirror()
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	a.hear()
	if report := c.mustRecover([]*process{a}, without(b.id()), margin(2), witness(saw)); report.Total != 2 {
		t.Errorf("the margin total is %d", report.Total)
	}
}
