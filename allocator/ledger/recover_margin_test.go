package ledger_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
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
