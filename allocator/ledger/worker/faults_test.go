package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
)

// unknown are the fates of a transaction without an answer. The comment says whether the
// transaction was done.
var unknown = map[ledgertest.FateName]bool{ledgertest.DoneAnswerLost: true, ledgertest.NotDone: false,
	ledgertest.NoSpaceButApplied: true}

// After a Take without an answer, etcd may have the worker or not. The next Take finds it, and
// takes no second one.
func TestTakeOfUnknownOutcome(t *testing.T) {
	for fate, done := range unknown {
		c := newCluster(t, halves)
		p := c.start("a")
		p.next(ledgertest.Fate{Name: fate}, ledgertest.PutsUnder("windows/"))
		_, err := p.Take(bg, ms(10))
		ledgertest.WantKind(t, err, allocator.Unavailable)
		if got := len(c.fake.Keys("/march/default/windows/")); (got == 1) != done {
			t.Errorf("%v: there are %d workers", fate, got)
		}
		c.pass(time.Second)
		w := p.take(ms(10))
		if got := len(c.fake.Keys("/march/default/windows/")); got != 1 {
			t.Errorf("%v: there are %d workers", fate, got)
		}
		from := int64(1000)
		if done {
			from = 0 // it is the own window: no generator had it
		}
		p.window(w, from, 4000)
		if n := len(p.Held()); n != 1 {
			t.Errorf("%v: %d workers are held", fate, n)
		}
	}
}

// A process does not go on with a window that it held earlier: a generator used it.
func TestAGivenBackWindowIsNotTakenUpAgain(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	w := p.take(ms(0))
	c.pass(2 * time.Second)
	if err := p.GiveBack(bg, w, start+2500); err != nil {
		t.Fatal(err)
	}
	p.next(ledgertest.Fate{Name: ledgertest.NotDone}, ledgertest.PutsUnder("windows/"))
	_, err := p.Take(bg, ms(0))
	busy, ok := errors.AsType[*worker.BusyError](err)
	if !ok || busy.Until.UnixMilli() != start+2500 {
		t.Fatalf("got %v", err)
	}
	c.pass(time.Second)
	_, err = p.Take(bg, ms(0)) // lost
	ledgertest.WantKind(t, err, allocator.Unavailable, "memory")
	again := p.take(ms(0))
	if from := again.Window().From - start; from < 2500 {
		t.Errorf("the window begins at %d again", from)
	}
}

// After a renewal without an answer, the window stays as it was. The next renewal reads the key
// back, and goes on if the key has the own incarnation.
func TestRenewalOfUnknownOutcome(t *testing.T) {
	for fate, done := range unknown {
		c := newCluster(t, halves)
		p := c.start("a")
		w := p.take(ms(10))
		c.pass(10 * time.Second)
		p.next(ledgertest.Fate{Name: fate}, ledgertest.PutsUnder("windows/"))
		ledgertest.WantKind(t, p.Renew(bg, w), allocator.Unavailable)
		if got := w.Window().Until - start; got != 3000 {
			t.Errorf("%v: the window ends at %d", fate, got)
		}
		if got := c.stored(w.ID()).Until - start; (got == 30_000) != done {
			t.Errorf("%v: etcd has the end %d", fate, got)
		}
		p.began = c.now.Load() // a shorter window is due: the end in etcd is not lowered
		p.renew(w)
		until := int64(13_000)
		if done {
			until = 30_000
		}
		p.window(w, 0, until)
	}
}

// An answer that does not count (step 6) gives no window.
func TestAnswersThatDoNotCount(t *testing.T) {
	for _, fate := range []ledgertest.Fate{{Name: ledgertest.WrongCluster}, {Name: ledgertest.OldRevision, N: 50}} {
		c := newCluster(t, halves)
		p := c.start("a")
		w := p.take(ms(10))
		c.pass(10 * time.Second)
		p.next(fate, ledgertest.PutsUnder("windows/"))
		ledgertest.WantKind(t, p.Renew(bg, w), allocator.WentBack)
		if got := w.Window().Until - start; got != 3000 {
			t.Errorf("%v: the window ends at %d", fate, got)
		}
	}
}

