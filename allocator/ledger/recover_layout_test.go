package ledger_test

import (
	"slices"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// A layout in etcd that cannot be read keeps no recover from going on: with the layout
// that an instance knows, or with a given one.
func TestRecoverWithoutALayout(t *testing.T) {
	for _, given := range []bool{false, true} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		p := c.start("a")
		p.Lease(10)
		if _, err := c.Admin.Ledger.Halt(bg, "ann", "a slip of the hand"); err != nil {
			t.Fatal(err)
		}
		c.Corrupt("layout", []byte(`{}`))
		_, err := c.recover(c.Mem.Open(), []*process{p}, func(cfg *recovery.Config) {
			cfg.Layout = recovery.LayoutStored
		})
		ledgertest.WantKind(t, err, allocator.Refused, "--layout FILE")
		report := c.mustRecover([]*process{p}, func(cfg *recovery.Config) {
			if given {
				cfg.Layout, cfg.Given = recovery.LayoutGiven, ledgertest.Lay(t, "100 a=0-50 b=60-100")
			}
		})
		p.hear()
		if seg := p.Lease(10); seg.Version != report.Layout.Version {
			t.Errorf("leased %v under %+v", seg, report.Layout)
		}
	}
}

// A backup that is older than a finished migration puts no old ranges in force by
// itself, which would take a live room out of service: the operator chooses.
func TestRecoverShowsWhichRangesChange(t *testing.T) {
	for choice, serves := range map[recovery.LayoutChoice]bool{recovery.LayoutKnown: true,
		recovery.LayoutStored: false} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a := c.start("a")
		a.Lease(10)
		backup := c.Mem.Revision()
		c.Move("100 a=0-30 b=50-100 c=30-50")
		third := c.start("c")
		third.Lease(10)
		a.hear()
		a.Lease(10)
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		living := []*process{a, third}
		memories := func(cfg *recovery.Config) { cfg.Memories = []record.Memory{third.Memory(bg, record.Question{})} }
		report, err := c.recover(c.Mem.Open(), living, memories, func(cfg *recovery.Config) {
			cfg.Layout = recovery.LayoutUndecided
		})
		ledgertest.WantKind(t, err, allocator.Refused, "version 1", "version 2", "--layout known")
		if c.isHalted() != "" || report.Stored.Layout.Version != 1 || report.Known.Version != 2 ||
			!report.Layout.Equal(report.Stored.Layout) {
			t.Errorf("halted %q, stored %v, known %v, shown %v", c.isHalted(), report.Stored.Layout,
				report.Known, report.Layout)
		}
		c.mustRecover(living, memories, func(cfg *recovery.Config) { cfg.Layout = choice })
		third.hear()
		if _, err := third.TryLease("t", 10); serves != (err == nil) {
			t.Errorf("--layout %s: room c: %v", choice, err)
		}
		record, err := ledgertest.Open(t, c.Mem.Open()).Refresh(bg)
		if err != nil || !slices.Contains(record.Ever, "c") {
			t.Errorf("room c is forgotten: %+v, %v", record, err)
		}
		c.Check()
	}
}

// Records carry the time of the clock that the ledger was given, and the version of a
// recover goes by it.
func TestClock(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	at := time.Date(2031, 2, 3, 4, 5, 6, 7_000_000, time.UTC)
	cfg := ledger.DefaultConfig()
	cfg.Now = func() time.Time { return at }
	l, err := ledger.New(c.Mem.Open(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	report, err := recovery.Run(bg, l, recovery.Config{Actor: "test", Apply: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(at.Sub(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) / time.Second); report.Layout.Version != want {
		t.Errorf("layout version %d, want %d", report.Layout.Version, want)
	}
	entries, _, err := manage(l).Audits(bg, "", 1)
	if err != nil || len(entries) != 1 || !entries[0].Time.Equal(at) {
		t.Errorf("audit entries %v, %v: want one at %v", entries, err, at)
	}
}
