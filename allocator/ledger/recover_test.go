package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// recover recovers c with those who live.
func (c *cluster) recover(conn *ledgertest.Conn, living []*process, change ...func(*ledger.RecoverConfig)) (*ledger.RecoverReport, error) {
	cfg := ledger.RecoverConfig{Actor: "ann", Apply: true, Ask: func(_ context.Context, s ledger.SeenInstance, bar bool) (ledger.Memory, error) {
		for _, p := range living {
			if s.Address == string(p.name)+".test:7010" {
				return p.Report(bar)
			}
		}
		return ledger.Memory{}, allocator.Errorf(allocator.Unavailable, "nobody is at %s", s.Address)
	}}
	for _, f := range change {
		f(&cfg)
	}
	return open(c.tb, conn).Recover(bg, cfg)
}

func without(ids ...ledger.InstanceID) func(*ledger.RecoverConfig) {
	return func(cfg *ledger.RecoverConfig) { cfg.Without = ids }
}

func missing(r *ledger.RecoverReport) (ids []string) {
	for _, m := range r.Missing {
		ids = append(ids, string(m.ID))
	}
	return ids
}

// Whatever the restore, and whatever was forgotten by it (leases, a tag, a room,
// layouts, registrations): after a recover everybody leases again, without a
// restart, and no ID comes twice.
func TestRecover(t *testing.T) {
	for _, bump := range []int64{0, 1_000_000_000} {
		for _, id := range []uint64{ledgertest.ClusterID, 42} {
			t.Run(fmt.Sprintf("bump %d, etcd cluster %x", bump, id), func(t *testing.T) {
				c := newCluster(t, "100 a=0-50 b=50-100")
				a, b := c.start("a"), c.start("b")
				a.lease(10)
				b.lease(1000)
				backup := c.mem.Revision()
				c.tag("later", func(*ledger.TagSettings) {})
				c.move("100 a=0-30 b=50-100 c=30-50")
				other, third := c.start("a"), c.start("c")
				living := []*process{a, b, other, third}
				for range 3 {
					for _, p := range living {
						p.lease(500)
						if _, err := p.tryLease("later", 100); err != nil {
							t.Fatal(err)
						}
					}
				}
				c.mem.Restore(backup, bump, id)
				for _, p := range living { // some see it by themselves, and register again
					_, err := p.tryLease("t", 1000)
					wantKind(t, err, allocator.WentBack)
				}
				if id != ledgertest.ClusterID && c.isHalted() != "" {
					t.Errorf("another etcd cluster was halted: %s", c.isHalted())
				}
				var skip []func(*ledger.RecoverConfig)
				if id != ledgertest.ClusterID {
					// Nobody wrote into the other one, so it knows of two only; the rest are named.
					skip = append(skip, func(cfg *ledger.RecoverConfig) {
						cfg.Memories = []ledger.Memory{other.report(), third.report()}
					})
				}
				dry, err := c.recover(c.mem.Open(), living, append(skip, func(cfg *ledger.RecoverConfig) { cfg.Apply = false })...)
				if err != nil || len(dry.Missing) > 0 || dry.Marks == 0 || dry.Epoch != "" {
					t.Fatalf("dry run: %+v, %v", dry, err)
				}
				report, err := c.recover(c.mem.Open(), living, skip...)
				if err != nil || len(report.Missing) > 0 || report.Tags != 2 || report.Marks != 6 || report.Epoch == "" {
					t.Fatalf("%+v, %v", report, err)
				}
				if _, err := c.admin.Refresh(bg); err != nil {
					t.Fatal(err)
				}
				c.tag("later", func(*ledger.TagSettings) {})
				for range 2 {
					for _, p := range []*process{a, b, other} {
						if seg := p.lease(100); seg.Version != report.Version {
							t.Errorf("leased %v", seg)
						}
						if _, err := p.tryLease("later", 100); err != nil {
							t.Error(err)
						}
					}
				}
				_, err = third.tryLease("t", 1)
				wantKind(t, err, allocator.NoRange)
				record, err := open(t, c.mem.Open()).Refresh(bg)
				if err != nil || !slices.Contains(record.Ever, "c") {
					t.Errorf("room c is forgotten: %+v, %v", record, err)
				}
				c.admin = open(t, c.mem.Open())
				c.move("100 a=0-30 b=50-100 c=30-50")
				third.lease(10)
				c.start("c").lease(10)
				if why := c.isHalted(); why != "" {
					t.Errorf("halted again: %s", why)
				}
				_, _, err = c.admin.Origin(bg, "t", 1500)
				wantKind(t, err, allocator.NotFound, "lost when etcd went back in time")
				c.check()
			})
		}
	}
}