// A late transaction of a window fails if another window came meanwhile.
func TestALateRenewalComesToNothing(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	w := p.take(ms(0))
	c.pass(2 * time.Second)
	p.next(ledgertest.Fate{Name: ledgertest.Late, N: 100}, ledgertest.PutsUnder("windows/"))
	ledgertest.WantKind(t, p.Renew(bg, w), allocator.Unavailable)
	c.pass(20 * time.Second)
	q := c.start("a")
	other := q.take(ms(0))
	c.fake.Arrive()
	q.window(other, 22_000, 25_000)
	err := p.Renew(bg, w)
	lost, ok := errors.AsType[*worker.LostError](err)
	if !ok || lost.By != "a/i2" {
		t.Errorf("got %v", err)
	}
	ledgertest.WantKind(t, w.Lost(), allocator.Conflict, "a/i2")
}

// A give-back without an answer may be tried again. It frees nothing below what was used.
func TestGiveBackOfUnknownOutcome(t *testing.T) {
	for fate := range unknown {
		c := newCluster(t, halves)
		p := c.start("a")
		w := p.take(ms(0))
		c.pass(time.Second)
		p.next(ledgertest.Fate{Name: fate}, ledgertest.PutsUnder("windows/"))
		ledgertest.WantKind(t, p.GiveBack(bg, w, start+1500), allocator.Unavailable)
		c.pass(3 * time.Second)
		if from := c.start("a").take(ms(0)).Window().From - start; from != 4000 {
			t.Errorf("%v: the next window begins at %d", fate, from)
		}
	}
}

// A halt stops renewals. The instance keeps its windows to their end.
func TestHaltStopsRenewals(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	w := p.take(ms(10))
	if _, err := c.admin.Halt(bg, "ann", "a test"); err != nil {
		t.Fatal(err)
	}
	c.pass(2 * time.Second)
	ledgertest.WantKind(t, p.Renew(bg, w), allocator.WentBack, "halted by ann")
	_, err := p.Take(bg, ms(10))
	ledgertest.WantKind(t, err, allocator.WentBack, "halted by ann")
	p.window(w, 0, 3000)
	if w.Lost() != nil {
		t.Error(w.Lost())
	}
}

// A forgotten instance has no worker any longer, and may take a new one.
func TestForgetTakesWorkersAway(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	dropped := 0
	p.OnDrop(func(string) { dropped++ })
	w := p.take(ms(10))
	if err := c.manage.Forget(bg, "a", "i1", "ann"); err != nil {
		t.Fatal(err)
	}
	c.pass(2 * time.Second)
	_ = p.Renew(bg, w) // its registration is gone
	err := p.Renew(bg, w)
	if lost, ok := errors.AsType[*worker.LostError](err); !ok || lost.By != "" || dropped != 1 {
		t.Errorf("got %v, and %d drops", err, dropped)
	}
	p.take(ms(10))
}

// An etcd that lost a window in the same epoch went back in time.
func TestALostWindowIsEvidence(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	w := p.take(ms(10))
	c.pass(2 * time.Second)
	short := c.stored(w.ID())
	short.Until -= 1000
	key := record.Keys("/march/default/").Window("a", w.ID())
	c.corrupt(key, short.Encode())
	ledgertest.WantKind(t, p.Renew(bg, w), allocator.WentBack, key)
	if _, err := p.Footing(bg); allocator.KindOf(err) != allocator.WentBack {
		t.Errorf("got %v", err)
	}
}

// A window in which nothing was issued is given back to its begin.
func TestGiveBackOfAnUnusedWindow(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	w := p.take(ms(0))
	if err := p.GiveBack(bg, w, 0); err != nil {
		t.Fatal(err)
	}
	if got := c.stored(w.ID()); got.Until != got.From || got.From != start {
		t.Errorf("%+v", got)
	}
	c.start("a").take(ms(0))
}
