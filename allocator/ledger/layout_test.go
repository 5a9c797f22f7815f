package ledger_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

var unknown = []ledgertest.FateName{ledgertest.DoneAnswerLost, ledgertest.NotDone, ledgertest.Late, ledgertest.NoLeader, ledgertest.NoSpaceButApplied, ledgertest.Twice}

// happened reports whether a transaction with this fate was done by the time
// its caller had the answer.
func happened(fate ledgertest.FateName) bool {
	return fate == ledgertest.DoneAnswerLost || fate == ledgertest.NoSpaceButApplied || fate == ledgertest.Twice
}

func TestInit(t *testing.T) {
	m := ledgertest.NewFake(t)
	l := open(t, m.Open())
	_, err := manage(l).Init(bg, lay(t, "10 a=0-6 b=5-10"), "me")
	wantKind(t, err, allocator.Invalid, "overlap")
	if m.Revision() != 1 {
		t.Error("an invalid layout wrote something")
	}
	r, err := manage(l).Init(bg, lay(t, "10 a=0-5 b=5-10"), "me")
	if err != nil || r.Layout.Version != 1 || r.Actor != "me" || len(r.Ever) != 2 || m.Revision() != 2 {
		t.Errorf("init: %+v, %v, revision %d", r, err, m.Revision())
	}
	for range 2 {
		_, err = manage(open(t, m.Open())).Init(bg, lay(t, "10 a=0-5"), "you")
		wantKind(t, err, allocator.Exists)
	}
	ledgertest.CheckCluster(t, m.Open(), "default", nil)
}

func TestInitOnlyIntoAnEmptyPrefix(t *testing.T) {
	for _, key := range []string{"/march/default/marks/a/t", "/march/default/epoch", "/march/default/zzz"} {
		m := ledgertest.NewFake(t)
		m.Corrupt(store.Op{Put: &store.Put{Key: key, Value: []byte("x")}})
		_, err := manage(open(t, m.Open())).Init(bg, lay(t, "10 a=0-5"), "me")
		wantKind(t, err, allocator.Exists, key)
	}
	m := ledgertest.NewFake(t) // neighbours are no hindrance
	for _, key := range []string{"/march/default", "/march/default0", "/march/default-2/epoch", "/march/defaul/epoch"} {
		m.Corrupt(store.Op{Put: &store.Put{Key: key, Value: []byte("x")}})
	}
	if _, err := manage(open(t, m.Open())).Init(bg, lay(t, "10 a=0-5"), "me"); err != nil {
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
			if writes("identity")(txn) {
				looked.Done()
				looked.Wait()
			}
			return ledgertest.Fate{}
		})
		l := open(t, conn)
		done.Go(func() { _, errs[i] = manage(l).Init(bg, lay(t, "10 a=0-5"), fmt.Sprint(i)) })
	}
	done.Wait()
	lost := errs[0]
	if lost == nil {
		lost = errs[1]
	} else if errs[1] != nil {
		t.Fatalf("both failed: %v", errs)
	}
	wantKind(t, lost, allocator.Exists, "just now")
	ledgertest.CheckCluster(t, m.Open(), "default", nil)
}

func TestInitUnknownOutcome(t *testing.T) {
	for _, fate := range unknown {
		t.Run(fate.String(), func(t *testing.T) {
			m := ledgertest.NewFake(t)
			p := &process{conn: m.Open()}
			p.next(ledgertest.Fate{Name: fate, N: 100}, writes("identity"))
			l := open(t, p.conn)
			r, err := manage(l).Init(bg, lay(t, "10 a=0-5"), "me")
			if happened(fate) {
				if err != nil || r.Layout.Version != 1 {
					t.Errorf("it happened, and Init says %+v, %v", r, err)
				}
			} else {
				wantKind(t, err, allocator.Unavailable)
			}
			m.Arrive()
			_, err = manage(l).Init(bg, lay(t, "10 a=0-5"), "me")
			if happened(fate) || fate == ledgertest.Late {
				wantKind(t, err, allocator.Exists)
			} else if err != nil {
				t.Errorf("a second Init: %v", err)
			}
			ledgertest.CheckCluster(t, m.Open(), "default", nil)
		})
	}
}

