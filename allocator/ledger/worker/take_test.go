package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/allocator/ledger/worker"
)

var halves = map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 100}}

// A worker is taken for a short window, which grows at each renewal and is given back
// at the end of the last tick that was used.
func TestLifeOfAWindow(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("b")
	c.pass(250 * time.Millisecond)
	w := p.take(ms(10))
	if id := w.ID(); id.Bits != 10 || id.Number < 512 || id.Number > 1023 {
		t.Errorf("room b took worker %v", id)
	}
	p.window(w, 250, 3250)
	if got := w.RenewAt().UnixMilli() - start; got != 1750 {
		t.Errorf("it is to be renewed at %d", got)
	}
	c.pass(9750 * time.Millisecond)
	p.renew(w)
	p.window(w, 250, 30_000) // of age 10 s
	c.pass(time.Hour)
	p.renew(w) // late: it goes on without a gap
	p.window(w, 250, 3_600_000+10_000+20*60_000)
	if err := p.GiveBack(bg, w, start+3_000_007); err != nil {
		t.Fatal(err)
	}
	if got := c.stored(w.ID()).Until - start; got != 3_000_007 {
		t.Errorf("given back until %d", got)
	}
	ledgertest.WantKind(t, p.Renew(bg, w), allocator.Unavailable, "given back")
	if held := p.Held(); len(held) != 0 {
		t.Errorf("%d workers are held", len(held))
	}
}

// A window keeps its end if it is renewed by a clock that was set back, and with it the clock that
// the end follows from: no window ends later than the longest one after its owner's clock.
func TestRenewalByAClockSetBack(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	p.ahead.Store(time.Hour.Milliseconds())
	w := p.take(ms(10))
	p.ahead.Store(0)
	p.renew(w)
	if got := c.stored(w.ID()); got.Until != start+3_603_000 || got.Clock != start+3_600_000 {
		t.Errorf("until %d, by a clock of %d", got.Until-start, got.Clock-start)
	}
	if r, err := verify.Run(bg, c.admin.Cluster(), verify.Options{}); err != nil || len(r.Problems) > 0 {
		t.Errorf("verify: %v, %v", r, err)
	}
}

// Two instances never have a worker at the same time, and rooms take none of
// another's slice.
func TestNoWorkerIsTakenTwice(t *testing.T) {
	c := newCluster(t, halves)
	seen := map[int64]bool{}
	for range 2 {
		for _, room := range []allocator.Room{"a", "b"} {
			w := c.start(room).take(ms(2))
			n := w.ID().Number
			if seen[n] || (n < 2) != (room == "a") {
				t.Errorf("room %s took worker %d", room, n)
			}
			seen[n] = true
		}
	}
	_, err := c.start("a").Take(bg, ms(2))
	busy, ok := errors.AsType[*worker.BusyError](err)
	if !ok || busy.Until.UnixMilli() != start+3000 {
		t.Errorf("got %v", err)
	}
	ledgertest.WantKind(t, err, allocator.Unavailable, "a/i", "until 2027-01-15T08:00:03.000Z")
	_, err = c.start("a").Take(bg, ms(70))
	ledgertest.WantKind(t, err, allocator.Invalid, "worker bits: 70")
}

// An instance that waits for a worker says whether it is worth waiting: the process that has it may run, and keep it
// for ever, or be gone.
func TestBusySaysWhetherTheOwnerRuns(t *testing.T) {
	c := newCluster(t, halves)
	owner, other := c.start("a"), c.start("a")
	owner.take(pinned(3))
	_, err := other.Take(bg, pinned(3))
	ledgertest.WantKind(t, err, allocator.Unavailable,
		"worker 10/3, the only one that this instance takes (--worker), is instance a/i1's until "+
			"2027-01-15T08:00:03.000Z, and longer while that process runs (its last heartbeat is of "+
			"2027-01-15T08:00:00Z): stop that one, or give one of the two another number")
	c.fake.Corrupt(store.Op{Delete: record.Keys("/march/default/").Alive("a", "i1")})
	_, err = other.Take(bg, pinned(3))
	ledgertest.WantKind(t, err, allocator.Unavailable,
		"worker 10/3, the only one that this instance takes (--worker), is instance a/i1's until "+
			"2027-01-15T08:00:03.000Z, although that process is gone: waiting until then")
	for range 2 {
		c.start("a").take(ms(2))
	}
	_, err = c.start("a").Take(bg, ms(2))
	ledgertest.WantKind(t, err, allocator.Unavailable,
		"and longer while that process runs", "and no other is free sooner")
}