// A registration that the restored etcd has, but as it was earlier, is written
// again: what the instance does from then on compares it.
func TestRecoverWithAnEarlierRegistration(t *testing.T) {
	for _, bump := range []int64{0, 1_000_000_000} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a := c.start("a")
		a.lease(10)
		backup := c.mem.Revision()
		c.move("100 a=0-30 b=50-100")
		a.lease(10)
		if err := a.Serve(bg, 2); err != nil {
			t.Fatal(err)
		}
		c.mem.Restore(backup, bump, ledgertest.ClusterID)
		_, err := a.tryLease("t", 10)
		wantKind(t, err, allocator.WentBack)
		if _, err := c.recover(c.mem.Open(), []*process{a}); err != nil {
			t.Fatal(err)
		}
		a.lease(10)
		for try := 1; ; try++ {
			if err = a.Serve(bg, 101); err == nil || try == 3 {
				break
			}
		}
		if err != nil {
			t.Errorf("report: %v", err)
		}
		c.check()
	}
}

// A mark that somebody deleted by hand, while leasing is halted, is there again
// after a recover, above all that its room ever leased: known by who leased it, or
// from the eras that ended.
func TestRecoverAfterAMarkWasDeleted(t *testing.T) {
	for _, alive := range []bool{true, false} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a, b := c.start("a"), c.start("b")
		a.lease(5000)
		c.move("100 a=0-30 b=50-100")
		ended := c.mark("a").Next
		b.lease(10)
		living, change := []*process{b}, without("a/"+ledger.InstanceID(a.name))
		if alive {
			a.lease(500)
			living, change = []*process{a, b}, without()
		} else {
			a.lease(1) // so that the era ends
		}
		if _, err := c.admin.Halt(bg, "ann", "a mark was deleted"); err != nil {
			t.Fatal(err)
		}
		was := c.mark("a").Next
		c.corrupt("marks/a/t", nil)
		if _, err := c.recover(c.mem.Open(), living, change); err != nil {
			t.Fatal(err)
		}
		if is := c.mark("a").Next; is <= ended || alive && is <= was {
			t.Errorf("room a's mark is %d, was %d when it was deleted, and %d when an era ended", is, was, ended)
		}
		for _, p := range living {
			p.lease(10)
		}
		c.check()
	}
}

// A lease whose answer is still under way when the barrier is passed is lost,
// however late it comes; and nothing is leased before there is a new epoch.
func TestBarrier(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.lease(10)
	var memory ledger.Memory
	p.conn.Fate(func(txn ledger.Txn) ledgertest.Fate {
		if writes("marks/")(txn) && memory.UUID == "" {
			memory = p.report()
		}
		return ledgertest.Fate{}
	})
	seg, err := p.tryLease("t", 10)
	wantKind(t, err, allocator.WentBack, "march recover", "new epoch")
	if memory.Marks["t"] != 11 || c.mark("a").Next != 21 {
		t.Errorf("remembered %d, the mark is %d, leased %v", memory.Marks["t"], c.mark("a").Next, seg)
	}
	_, err = p.tryLease("t", 10)
	wantKind(t, err, allocator.WentBack, "march recover")
	if why := c.isHalted(); why != "" {
		t.Errorf("halted: %s", why)
	}
	if _, err := c.recover(c.mem.Open(), []*process{p}); err != nil {
		t.Fatal(err)
	}
	p.lease(10)
	c.check()
}