func TestChangeLayout(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	from, _ := c.admin.Ledger.Refresh(bg)
	_, err := c.admin.ChangeLayout(bg, from, lay(t, "10 a=0-6 b=5-10"), "me")
	wantKind(t, err, allocator.Invalid)
	r, err := c.admin.ChangeLayout(bg, from, lay(t, "20 b=5-10 c=10-20"), "me")
	if err != nil || r.Layout.Version != 2 || fmt.Sprint(r.Ever) != "[a b c]" || r.Actor != "me" {
		t.Errorf("change: %+v, %v", r, err)
	}
	_, err = manage(open(t, c.mem.Open())).ChangeLayout(bg, from, lay(t, "20 b=5-10"), "you")
	wantKind(t, err, allocator.Conflict, "version 2", "version 1") // a process that never looked does so first
	_, err = c.admin.ChangeLayout(bg, from, lay(t, "20 b=5-10"), "you")
	wantKind(t, err, allocator.Conflict, "version 2", "version 1")
	all, _, err := c.admin.Layouts(bg, 0, 10)
	if err != nil || len(all) != 2 || all[0].Layout.Version != 2 || !all[1].Layout.Equal(from.Layout) {
		t.Errorf("history: %+v, %v", all, err)
	}
	if older, _, err := c.admin.Layouts(bg, 2, 10); err != nil || len(older) != 1 || older[0].Layout.Version != 1 {
		t.Errorf("history before 2: %+v, %v", older, err)
	}
	if newest, _, err := c.admin.Layouts(bg, 0, 1); err != nil || len(newest) != 1 || newest[0].Layout.Version != 2 {
		t.Errorf("the newest: %+v, %v", newest, err)
	}
	_, err = c.admin.LayoutAt(bg, 3)
	wantKind(t, err, allocator.NotFound, "version 3")
	// What was read from the history is not the current layout.
	old, err := c.admin.LayoutAt(bg, 2)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.admin.ChangeLayout(bg, old, lay(t, "20 b=5-10"), "you")
	wantKind(t, err, allocator.Conflict)
	c.check()
}

func TestChangeLayoutTooManyRooms(t *testing.T) {
	c := newCluster(t, "1000 a=0-5")
	for i := range allocator.MaxRooms - 1 {
		c.moveTo(lay(t, fmt.Sprintf("1000 r%d=0-5", i)))
	}
	from, _ := c.admin.Ledger.Refresh(bg)
	_, err := c.admin.ChangeLayout(bg, from, lay(t, "1000 more=0-5"), "me")
	wantKind(t, err, allocator.Invalid, "65 rooms", "64")
	p := c.start("a") // a floor over 64 rooms fits into one transaction
	c.move("1000 a=0-5")
	p.lease(10)
	c.check()
}

func TestChangeLayoutUnknownOutcome(t *testing.T) {
	for _, fate := range unknown {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "10 a=0-5 b=5-10")
			p := c.start("a")
			from, _ := p.ledger.Layout()
			p.next(ledgertest.Fate{Name: fate, N: 100}, writes("layout"))
			r, err := manage(p.ledger).ChangeLayout(bg, from, lay(t, "20 a=0-20"), "me")
			if happened(fate) {
				if err != nil || r.Layout.Version != 2 {
					t.Errorf("it happened, and ChangeLayout says %+v, %v", r, err)
				}
			} else {
				wantKind(t, err, allocator.Unavailable)
				// The same again, which closes the door on one that is late.
				if r, err := manage(p.ledger).ChangeLayout(bg, from, lay(t, "20 a=0-20"), "me"); err != nil || r.Layout.Version != 2 {
					t.Errorf("again: %+v, %v", r, err)
				}
			}
			c.mem.Arrive()
			p.lease(10)
			c.check()
		})
	}
}

// Somebody else's change under an unknown outcome is not taken for our own.
func TestChangeLayoutLostToAnother(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p := c.start("a")
	from, _ := p.ledger.Layout()
	p.conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if !writes("layout")(txn) {
			return ledgertest.Fate{}
		}
		c.move("10 a=5-10")
		return ledgertest.Fate{Name: ledgertest.DoneAnswerLost}
	})
	_, err := manage(p.ledger).ChangeLayout(bg, from, lay(t, "20 a=0-20"), "me")
	wantKind(t, err, allocator.Unavailable)
	c.check()
}
