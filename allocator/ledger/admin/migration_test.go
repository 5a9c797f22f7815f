package admin_test

import (
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// Reads from the past do not make a move undone, for the console that made it: what MakeMove
// and UpdateMigration return is what they wrote, and may be changed further.
func TestMigrationDespiteStaleReads(t *testing.T) {
	c := memcluster.New(t, "100 a=0-50 b=50-100")
	conn := c.Mem.Open()
	l := ledgertest.Open(t, conn)
	from, err := l.Refresh(bg)
	if err != nil {
		t.Fatal(err)
	}
	stale := 0
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if op := txn.Then[0]; op.Get != nil && strings.HasPrefix(op.Get.Key, prefix+"migration") {
			stale++
			return ledgertest.Fate{Name: ledgertest.StaleRead, N: 1}
		}
		return ledgertest.Fate{}
	})
	m := record.Migration{From: from.Layout, Target: ledgertest.Lay(t, "100 a=0-50 b=60-100")}
	for _, move := range []string{"100 a=0-50 b=55-100", "100 a=0-50 b=60-100"} {
		m.Moves = append(m.Moves, record.MovesOf(plan.Move{Kind: plan.Retract, Layout: ledgertest.Lay(t, move),
			Loses: []allocator.Room{"b"}})...)
	}
	if m, err = manage(l).StartMigration(bg, from, m, "test"); err != nil {
		t.Fatal(err)
	}
	for reached := range len(m.Moves) {
		if m, err = manage(l).MakeMove(bg, m, nil); err != nil || m.Reached != reached+1 {
			t.Fatalf("move %d: %d were reached, %v", reached+1, m.Reached, err)
		}
		if m, err = manage(l).UpdateMigration(bg, m, "", "", func(m *record.Migration) error {
			m.Note("", "noted")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	again, err := c.Admin.Migration(bg, m.ID)
	if err != nil || again.Reached != 2 || len(again.Log) != len(m.Log) {
		t.Errorf("in the end: %+v, %v", again, err)
	}
	// A caller that read an old version of it gets an error when changing it.
	m, _ = manage(l).Migration(bg, m.ID)
	if _, err := manage(l).UpdateMigration(bg, m, "", "", func(m *record.Migration) error {
		m.Note("", "late")
		return nil
	}); stale == 0 {
		t.Error("nothing was read from the past")
	} else {
		ledgertest.WantKind(t, err, allocator.Conflict)
	}
	c.Check()
}