// A recover that fails at any of its transactions, done or not, is run again and
// ends; marks are not raised further by that.
func TestRecoverFailsAnywhere(t *testing.T) {
	for _, fate := range []ledgertest.FateName{ledgertest.NotDone, ledgertest.DoneAnswerLost, ledgertest.Late, ledgertest.Twice} {
		t.Run(fate.String(), func(t *testing.T) {
			for at := 1; ; at++ {
				c := newCluster(t, "100 a=0-50 b=50-100")
				for i := range 30 {
					c.tag(allocator.Tag(fmt.Sprint("tag-", i)), func(*ledger.TagSettings) {})
				}
				p := c.start("a")
				p.lease(10)
				backup := c.mem.Revision()
				p.lease(100)
				c.mem.Restore(backup, 0, ledgertest.ClusterID)
				conn := c.mem.Open()
				met := 0
				conn.Fate(func(txn ledger.Txn) ledgertest.Fate {
					if ledgertest.Writes(txn) && len(txn.Then) > 0 && txn.Then[0].Put != nil {
						if met++; met == at {
							return ledgertest.Fate{Name: fate, N: 2}
						}
					}
					return ledgertest.Fate{}
				})
				report, err := c.recover(conn, []*process{p})
				if err != nil {
					verify(t, c)
					report, err = c.recover(c.mem.Open(), []*process{p})
				}
				verify(t, c)
				if err != nil || report.Epoch == "" {
					t.Fatalf("fault at write %d: %+v, %v", at, report, err)
				}
				c.mem.Arrive()
				if next, want := c.mark("b").Next, int64(211+100_000_000); next != want && (fate != ledgertest.Late || next != want+100_000_000) { // a late end of the first run: the second one recovers what is well
					t.Errorf("fault at write %d: raised to %d, want %d", at, next, want)
				}
				p.lease(10)
				c.start("b").lease(10)
				c.check()
				if met < at {
					break // there was no such write
				}
			}
		})
	}
}

// verify checks that Verify finds nothing wrong.
func verify(t *testing.T, c *cluster) {
	t.Helper()
	report, err := open(t, c.mem.Open()).Verify(bg, nil)
	if err != nil || len(report.Problems) > 0 {
		t.Errorf("verify: %q, %v", report.Problems, err)
	}
}

// Who was left out and comes back with IDs that others may have by now drops
// them, raises the mark over them, and tells.
func TestLeftOutOfRecover(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, q := c.start("a"), c.start("a")
	p.lease(10)
	backup := c.mem.Revision()
	p.lease(5_000)
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	if _, err := c.recover(c.mem.Open(), []*process{q}, without("a/i1", "a/i2"), func(cfg *ledger.RecoverConfig) { cfg.Margin = 100 }); err != nil {
		t.Fatal(err)
	}
	var told []string
	p.OnBehind(func(tag allocator.Tag, next int64) { told = append(told, fmt.Sprint(tag, " ", next)) })
	held := p.last["t"] + 1
	seg := p.lease(10)
	if seg.First < held || !slices.Equal(told, []string{fmt.Sprint("t ", held)}) {
		t.Errorf("leased %v, held up to %d, told %v", seg, held, told)
	}
	if c.mark("a").Next <= held {
		t.Errorf("the mark is %d", c.mark("a").Next)
	}
}

// report returns what p remembers, and bars it.
func (p *process) report() ledger.Memory {
	m, err := p.Report(true)
	if err != nil {
		p.c.tb.Errorf("report: %v", err)
	}
	return m
}

// A registration that was written again in the stretch that is lost has a lower
// mod revision after the restore than the one its instance knows: the instance
// leases again all the same.
func TestRecoverAfterServing(t *testing.T) {
	for _, bump := range []int64{0, 1_000_000_000} {
		t.Run(fmt.Sprint("bump ", bump), func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			a, b := c.start("a"), c.start("b")
			a.lease(10)
			b.lease(10)
			backup := c.mem.Revision()
			version := c.move("100 a=0-30 b=50-100").Layout.Version
			a.lease(10)
			if err := a.Serve(bg, version); err != nil {
				t.Fatal(err)
			}
			a.lease(10)
			c.mem.Restore(backup, bump, ledgertest.ClusterID)
			_, err := a.tryLease("t", 10)
			wantKind(t, err, allocator.WentBack)
			if report, err := c.recover(c.mem.Open(), []*process{a, b}); err != nil || len(report.Missing) > 0 {
				t.Fatalf("%+v, %v", report, err)
			}
			for range 2 {
				a.lease(10)
				b.lease(10)
			}
			c.check()
		})
	}
}
