package ledger_test

import (
	"context"
	"fmt"
	"slices"
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

func dry(cfg *recovery.Config) { cfg.Apply = false }

func missing(r *recovery.Report) (ids []string) {
	for _, m := range r.Missing {
		ids = append(ids, string(m.ID))
	}
	return ids
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

// After any restore, and anything that it forgot (leases, a tag, a room, layouts,
// registrations), and a recover, all instances lease again, without a restart, and no ID
// comes twice. Where all answered there is no margin.
func TestRecover(t *testing.T) {
	for _, bump := range []int64{0, 1_000_000_000} {
		for _, id := range []uint64{ledgertest.ClusterID, 42} {
			t.Run(fmt.Sprintf("bump %d, etcd cluster %x", bump, id), func(t *testing.T) {
				c := newCluster(t, "100 a=0-50 b=50-100")
				a, b := c.start("a"), c.start("b")
				a.Lease(10)
				b.Lease(1000)
				backup := c.Mem.Revision()
				c.Tag("later", func(*record.TagSettings) {})
				c.Move("100 a=0-30 b=50-100 c=30-50")
				other, third := c.start("a"), c.start("c")
				living := []*process{a, b, other, third}
				for range 3 {
					for _, p := range living {
						p.Lease(500)
						if _, err := p.TryLease("later", 100); err != nil {
							t.Fatal(err)
						}
					}
				}
				c.Mem.Restore(backup, bump, id)
				for _, p := range living {
					_, err := p.TryLease("t", 1000)
					ledgertest.WantKind(t, err, allocator.WentBack)
				}
				if id != ledgertest.ClusterID && c.isHalted() != "" {
					t.Errorf("another etcd cluster was halted: %s", c.isHalted())
				}
				// The memories of the instances that etcd knows, or given ones, have what etcd forgot.
				memories := func(cfg *recovery.Config) {
					cfg.Memories = []record.Memory{other.Memory(bg, record.Question{}),
						third.Memory(bg, record.Question{})}
				}
				report, err := c.recover(c.Mem.Open(), living, memories, dry)
				if err != nil || len(report.Missing) > 0 || report.Higher == 0 || report.Epoch != "" {
					t.Fatalf("dry run: %+v, %v", report, err)
				}
				report = c.mustRecover(living, memories)
				if len(report.Missing) > 0 || report.Raised != 6 || report.Margin != 0 || report.Total != 0 {
					t.Fatalf("%+v", report)
				}
				if !report.Layout.Equal(ledgertest.Lay(t, "100 a=0-30 b=50-100 c=30-50")) {
					t.Errorf("layout %v", report.Layout)
				}
				c.Admin = manage(ledgertest.Open(t, c.Mem.Open()))
				c.Tag("later", func(*record.TagSettings) {})
				for range 2 {
					for _, p := range living {
						p.hear()
						if seg := p.Lease(100); seg.Version != report.Layout.Version {
							t.Errorf("leased %v", seg)
						}
						if _, err := p.TryLease("later", 100); err != nil {
							t.Error(err)
						}
					}
				}
				c.start("c").Lease(10)
				if why := c.isHalted(); why != "" {
					t.Errorf("halted again: %s", why)
				}
				c.Check()
			})
		}
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

// A registration that the restored etcd has, but as it was earlier, is written
// again: what the instance does from then on compares it.
func TestRecoverWithAnEarlierRegistration(t *testing.T) {
	for _, bump := range []int64{0, 1_000_000_000} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a := c.start("a")
		a.Lease(10)
		backup := c.Mem.Revision()
		c.Move("100 a=0-30 b=50-100")
		a.Lease(10)
		if err := a.Serve(bg, 2); err != nil {
			t.Fatal(err)
		}
		c.Mem.Restore(backup, bump, ledgertest.ClusterID)
		_, err := a.TryLease("t", 10)
		ledgertest.WantKind(t, err, allocator.WentBack)
		version := c.mustRecover([]*process{a}).Layout.Version
		a.hear()
		a.Lease(10)
		for try := 1; ; try++ {
			if err = a.Serve(bg, version); err == nil || try == 3 {
				break
			}
		}
		if err != nil {
			t.Errorf("report: %v", err)
		}
		c.Check()
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

// A small tag that the margin takes to its limit is named before that is done.
func TestRecoverNamesTagsAtTheirLimit(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("small", func(s *record.TagSettings) { s.Limit, s.MinStep, s.MaxStep = 5000, 10, 100 })
	p := c.start("a")
	p.Lease(10)
	for steps, want := range map[int64][]allocator.Tag{0: nil, 10: nil, 20: {"small"}} { // 300 IDs a step
		report, err := c.recover(c.Mem.Open(), []*process{p}, dry, margin(steps))
		if got := slices.DeleteFunc(report.AtLimit, func(tag allocator.Tag) bool {
			return tag == "t"
		}); err != nil || !slices.Equal(got, want) {
			t.Errorf("margin %d: %v, %v", steps, got, err)
		}
	}
}

// The audit says which instances a recover barred, and which it went on without.
func TestRecoverAuditsWhatItBarred(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, q := c.start("a"), c.start("b")
	p.Lease(10)
	c.mustRecover([]*process{p}, without(q.id()), margin(2))
	entries, _, err := c.Admin.Audits(bg, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(entries, func(e record.AuditEntry) bool { return e.Action == "bar instances" })
	if at < 0 || entries[at].Actor != "ann" || string(entries[at].To) != `{"barred":["a/i1"],"without":["b/i2"]}` {
		t.Errorf("audit: %+v", entries)
	}
}

// A mark that cannot be read, or a stray key among the registrations, is named before
// leasing is halted. Recover once halted first and then failed, which left the whole
// cluster halted.
func TestRecoverReadsBeforeItHalts(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("other", func(*record.TagSettings) {})
	p := c.start("a")
	p.Lease(10)
	if _, err := p.TryLease("other", 10); err != nil {
		t.Fatal(err)
	}
	c.Corrupt("marks/a/t", []byte(`{"format":99}`))
	c.Corrupt("rooms/Bad Name", []byte(`?`))
	report, err := c.recover(c.Mem.Open(), []*process{p})
	ledgertest.WantKind(t, err, allocator.Refused, "marks/a/t cannot be read", "--skip-tag t")
	if len(report.Unreadable) != 2 || c.isHalted() != "" {
		t.Errorf("unreadable %q, halted %q", report.Unreadable, c.isHalted())
	}
	c.mustRecover([]*process{p}, func(cfg *recovery.Config) { cfg.Skip = []allocator.Tag{"t"} })
	p.hear()
	if _, err := p.TryLease("other", 10); err != nil {
		t.Error(err)
	}
	_, err = p.TryLease("t", 10)
	if err == nil {
		t.Error("leased of a mark that cannot be read")
	}
}
