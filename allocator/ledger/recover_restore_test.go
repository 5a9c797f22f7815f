package ledger_test

import (
	"errors"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// Etcd is restored while a recover runs, before each of its transactions in turn:
// it begins on a store that knows layouts which the restored one does not. That
// recover, or one after it, brings the cluster back whole, with eras in order.
func TestRestoreDuringRecover(t *testing.T) {
	overtaken := 0
	for at := 1; ; at++ {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a, b := c.start("a"), c.start("b")
		a.lease(10)
		backup := c.mem.Revision()
		for _, layout := range []string{"100 a=0-30 b=50-100", "10 a=0-3 b=3-10", "100 a=0-30 b=50-100"} {
			c.move(layout)
			a.lease(100)
			b.lease(1000)
		}
		living := []*process{a, b}
		conn := c.mem.Open()
		met := 0
		conn.Fate(func(ledger.Txn) ledgertest.Fate {
			if met++; met == at {
				c.mem.Restore(backup, 0, ledgertest.ClusterID)
			}
			return ledgertest.Fate{}
		})
		if _, err := c.recover(conn, living); err != nil {
			overtaken++
			if !errors.Is(err, allocator.Conflict) && !errors.Is(err, allocator.WentBack) && !errors.Is(err, allocator.Refused) {
				t.Errorf("before transaction %d: %v", at, err)
			}
		}
		if report, err := c.recover(c.mem.Open(), living); err != nil || len(report.Missing) > 0 {
			t.Fatalf("before transaction %d: %+v, %v", at, report, err)
		}
		for range 2 {
			for _, p := range living {
				p.ledger.Uncheck()
				p.lease(100)
			}
		}
		verify(t, c)
		c.check()
		if met < at {
			break // there was no such transaction
		}
	}
	if overtaken < 5 {
		t.Errorf("%d were overtaken", overtaken)
	}
}

// A mark that was read before recover asked, and whose answer came after, is not
// remembered: recover does not know of it, and need not, since whoever leased
// below it has answered, or was asked before it could take the lease for its own.
// Remembered, it would look like IDs that recover left out.
func TestAnswerFromBeforeRecoverAsked(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a := c.start("a")
	a.lease(10)
	was := a.report().Marks["t"]
	if behind, ok := a.RecallAcross(func() { _, _ = a.Report(true) }, "t", was+1000); ok || behind != 0 || a.report().Marks["t"] != was {
		t.Errorf("behind %d, %v, remembers %v; want %d", behind, ok, a.report().Marks["t"], was)
	}
	if behind, ok := a.RecallAcross(func() {}, "t", was+1000); !ok || behind != 0 || a.report().Marks["t"] != was+1000 {
		t.Errorf("with nothing in between: behind %d, %v, remembers %v", behind, ok, a.report().Marks["t"])
	}
}
