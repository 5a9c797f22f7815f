package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

const keys = record.Keys("/march/default/")

// pinned is a request for a number of a room's slice.
func pinned(number int64) worker.Request {
	return worker.Request{Bits: 10, Tick: time.Millisecond, Pin: worker.PinTo(number)}
}

// busy takes a number that is another process's, and returns until when.
func (p *process) busy(r worker.Request) int64 {
	p.c.tb.Helper()
	_, err := p.Take(bg, r)
	e, ok := errors.AsType[*worker.BusyError](err)
	if !ok {
		p.c.tb.Fatalf("got %v, want that it is busy", err)
	}
	return e.Until.UnixMilli()
}

// Whatever room b's user of etcd writes into its own keys, and into the keys that all rooms wrote
// before: an honest instance of room a takes no number before the window of another one is over.
// That user deleted the one key that a number had, and 392,232 of 800,000 IDs were issued twice.
func TestNoRoomGivesAnotherOnesNumberAway(t *testing.T) {
	c := newCluster(t, halves)
	one, two := c.start("a"), c.start("a")
	w := one.take(pinned(3))
	forged := c.stored(w.ID())
	forged.Room, forged.Instance, forged.Incarnation = "b", "x", "x"
	for name, until := range map[string]int64{"over": start - 1000, "shorter": w.Window().From + 1} {
		forged.From, forged.Until = start-2000, until
		c.corrupt(keys.Window("b", w.ID()), forged.Encode())
		c.corrupt(keys.Worker(w.ID()), forged.Encode())
		if got := two.busy(pinned(3)); got != w.Window().Until {
			t.Errorf("%s: free at %d, want the window's end, %d", name, got-start, w.Window().Until-start)
		}
		one.renew(w)
	}
	forged.Until = w.Window().Until + 60_000 // which holds the number up, and gives none away
	c.corrupt(keys.Window("b", w.ID()), forged.Encode())
	if got := two.busy(pinned(3)); got != forged.Until {
		t.Errorf("free at %d, want %d", got-start, forged.Until-start)
	}
	one.renew(w)
}

// A process stood still until its window was over, and another one of its room took the number.
// Room b's word that the window is still the first one's gives it nothing back: it wrote its own
// window over the other's, and both issued the same time.
func TestNoRoomGivesAWindowBack(t *testing.T) {
	c := newCluster(t, halves)
	one, two := c.start("a"), c.start("a")
	w := one.take(pinned(3))
	forged := c.stored(w.ID())
	c.now.Store(w.Window().Until)
	other := two.take(pinned(3))
	forged.Room, forged.Instance, forged.Until = "b", "x", forged.Until+60_000
	c.corrupt(keys.Window("b", w.ID()), forged.Encode())
	err := one.Renew(bg, w)
	if lost, ok := errors.AsType[*worker.LostError](err); !ok {
		t.Errorf("renewed: %v, %v", lost, err)
	}
	two.renew(other)
}

// etcd was restored, and room b's key of a number ends later than the window that an instance of
// room a remembers: recover raises room a's key all the same. Room b may lower its own one later.
func TestRecoverRaisesWhateverOtherRoomsSay(t *testing.T) {
	c := newCluster(t, halves)
	p, b := c.start("a"), c.start("b")
	w := p.take(pinned(3))
	backup := c.fake.Revision()
	p.grow(w)
	c.fake.Restore(backup, 0, 0)
	forged := c.stored(w.ID())
	forged.Room, forged.Instance, forged.Incarnation, forged.Until = "b", b.Name(), "x", w.Window().Until+60_000
	c.corrupt(keys.Window("b", w.ID()), forged.Encode())
	c.recover([]*process{p, b})
	c.fake.Corrupt(store.Op{Delete: keys.Window("b", w.ID())})
	if got := c.start("a", agreed).busy(pinned(3)); got != w.Window().Until {
		t.Errorf("free at %d, want the window's end, %d", got-start, w.Window().Until-start)
	}
}

// A number goes to another room and comes back. Whoever takes it begins after the windows of all
// rooms, and the process that had it first does not go on.
func TestNumberThatComesBack(t *testing.T) {
	c := newCluster(t, halves)
	first := c.start("a")
	w := first.take(pinned(511)) // the last of room a's slice
	c.move(map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 40}, "b": {Lower: 40, Upper: 100}})
	b := c.start("b")
	number := w.ID().Number - 410 // of the slice that begins at 40/100 of 1024
	until := b.busy(pinned(number))
	if until != w.Window().Until {
		t.Errorf("room b is to begin at %d, want %d", until-start, w.Window().Until-start)
	}
	c.now.Store(until)
	other := b.take(pinned(number))
	if other.ID() != w.ID() || other.Window().From != until {
		t.Errorf("room b took %v from %d", other.ID(), other.Window().From-start)
	}
	c.move(halves)
	err := first.Renew(bg, w)
	if lost, ok := errors.AsType[*worker.LostError](err); !ok || lost.By != record.NewInstanceID("b", b.Name()) {
		t.Errorf("renewed: %v", err)
	}
	third := c.start("a")
	if got := third.busy(pinned(511)); got != other.Window().Until {
		t.Errorf("room a is to begin at %d, want %d", got-start, other.Window().Until-start)
	}
}

// Until formats 2 are turned on, all rooms write one key for a number. From then on they write keys
// of their own, and the one of before counts as one more room's.
func TestTheFirstLayoutWithKeysOfRooms(t *testing.T) {
	fake := ledgertest.NewFake(t)
	c := newClusterOn(t, func() store.Store { return fake.Open() }, halves,
		func(cfg *admin.Config) { cfg.Formats = 1 })
	c.fake, c.manage = fake, admin.New(c.admin, admin.DefaultConfig())
	p, gone := c.start("a"), c.start("a")
	w, last := p.take(pinned(3)), gone.take(pinned(4))
	if len(fake.Keys(keys.Windows(""))) != 0 || len(fake.Keys(keys.Workers())) != 2 {
		t.Fatalf("before: %q", fake.Keys(string(keys)))
	}
	c.pass(time.Second)
	if _, err := c.manage.Upgrade(bg, "test"); err != nil {
		t.Fatal(err)
	}
	was, _ := fake.Value(keys.Worker(w.ID()))
	from := w.Window().From
	for range 3 {
		p.renew(w)
		c.pass(time.Second)
	}
	if now, _ := fake.Value(keys.Worker(w.ID())); string(now) != string(was) {
		t.Errorf("the key of before is written: %s", now)
	}
	p.window(w, from-start, w.Window().Until-start)
	if err := p.GiveBack(bg, w, c.now.Load()); err != nil {
		t.Fatal(err)
	}
	next := c.start("a")
	if w := next.take(pinned(3)); w.Window().From < p.c.now.Load() {
		t.Errorf("began at %d", w.Window().From-start)
	}
	c.now.Store(last.Window().Until - 1)
	if got := c.start("a").busy(pinned(4)); got != last.Window().Until {
		t.Errorf("free at %d, want the end of the key of before, %d", got-start, last.Window().Until-start)
	}
}
