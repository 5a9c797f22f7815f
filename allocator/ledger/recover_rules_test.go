package ledger_test

import (
	"context"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
)

// Another process answers at an address between the two questions, and has leased more than etcd
// knows. It is asked for all that it remembers, and not for changes since the answer of the process
// before: also where that one was asked again, as it did not accept the barrier yet. That one did not
// confirm its answer, so it is missing.
func TestRecoverAsksTheNextProcessOfAnAddressForAll(t *testing.T) {
	for _, late := range []bool{false, true} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		b := c.startAs("b", "two")
		b.Lease(10)
		backup := c.Mem.Revision()
		a := c.startAs("a", "one")
		a.Lease(1000) // before its memory has changed as often as the other's
		for range 50 {
			b.Lease(10)
		}
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		answering, refuses := b, late
		ask := func(cfg *recovery.Config) {
			cfg.Ask = func(ctx context.Context, _ record.SeenInstance, q record.Question,
				use record.UseMarks) (record.Memory, error) {
				if q.Barrier != nil && refuses {
					refuses, q.Barrier = false, nil
				} else if q.Barrier != nil {
					answering = a
				}
				m := answering.Memory(ctx, q)
				return m, use(m.Room, m.Marks)
			}
		}
		report, err := c.recover(c.Mem.Open(), nil, ask)
		ledgertest.WantKind(t, err, allocator.Refused, "--without b/two")
		if len(report.Missing) != 1 || report.Missing[0].Incarnation != b.Incarnation() {
			t.Errorf("missing: %+v", report.Missing)
		}
		answering, refuses = b, late
		report = c.mustRecover(nil, ask, without("b/two"), margin(0))
		if report.Raised < 2 || c.Mark("a").Next < 1000 {
			t.Errorf("raised %d marks, that of room a is %d", report.Raised, c.Mark("a").Next)
		}
	}
}

// carried is a store whose answers to heartbeats come over another connection than all others, for
// as long as it says. It notes heartbeats and leaves.
type carried struct {
	store.Store
	times int
	did   []string
}

func (s *carried) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	for _, op := range txn.Then {
		switch {
		case op.Put == nil:
		case strings.HasPrefix(op.Put.Key, prefix+"alive/"):
			if s.did = append(s.did, "heartbeat"); s.times > 0 {
				s.times--
				answer.Connection += 100
			}
		case strings.Contains(string(op.Put.Value), `"leaving":true`):
			s.did = append(s.did, "leaving")
		}
	}
	return answer, err
}

// A leave counts only after a heartbeat whose answer came over the connection that was checked.
func TestLeaveTakesACheckedHeartbeat(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.process()
	etcd := &carried{Store: p.Conn}
	p.Ledger = ledgertest.Open(t, etcd)
	var err error
	if p.Instance, err = p.Ledger.Join(bg, ledger.Registration{Room: "a", Name: "one", Address: "one"}); err != nil {
		t.Fatal(err)
	}
	p.Lease(10)
	etcd.times, etcd.did = 2, nil
	if err := p.Leave(bg); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(etcd.did, " "); got != "heartbeat heartbeat heartbeat leaving" {
		t.Errorf("it left by: %s", got)
	}
}

// A lease that the journal does not have is lost, though etcd has it: a restarted process would not
// know of its IDs.
func TestLeaseWithoutItsJournalIsLost(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.mustStartWith(t, "a", "one", t.TempDir())
	p.Lease(10)
	next := c.Mark("a").Next
	p.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if ledgertest.PutsUnder("marks/")(txn) {
			_ = p.Close() // the journal closes after it was asked whether it can be written
		}
		return ledgertest.Fate{}
	})
	seg, err := p.TryLease("t", 10)
	if err == nil || seg.Count > 0 || c.Mark("a").Next <= next {
		t.Errorf("leased %v, %v; the mark went from %d to %d", seg, err, next, c.Mark("a").Next)
	}
}
