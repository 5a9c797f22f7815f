package admin_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// Keys beside a cluster's prefix hinder no Init.
func TestInitBesideNeighbours(t *testing.T) {
	m := ledgertest.NewFake(t)
	for _, key := range []string{"/march/default", "/march/default0", "/march/default-2/epoch", "/march/defaul/epoch"} {
		m.Corrupt(store.Op{Put: &store.Put{Key: key, Value: []byte("x")}})
	}
	if _, err := manage(ledgertest.Open(t, m.Open())).Init(bg, ledgertest.Lay(t, "10 a=0-5"), "me"); err != nil {
		t.Error(err)
	}
}

func TestInitRace(t *testing.T) {
	m := ledgertest.NewFake(t)
	// Both have looked into the empty prefix before either writes.
	var looked, done sync.WaitGroup
	looked.Add(2)
	errs := make([]error, 2)
	for i := range errs {
		conn := m.Open()
		conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if ledgertest.PutsUnder("identity")(txn) {
				looked.Done()
				looked.Wait()
			}
			return ledgertest.Fate{}
		})
		l := ledgertest.Open(t, conn)
		done.Go(func() { _, errs[i] = manage(l).Init(bg, ledgertest.Lay(t, "10 a=0-5"), fmt.Sprint(i)) })
	}
	done.Wait()
	lost := errs[0]
	if lost == nil {
		lost = errs[1]
	} else if errs[1] != nil {
		t.Fatalf("both failed: %v", errs)
	}
	ledgertest.WantKind(t, lost, allocator.Exists, "just now")
	ledgertest.CheckCluster(t, m.Open(), "default", nil)
}

func TestInitUnknownOutcome(t *testing.T) {
	for _, fate := range ledgertest.Unknown {
		t.Run(fate.String(), func(t *testing.T) {
			m := ledgertest.NewFake(t)
			conn := m.Open()
			conn.Next(ledgertest.Fate{Name: fate, N: 100}, 1, ledgertest.PutsUnder("identity"))
			l := ledgertest.Open(t, conn)
			r, err := manage(l).Init(bg, ledgertest.Lay(t, "10 a=0-5"), "me")
			if fate.Happened() {
				if err != nil || r.Layout.Version != 1 {
					t.Errorf("it happened, and Init says %+v, %v", r, err)
				}
			} else {
				ledgertest.WantKind(t, err, allocator.Unavailable)
			}
			m.Arrive()
			_, err = manage(l).Init(bg, ledgertest.Lay(t, "10 a=0-5"), "me")
			if fate.Happened() || fate == ledgertest.Late {
				ledgertest.WantKind(t, err, allocator.Exists)
			} else if err != nil {
				t.Errorf("a second Init: %v", err)
			}
			ledgertest.CheckCluster(t, m.Open(), "default", nil)
		})
	}
}

func TestChangeLayout(t *testing.T) {
	c := memcluster.New(t, "10 a=0-5 b=5-10")
	from, _ := c.Admin.Ledger.Refresh(bg)
	_, err := c.Admin.ChangeLayout(bg, from, ledgertest.Lay(t, "10 a=0-6 b=5-10"), "me")
	ledgertest.WantKind(t, err, allocator.Invalid)
	r, err := c.Admin.ChangeLayout(bg, from, ledgertest.Lay(t, "20 b=5-10 c=10-20"), "me")
	if err != nil || r.Layout.Version != 2 || fmt.Sprint(r.Ever) != "[a b c]" || r.Actor != "me" {
		t.Errorf("change: %+v, %v", r, err)
	}
	_, err = manage(ledgertest.Open(t, c.Mem.Open())).ChangeLayout(bg, from, ledgertest.Lay(t, "20 b=5-10"), "you")
	// a process that never looked does so first
	ledgertest.WantKind(t, err, allocator.Conflict, "version 2", "version 1")
	_, err = c.Admin.ChangeLayout(bg, from, ledgertest.Lay(t, "20 b=5-10"), "you")
	ledgertest.WantKind(t, err, allocator.Conflict, "version 2", "version 1")
	all, _, err := c.Admin.Layouts(bg, 0, 10)
	if err != nil || len(all) != 2 || all[0].Layout.Version != 2 || !all[1].Layout.Equal(from.Layout) {
		t.Errorf("history: %+v, %v", all, err)
	}
	if older, _, err := c.Admin.Layouts(bg, 2, 10); err != nil || len(older) != 1 || older[0].Layout.Version != 1 {
		t.Errorf("history before 2: %+v, %v", older, err)
	}
	if newest, _, err := c.Admin.Layouts(bg, 0, 1); err != nil || len(newest) != 1 || newest[0].Layout.Version != 2 {
		t.Errorf("the newest: %+v, %v", newest, err)
	}
	_, err = c.Admin.LayoutAt(bg, 3)
	ledgertest.WantKind(t, err, allocator.NotFound, "version 3")
	// A layout that was read from the history is not the current one.
	old, err := c.Admin.LayoutAt(bg, 2)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Admin.ChangeLayout(bg, old, ledgertest.Lay(t, "20 b=5-10"), "you")
	ledgertest.WantKind(t, err, allocator.Conflict)
	c.Check()
}

func TestChangeLayoutUnknownOutcome(t *testing.T) {
	for _, fate := range ledgertest.Unknown {
		t.Run(fate.String(), func(t *testing.T) {
			c := memcluster.New(t, "10 a=0-5 b=5-10")
			p := c.Start("a")
			from, _ := p.Ledger.Layout()
			p.Conn.Next(ledgertest.Fate{Name: fate, N: 100}, 1, ledgertest.PutsUnder("layout"))
			r, err := manage(p.Ledger).ChangeLayout(bg, from, ledgertest.Lay(t, "20 a=0-20"), "me")
			if fate.Happened() {
				if err != nil || r.Layout.Version != 2 {
					t.Errorf("it happened, and ChangeLayout says %+v, %v", r, err)
				}
			} else {
				ledgertest.WantKind(t, err, allocator.Unavailable)
				// The same again, which closes the door on one that is late.
				if r, err := manage(p.Ledger).ChangeLayout(bg, from, ledgertest.Lay(t, "20 a=0-20"),
					"me"); err != nil || r.Layout.Version != 2 {
					t.Errorf("again: %+v, %v", r, err)
				}
			}
			c.Mem.Arrive()
			p.Lease(10)
			c.Check()
		})
	}
}

// Another caller's change under an unknown outcome does not count as the own change.
func TestChangeLayoutLostToAnother(t *testing.T) {
	c := memcluster.New(t, "10 a=0-5 b=5-10")
	p := c.Start("a")
	from, _ := p.Ledger.Layout()
	p.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if !ledgertest.PutsUnder("layout")(txn) {
			return ledgertest.Fate{}
		}
		c.Move("10 a=5-10")
		return ledgertest.Fate{Name: ledgertest.DoneAnswerLost}
	})
	_, err := manage(p.Ledger).ChangeLayout(bg, from, ledgertest.Lay(t, "20 a=0-20"), "me")
	ledgertest.WantKind(t, err, allocator.Unavailable)
	c.Check()
}
