package ledger_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
)

// recover recovers c with the processes that live, on the layout that is known.
func (c *cluster) recover(conn store.Store, living []*process,
	change ...func(*recovery.Config)) (*recovery.Report, error) {
	cfg := recovery.Config{Actor: "ann", Apply: true, Layout: recovery.LayoutKnown, Ask: asking(living)}
	for _, f := range change {
		f(&cfg)
	}
	return recovery.Run(bg, ledgertest.Open(c.TB, conn), cfg)
}

// mustRecover recovers c, which must not fail.
func (c *cluster) mustRecover(living []*process, change ...func(*recovery.Config)) *recovery.Report {
	c.Helper()
	report, err := c.recover(c.Mem.Open(), living, change...)
	if err != nil || report.Epoch == "" {
		c.Fatalf("recover: %+v, %v", report, err)
	}
	return report
}

// asking asks the processes that live, at their addresses.
func asking(living []*process) recovery.Ask {
	return func(ctx context.Context, s record.SeenInstance, q record.Question,
		use record.UseMarks) (record.Memory, error) {
		for _, p := range living {
			if s.Address == string(p.Name())+".test:7010" {
				m := p.Memory(ctx, q)
				return m, use(m.Room, m.Marks)
			}
		}
		return record.Memory{}, allocator.Errorf(allocator.Unavailable, "no process is at %s", s.Address)
	}
}

func without(ids ...record.InstanceID) func(*recovery.Config) {
	return func(cfg *recovery.Config) { cfg.Without = ids }
}

func margin(steps int64) func(*recovery.Config) {
	return func(cfg *recovery.Config) { cfg.Margin = &steps }
}

func (p *process) id() record.InstanceID {
	return ledger.Registration{Room: p.Room(), Name: p.Name()}.ID()
}

// hear has p read what etcd shows now.
func (p *process) hear() {
	p.c.Helper()
	p.Ledger.Uncheck()
	if _, err := p.Ledger.Refresh(bg); err != nil && allocator.KindOf(err) == allocator.Unavailable {
		p.c.Fatalf("refresh: %v", err)
	}
}

// verified checks that verify.Run finds nothing wrong.
func verified(t *testing.T, c *cluster) {
	t.Helper()
	report, err := verify.Run(bg, ledgertest.Open(t, c.Mem.Open()).Cluster(), verify.Options{})
	if err != nil || len(report.Problems) > 0 {
		t.Errorf("verify: %q, %v", report.Problems, err)
	}
}

// Recover writes only marks that a memory knows better than the store: with ten
// thousand tags that no room leased since the backup it writes as much as with ten.
// It once raised the marks of every tag in every room while leasing was halted.
func TestRecoverCostsTheSame(t *testing.T) {
	cost := func(tags int) (writes int) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a, b := c.start("a"), c.start("b")
		for i := range tags {
			tag := allocator.Tag(fmt.Sprint("tag-", i))
			c.Tag(tag, func(*record.TagSettings) {})
			for _, p := range []*process{a, b} {
				if _, err := p.TryLease(tag, 10); err != nil {
					t.Fatal(err)
				}
			}
		}
		backup := c.Mem.Revision()
		a.Lease(10)
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		conn := c.Mem.Open()
		var mu sync.Mutex
		conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if ledgertest.Writes(txn) {
				mu.Lock()
				defer mu.Unlock()
				writes++
			}
			return ledgertest.Fate{}
		})
		if report, err := c.recover(conn, []*process{a, b}); err != nil || report.Raised != 1 {
			t.Errorf("%d tags: %+v, %v", tags, report, err)
		}
		return writes
	}
	if few, many := cost(3), cost(300); few != many {
		t.Errorf("%d writing transactions with 3 tags, %d with 300", few, many)
	}
}

// A recover that fails at any of its transactions, done or not, is run again and
// ends.
func TestRecoverFailsAnywhere(t *testing.T) {
	for _, fate := range []ledgertest.FateName{ledgertest.NotDone, ledgertest.DoneAnswerLost,
		ledgertest.Late, ledgertest.Twice} {
		t.Run(fate.String(), func(t *testing.T) {
			for at := 1; ; at++ {
				c := newCluster(t, "100 a=0-50 b=50-100")
				p, q := c.start("a"), c.start("b")
				p.Lease(10)
				backup := c.Mem.Revision()
				p.Lease(100)
				q.Lease(100)
				c.Mem.Restore(backup, 0, ledgertest.ClusterID)
				conn := c.Mem.Open()
				var mu sync.Mutex
				met := 0
				conn.Fate(func(txn store.Txn) ledgertest.Fate {
					mu.Lock()
					defer mu.Unlock()
					if ledgertest.Writes(txn) && len(txn.Then) > 0 && txn.Then[0].Put != nil {
						if met++; met == at {
							return ledgertest.Fate{Name: fate, N: 2}
						}
					}
					return ledgertest.Fate{}
				})
				living := []*process{p, q}
				report, err := c.recover(conn, living)
				if err != nil {
					verified(t, c)
					report, err = c.recover(c.Mem.Open(), living)
				}
				verified(t, c)
				if err != nil || report.Epoch == "" {
					t.Fatalf("fault at write %d: %+v, %v", at, report, err)
				}
				c.Mem.Arrive()
				for _, p := range living {
					p.hear()
					p.Lease(10)
				}
				c.start("b").Lease(10)
				c.Check()
				if met < at {
					break // there was no such write
				}
			}
		})
	}
}
