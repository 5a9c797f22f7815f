package ledger_test

import (
	"testing"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Settings are the zero ones until an operator sets them, once whatever becomes of
// the transaction, and together with the operator's name.
func TestUpdateSettings(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			if s, err := c.Admin.Settings(bg); err != nil || s.RequireJournal {
				t.Errorf("before: %+v, %v", s, err)
			}
			conn := c.Mem.Open()
			met := 0
			conn.Fate(func(txn store.Txn) ledgertest.Fate {
				if ledgertest.PutsUnder("settings")(txn) {
					if met++; met == 1 {
						return ledgertest.Fate{Name: fate, N: 4}
					}
				}
				return ledgertest.Fate{}
			})
			l := ledgertest.Open(t, conn)
			change := func(s *record.ClusterSettings) error { s.RequireJournal = true; return nil }
			s, err := manage(l).UpdateSettings(bg, change, "ann")
			if err != nil {
				s, err = manage(l).UpdateSettings(bg, change, "ann")
			}
			c.Mem.Arrive()
			if now, readErr := c.Admin.Settings(bg); err != nil || !s.RequireJournal ||
				!now.RequireJournal || met == 0 {
				t.Errorf("%+v, %v, then %+v, %v; met %d times", s, err, now, readErr, met)
			}
			audits, _, err := c.Admin.Audits(bg, "", 10)
			if err != nil || len(audits) == 0 || audits[0].Action != "update settings" || audits[0].Actor != "ann" ||
				audits[0].Object != "settings" {
				t.Errorf("audit: %+v, %v", audits, err)
			}
			verified(t, c)
			c.Check()
		})
	}
}
