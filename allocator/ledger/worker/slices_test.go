package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
)

// A layout takes a worker out of the slice. The instance does not renew it, and takes another
// while its window lasts. The room that has the slice now waits for the window's end, or for
// the give-back.
func TestASliceIsTakenAway(t *testing.T) {
	c := newCluster(t, halves)
	p, q := c.start("a"), c.start("b")
	w := p.take(worker.Request{Bits: 1, Tick: time.Millisecond}) // worker 0 is all of room a's slice
	c.pass(2 * time.Second)
	c.move(map[allocator.Room]allocator.Range{"a": {Lower: 60, Upper: 100}, "b": {Lower: 0, Upper: 60}})
	err := p.Renew(bg, w)
	moved, ok := errors.AsType[*worker.MovedError](err)
	if !ok || moved.Worker != w.ID() || moved.Version != 2 {
		t.Fatalf("got %v", err)
	}
	ledgertest.WantKind(t, err, allocator.NoRange, "worker 1/0", "room a", "version 2")
	p.window(w, 0, 3000)
	// Room b has both numbers of the half below 60, 0 and 1, by now.
	_, err = p.Take(bg, worker.Request{Bits: 1, Tick: time.Millisecond})
	ledgertest.WantKind(t, err, allocator.NoRange, "too narrow", "version 2")
	other := p.take(ms(10))
	if n := other.ID().Number; n < 615 {
		t.Errorf("room a took worker %d", n)
	}
	busyUntil(t, q, worker.Request{Bits: 1, Tick: time.Millisecond, Pin: worker.PinTo(0)}, 3000)
	if err := p.GiveBack(bg, w, start+1500); err != nil {
		t.Fatal(err)
	}
	taken := q.take(worker.Request{Bits: 1, Tick: time.Millisecond, Pin: worker.PinTo(0)})
	q.window(taken, 2000, 6000)
}

// A process that does not know of a new layout takes no worker of its old slice: the
// transaction compares the layout.
func TestTheLayoutIsCompared(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	p.take(ms(10)) // it knows layout 1
	w := p.take(worker.Request{Bits: 1, Tick: time.Millisecond})
	c.move(map[allocator.Room]allocator.Range{"a": {Lower: 50, Upper: 100}, "b": {Lower: 0, Upper: 50}})
	if n := p.take(ms(9)).ID().Number; n < 256 {
		t.Errorf("room a took worker %d", n)
	}
	if _, ok := errors.AsType[*worker.MovedError](p.Renew(bg, w)); !ok {
		t.Error("worker 0 was renewed in a layout that gives it to room b")
	}
}

func TestRoomsWithoutWorkers(t *testing.T) {
	c := newCluster(t, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 90}, "b": {Lower: 91, Upper: 92}})
	_, err := c.start("c").Take(bg, ms(10))
	ledgertest.WantKind(t, err, allocator.NoRange, "room c has no range")
	_, err = c.start("b").Take(bg, ms(3))
	ledgertest.WantKind(t, err, allocator.NoRange, "too narrow", "3 bits")
	p := c.start("a")
	_, err = p.Take(bg, worker.Request{Bits: 0, Tick: time.Millisecond, Caller: true})
	ledgertest.WantKind(t, err, allocator.TooMany, "no worker of 0 bits for callers")
	p.take(ms(0))
	_, err = p.Take(bg, ms(0))
	ledgertest.WantKind(t, err, allocator.NoRange, "all 1 workers")
}

// Pinned workers count from the slice's lower end, and their windows are short. The next
// process with the number waits for the end, and says until when.
func TestPinnedWorkers(t *testing.T) {
	c := newCluster(t, halves)
	pin := worker.Request{Bits: 10, Tick: time.Second, Pin: worker.PinTo(7)}
	p := c.startAs("b", "b-7")
	w := p.take(pin)
	if n := w.ID().Number; n != 519 {
		t.Errorf("took worker %d", n)
	}
	c.pass(time.Hour)
	p.renew(w)
	p.window(w, 0, 3_630_000)
	again := c.startAs("b", "b-7") // b-7 was killed
	c.pass(time.Second)
	_, err := again.Take(bg, pin)
	ledgertest.WantKind(t, err, allocator.Unavailable, "worker 10/519", "b/b-7", "until")
	busyUntil(t, again, pin, 3_630_000)
	c.pass(29 * time.Second)
	again.window(again.take(pin), 3_630_000, 3_690_000-30_000)
	pin.Pin = worker.PinTo(512)
	_, err = p.Take(bg, pin)
	ledgertest.WantKind(t, err, allocator.Invalid, "worker: 512; allowed: 0 to 511", "room b")
}

// A window begins at the end of the previous one, even within the tick of the clock.
func TestAWindowBeginsWithinATick(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	second := worker.Request{Bits: 0, Tick: time.Second}
	w := p.take(second)
	c.pass(time.Second)
	if err := p.GiveBack(bg, w, start+1400); err != nil {
		t.Fatal(err)
	}
	c.pass(700 * time.Millisecond)
	q := c.start("a")
	q.window(q.take(second), 1400, 5000)
}

// After a restart an instance gets its previous worker again once its window is over. It takes
// another instance's, at random, only if that ended long ago.
func TestRestartsTakeTheSameWorker(t *testing.T) {
	c := newCluster(t, halves)
	w := c.startAs("a", "x").take(ms(10))
	c.startAs("a", "y").take(ms(10))
	c.pass(2 * time.Second)
	early := c.startAs("a", "x").take(ms(10))
	if early.ID() == w.ID() {
		t.Error("it was taken before its end")
	}
	c.pass(10 * time.Second)
	if again := c.startAs("a", "x").take(ms(10)); again.ID() != early.ID() {
		t.Errorf("took worker %v, and had %v last", again.ID(), early.ID())
	}
}

