package ledger_test

import (
	"context"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// A recover that broke off after a raise leaves nothing that the next one does not know: the raised mark has the
// total of a lost history, and the next recover's margin counts from above it. Before, that margin was 0 for the
// mark, and the IDs of an instance that was left out came twice.
func TestTotalOfARecoverThatBrokeOff(t *testing.T) {
	c := newCluster(t, "1000 a=0-500 b=500-1000")
	c.Tag("t1", steps(500))
	one, two, b := c.startAs("a", "one"), c.startAs("a", "two"), c.start("b")
	lease := func(p *process) allocator.Segment {
		t.Helper()
		p.hear()
		seg, err := p.TryLease("t1", 10)
		if err != nil {
			t.Fatal(err)
		}
		return seg
	}
	lease(one)
	backup := c.Mem.Revision()
	c.mustRecover([]*process{one, two}, without(b.id()), margin(5))
	lease(one)
	lost := lease(two)
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	barriers := 0
	dies := func(cfg *recovery.Config) { // before the second barrier
		ask := cfg.Ask
		cfg.Ask = func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			if q.Barrier != nil && s.Address == "one.test:7010" {
				if barriers++; barriers == 2 {
					return record.Memory{}, allocator.Errorf(allocator.Unavailable, "it died")
				}
			}
			return ask(ctx, s, q, use)
		}
	}
	if _, err := c.recover(c.Mem.Open(), []*process{one}, without(two.id(), b.id()), margin(3), dies); err == nil {
		t.Fatal("a recover whose instance died went on")
	}
	if mark := c.markOf("a", "t1"); mark.Total != 5 || mark.Next <= lost.First-10 {
		t.Fatalf("the recover raised nothing before it broke off: %+v", mark)
	}
	c.mustRecover(nil, without(one.id(), two.id(), b.id()), margin(3))
	if got := lease(c.startAs("a", "three")); got.First <= lost.Last() {
		t.Errorf("%v is leased again: another instance had %v", got, lost)
	}
}
