package ledger_test

import (
	"fmt"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// A console that lived through a restore, be it all that did, sees that before it
// moves the layout or forgets any instance, and halts leasing for all.
func TestConsoleSeesARestore(t *testing.T) {
	does := map[string]func(c *cluster, l *ledger.Ledger, from record.Layout, silent record.Instance) error{
		"check": func(_ *cluster, l *ledger.Ledger, _ record.Layout, _ record.Instance) error {
			return l.Check(bg)
		},
		"change layout": func(c *cluster, l *ledger.Ledger, from record.Layout, _ record.Instance) error {
			_, err := manage(l).ChangeLayout(bg, from, ledgertest.Lay(c.TB, "100 a=0-10"), "test")
			return err
		},
		"forget": func(_ *cluster, l *ledger.Ledger, _ record.Layout, _ record.Instance) error {
			return manage(l).Forget(bg, "a", "one", "test")
		},
		"confirm": func(_ *cluster, l *ledger.Ledger, _ record.Layout, _ record.Instance) error {
			return manage(l).ConfirmInstance(bg, "a", "blank", "test")
		},
		"forget silent": func(_ *cluster, l *ledger.Ledger, _ record.Layout, silent record.Instance) error {
			return manage(l).ForgetSilent(bg, silent, "test")
		},
	}
	for name, do := range does {
		for _, bump := range []int64{0, 1_000_000_000} { // by the revision, and by the beat
			t.Run(fmt.Sprintf("%s, bump %d", name, bump), func(t *testing.T) {
				c := newCluster(t, "100 a=0-50 b=50-100")
				c.startAs("a", "one").Lease(10)
				l := ledgertest.Open(t, c.Mem.Open())
				l.HaltAs("console x")
				from, err := l.Refresh(bg)
				if err == nil {
					err = l.Check(bg)
				}
				if err != nil {
					t.Fatal(err)
				}
				blank, err := ledgertest.Open(t, c.Mem.Open()).Join(bg,
					ledger.Registration{Room: "a", Name: "blank", RequireJournal: true})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = blank.Close() }()
				backup := c.Mem.Revision()
				for range 10 {
					c.startAs("b", "two").Lease(10)
				}
				c.Corrupt("beat", nil)
				l.Uncheck()
				if err := l.Check(bg); err != nil {
					t.Fatal(err)
				}
				beat := c.Value("beat")
				c.Mem.Restore(backup, bump, ledgertest.ClusterID)
				c.Corrupt("beat", beat)
				silent, _, err := c.Admin.Instances(bg, "")
				if err != nil || len(silent) != 2 || !silent[0].Unconfirmed {
					t.Fatalf("%+v, %v", silent, err)
				}
				layout := c.Value("layout")
				if name == "check" { // it is made now and then
					l.Uncheck()
				}
				ledgertest.WantKind(t, do(c, l, from, silent[1]), allocator.WentBack, "halted by console x")
				if c.isHalted() == "" || string(c.Value("layout")) != string(layout) ||
					len(c.Value("rooms/a/one")) == 0 {
					t.Errorf("halted: %q", c.isHalted())
				}
			})
		}
	}
}