// A crash loop uses up seconds and not workers.
func TestCrashLoop(t *testing.T) {
	c := newCluster(t, halves)
	for range 20 {
		c.startAs("a", "x").take(ms(3))
		c.pass(3 * time.Second)
	}
	if n := len(c.fake.Keys("/march/default/windows/")); n != 1 {
		t.Errorf("%d workers were used", n)
	}
}

// Callers' workers are in the upper half of the slice, or fewer, and are never given back
// early.
func TestCallersWorkers(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	caller := worker.Request{Bits: 3, Tick: time.Millisecond, Caller: true}
	first, second := p.take(caller), p.take(caller)
	if a, b := first.ID().Number, second.ID().Number; a+b != 2+3 || a < 2 || b < 2 {
		t.Errorf("took workers %d and %d of [0, 4)", a, b)
	}
	_, err := p.Take(bg, caller)
	ledgertest.WantKind(t, err, allocator.TooMany, "all 2 workers", "--client-workers")
	c.pass(time.Second)
	if err := p.GiveBack(bg, first, start+1); err != nil {
		t.Fatal(err)
	}
	if got := c.stored(first.ID()).Until - start; got != 3000 {
		t.Errorf("a caller's window ends at %d", got)
	}
	c.pass(13 * time.Second) // the caller of second is long gone
	if w := p.take(caller); w.Window().From < start+3000 {
		t.Errorf("taken again from %d", w.Window().From-start)
	}
	none := c.start("a", func(cfg *worker.Config) { cfg.CallerWorkers = -1 })
	_, err = none.Take(bg, caller)
	ledgertest.WantKind(t, err, allocator.TooMany, "no worker of 3 bits for callers")
	one := c.start("b", func(cfg *worker.Config) { cfg.CallerWorkers = 1 })
	if n := one.take(caller).ID().Number; n != 7 {
		t.Errorf("took worker %d of [4, 8)", n)
	}
}

// An instance takes a worker for callers only if there is no other.
func TestInstancesLeaveCallersTheirWorkers(t *testing.T) {
	c := newCluster(t, halves)
	for want := range int64(2) { // of [0, 2); callers may have [1, 2)
		if n := c.start("a").take(ms(2)).ID().Number; n != want {
			t.Errorf("took worker %d, want %d", n, want)
		}
	}
}

// A caller's window grows with the age of its process, and with the age of the instance.
func TestCallersWindowsGrow(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	length := func(w *worker.Worker) time.Duration {
		return time.Duration(w.Window().Until-c.now.Load()) * time.Millisecond
	}
	if got := length(p.take(worker.Request{Bits: 10, Tick: time.Millisecond, Caller: true, Age: time.Hour})); got !=
		3*time.Second {
		t.Errorf("of a new instance: %v", got)
	}
	c.pass(time.Hour)
	fresh := p.take(worker.Request{Bits: 10, Tick: time.Millisecond, Caller: true})
	if got := length(fresh); got != 3*time.Second {
		t.Errorf("of a new caller: %v", got)
	}
	if got := length(p.take(worker.Request{Bits: 10, Tick: time.Millisecond, Caller: true, Age: time.Minute})); got !=
		2*time.Minute {
		t.Errorf("of a caller of a minute: %v", got)
	}
	if got := length(p.take(worker.Request{Bits: 10, Tick: time.Millisecond, Caller: true, Age: time.Minute,
		Longest: 30 * time.Second})); got != 30*time.Second {
		t.Errorf("of at most 30 s: %v", got)
	}
	for range 6 {
		c.pass(fresh.RenewAt().Sub(time.UnixMilli(c.now.Load())))
		if err := p.Renew(bg, fresh); err != nil {
			t.Fatal(err)
		}
	}
	if got := length(fresh); got != 96*time.Second { // twice as old at each renewal, from 1.5 s
		t.Errorf("after six renewals: %v", got)
	}
	_, err := p.Take(bg, worker.Request{Bits: 10, Tick: time.Millisecond, Caller: true, Age: -1})
	ledgertest.WantKind(t, err, allocator.Invalid, "age: -1ns")
}

// A Take passes over a worker with an unreadable key.
func TestDamagedWorkers(t *testing.T) {
	c := newCluster(t, halves)
	key := record.Keys("/march/default/").Worker(record.WorkerID{Bits: 2, Number: 0})
	c.corrupt(key, []byte(`{"format":2}`))
	p := c.start("a")
	if n := p.take(ms(2)).ID().Number; n != 1 {
		t.Errorf("took worker %d", n)
	}
	_, err := p.Take(bg, worker.Request{Bits: 2, Tick: time.Millisecond, Pin: worker.PinTo(0)})
	ledgertest.WantKind(t, err, allocator.NoRange)
}

// If another process of the same name has registered, the older one takes and renews nothing:
// the transaction compares the registration.
func TestTheRegistrationIsCompared(t *testing.T) {
	c := newCluster(t, halves)
	p := c.startAs("a", "x")
	w := p.take(ms(10))
	c.pass(time.Second)
	c.startAs("a", "x")
	ledgertest.WantKind(t, p.Renew(bg, w), allocator.Refused, "another process registered as instance x")
	_, err := p.Take(bg, ms(10))
	ledgertest.WantKind(t, err, allocator.Refused, "another process registered as instance x")
}

var _ worker.Instance = (*ledger.Instance)(nil)
