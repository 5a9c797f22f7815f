package worker_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

// longest is by how much not_before is after recover's clock: 20 min and twice 10 s.
const longest = 20*time.Minute + 20*time.Second

// recover recovers c with the processes that answer, and without the others.
func (c *cluster) recover(answer []*process, without ...record.InstanceID) *recovery.Report {
	c.tb.Helper()
	cfg := recovery.Config{Actor: "ann", Apply: true, Layout: recovery.LayoutKnown,
		Without: without, Margin: new(int64), Memories: c.journals}
	cfg.Ask = func(ctx context.Context, s record.SeenInstance, q record.Question,
		use record.UseMarks) (record.Memory, error) {
		for _, p := range answer {
			if s.Address == p.address {
				m := p.Memory(ctx, q)
				return m, errors.Join(m.Validate(), use(m.Room, m.Marks))
			}
		}
		return record.Memory{}, allocator.Errorf(allocator.Unavailable, "no process answers")
	}
	report, err := recovery.Run(bg, c.ledger(c.open()), cfg)
	if err != nil || report.Epoch == "" {
		c.tb.Fatalf("recover: %+v, %v", report, err)
	}
	return report
}

// hear makes p read etcd's present state, and enter the epoch.
func (p *process) hear() {
	p.c.tb.Helper()
	if _, err := p.ledger.Refresh(bg); err != nil && allocator.KindOf(err) == allocator.Unavailable {
		p.c.tb.Fatalf("refresh: %v", err)
	}
	_ = p.ledger.Check(bg)
}

// busyUntil checks that no worker is free before a time, in ms from start.
func busyUntil(tb testing.TB, p *process, r worker.Request, until int64) {
	tb.Helper()
	_, err := p.Take(bg, r)
	if busy, ok := errors.AsType[*worker.BusyError](err); !ok || busy.Until.UnixMilli()-start != until {
		tb.Errorf("got %v, want a worker at %d", err, until)
	}
}

// A restored etcd has forgotten a renewal. The instance answers recover, which raises its
// worker: the instance goes on in its window without a gap, and no other takes the worker.
func TestRecoverRaisesTheWindowsOfWhoAnswers(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	w := p.take(ms(0))
	backup := c.fake.Revision()
	c.pass(10 * time.Second)
	p.renew(w)
	p.window(w, 0, 30_000)
	c.fake.Restore(backup, 0, 0)
	c.pass(5 * time.Second) // by the store, the worker is free
	report := c.recover([]*process{p})
	if report.Workers != 1 {
		t.Errorf("%d workers were raised", report.Workers)
	}
	p.window(w, 0, 30_000)
	busyUntil(t, c.start("a"), ms(0), 30_000)
	dropped := false
	p.OnDrop(func(string) { dropped = true })
	p.renew(w)
	p.window(w, 0, 45_000)
	if dropped {
		t.Error("the instance answered, and dropped what it held")
	}
}

// If an instance was left out, no window begins before its windows can be over. Instances that
// answered go on in theirs, and the one that was left out drops its own.
func TestRecoverWithoutAnInstance(t *testing.T) {
	c := newCluster(t, halves)
	p, q := c.start("a"), c.start("a", func(cfg *worker.Config) { cfg.PinnedWindow = 15 * time.Second })
	dropped := ""
	p.OnDrop(func(why string) { dropped = why })
	backup := c.fake.Revision()
	pw, qw, short := p.take(ms(10)), q.take(ms(10)), q.take(ms(8))
	pinned := q.take(worker.Request{Bits: 7, Tick: time.Millisecond, Pin: worker.PinTo(0)})
	only := worker.Request{Bits: 6, Tick: time.Millisecond, Pin: worker.PinTo(1)}
	p.take(only)
	c.pass(time.Minute)
	q.renew(qw)
	q.renew(pinned)
	p.renew(pw)
	c.fake.Restore(backup, 0, 0)
	c.recover([]*process{q}, "a/i1")
	until := 60_000 + longest.Milliseconds()
	q.renew(qw)
	q.window(qw, 0, 180_000)
	// The window was over at the barrier by some clock: another process may have taken the
	// worker since.
	for _, w := range []*worker.Worker{short, pinned} {
		err := q.Renew(bg, w)
		if lost, ok := errors.AsType[*worker.LostError](err); !ok || lost.By != "" {
			t.Errorf("worker %v: got %v", w.ID(), err)
		}
	}
	busyUntil(t, q, ms(8), until)
	// the others send no heartbeats
	third := c.start("a", func(cfg *worker.Config) { cfg.AgreeClock = true })
	// recover raised it
	busyUntil(t, third, worker.Request{Bits: 8, Tick: time.Millisecond, Pin: worker.PinTo(short.ID().Number)}, until)
	busyUntil(t, q, ms(9), until) // of a pool that was never used
	p.hear()
	err := p.Renew(bg, pw)
	if lost, ok := errors.AsType[*worker.LostError](err); !ok || lost.By != "" || dropped == "" {
		t.Errorf("got %v, dropped: %q", err, dropped)
	}
	busyUntil(t, p, ms(9), until)

	// A recover that leaves no instance out keeps the time, even if etcd has forgotten it.
	c.fake.Restore(backup, 0, 0)
	c.recover([]*process{p, q})
	p.hear()
	busyUntil(t, p, ms(9), until)
	q.renew(qw)
	c.pass(longest)
	if w := p.take(ms(9)); w.Window().From != start+until {
		t.Errorf("the window begins at %d", w.Window().From-start)
	}
	p.take(only) // the one that was left out has its number again
}

// grow renews a worker until its window is long.
func (p *process) grow(w *worker.Worker) {
	for range 6 {
		p.c.pass(10 * time.Second)
		p.renew(w)
	}
}

// An owner that answered a recover without another instance is killed before it renews its window
// under the new epoch. Its number is free at the window's end, for its next process too: it waited
// until not_before, 20 minutes. So it is after a second recover, which all answer, and after a
// window that was too short to go on in. Numbers that nobody answered for wait.
func TestNumberOfAKilledOwnerIsFree(t *testing.T) {
	c := newCluster(t, halves)
	p, q := c.start("a"), c.start("a")
	w := p.take(pinned(3))
	q.take(pinned(4))
	p.grow(w)
	first := c.now.Load() - start + longest.Milliseconds()
	c.recover([]*process{p}, "a/i2")
	probe := c.start("a", agreed)
	if free := probe.busy(pinned(3)); free != w.Window().Until {
		t.Errorf("free at %d, want the window's end, %d", free-start, w.Window().Until-start)
	}
	busyUntil(t, probe, pinned(4), first)
	busyUntil(t, probe, pinned(5), first) // which nobody ever had
	c.now.Store(w.Window().Until)
	next := c.start("a", agreed) // whose windows are short
	short := next.take(pinned(3))
	all := []*process{p, probe, next}
	c.recover(all)
	next.hear()
	if next.Holds(short) {
		t.Error("a window that was over by some clock goes on")
	}
	c.now.Store(short.Window().Until)
	next.take(pinned(3))
	busyUntil(t, probe, pinned(4), first)

	// Another recover without an instance: what was free of the first not_before is not of this one.
	c.pass(time.Second)
	c.recover(all[:2], record.NewInstanceID("a", next.Name()))
	last := c.start("a", agreed)
	busyUntil(t, last, pinned(3), c.now.Load()-start+longest.Milliseconds())
	busyUntil(t, last, pinned(4), c.now.Load()-start+longest.Milliseconds())
}

// A recover without an instance that ends its waiting sooner than the one before did, as the machine
// is off: the numbers that were free of the earlier wait are not of that one.
func TestNotBeforeOfMoreInstancesIsLater(t *testing.T) {
	c := newCluster(t, halves)
	p, q := c.start("a"), c.start("a")
	w := p.take(pinned(3))
	p.grow(w)
	q.take(pinned(4))
	one := c.recover([]*process{p}, "a/i2").NotBefore
	c.now.Add(-time.Minute.Milliseconds()) // recover's clock is behind the first one's
	if two := c.recover(nil, "a/i1").NotBefore; !two.After(one) {
		t.Errorf("windows begin at %v, and at %v after another recover without an instance", one, two)
	}
	busyUntil(t, c.start("a", agreed), pinned(3), one.UnixMilli()-start+1)
}

// The owner of the last window alone frees a number: where the store has a later window of another
// process, or one of another room that overlaps, the answer of an earlier owner proves nothing.
func TestOnlyTheLastOwnerFrees(t *testing.T) {
	for name, change := range map[string]func(*record.Worker){
		"another process": func(w *record.Worker) { w.Incarnation, w.Until = "x", w.Until+1 },
		"another room":    func(w *record.Worker) { w.Room, w.Incarnation = "b", "x" },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, halves)
			p := c.start("a")
			c.start("a")
			w := p.take(pinned(3))
			p.grow(w)
			other := c.stored(w.ID())
			change(&other)
			c.corrupt(keys.Window(other.Room, w.ID()), other.Encode())
			until := c.recover([]*process{p}, "a/i2").NotBefore.UnixMilli()
			busyUntil(t, c.start("a", agreed), pinned(3), until-start)
		})
	}
}

// agreed is the consent to a clock.
func agreed(cfg *worker.Config) { cfg.AgreeClock = true }

// A journal is no answer to the barrier: its owner may have stopped, and another process may
// have taken the worker since.
func TestAJournalExemptsNoWindow(t *testing.T) {
	c, dir := newCluster(t, halves), t.TempDir()
	p := c.startWith(ledger.Registration{Room: "a", Name: "i1", Address: "i1.test:7010", Build: "test", Journal: dir})
	defer func() { _ = p.Close() }()
	c.start("b")
	w := p.take(ms(10))
	c.pass(time.Minute)
	p.renew(w)
	paths, err := filepath.Glob(dir + "/*/a/i1.journal")
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	m, err := ledger.ReadJournal(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	c.journals = []record.Memory{m}
	c.recover(nil, "a/i1", "b/i1")
	p.hear()
	err = p.Renew(bg, w)
	if lost, ok := errors.AsType[*worker.LostError](err); !ok || lost.By != "" {
		t.Errorf("got %v", err)
	}
}

// A journal keeps windows over restarts: for recover, and as evidence.
func TestJournalKeepsWindows(t *testing.T) {
	c, dir := newCluster(t, halves), t.TempDir()
	begin := func() *process {
		return c.startWith(ledger.Registration{Room: "a", Name: "i1", Address: "test:7010",
			Build: "test", Journal: dir})
	}
	p := begin()
	w := p.take(ms(10))
	backup := c.fake.Revision()
	c.pass(10 * time.Second)
	p.renew(w)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(dir + "/*/a/i1.journal")
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	m, err := ledger.ReadJournal(paths[0])
	if err != nil || len(m.Workers) != 1 || m.Workers[0].WorkerID != w.ID() ||
		m.Workers[0].Worker.Window() != w.Window() ||
		m.Workers[0].Incarnation != p.Incarnation() || m.Validate() != nil {
		t.Errorf("%+v, %v", m.Workers, err)
	}
	c.fake.RollBack(backup, 1000) // which only a memory can show
	q := begin()
	defer func() { _ = q.Close() }()
	_, err = q.Take(bg, ms(10))
	ledgertest.WantKind(t, err, allocator.WentBack, "worker")
}

// A window that was given back ends earlier in the journal, too, so it is no evidence.
func TestJournalOfAWindowGivenBack(t *testing.T) {
	c, dir := newCluster(t, halves), t.TempDir()
	for range 2 {
		p := c.startWith(ledger.Registration{Room: "a", Name: "i1", Address: "test:7010", Build: "test", Journal: dir})
		w := p.take(ms(0))
		c.pass(time.Second)
		if err := p.GiveBack(bg, w, w.Window().From+500); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A stop covers the process before it only where etcd has the windows of that process, too.
func TestLeaveCoversWindows(t *testing.T) {
	for _, back := range []bool{false, true} {
		c, dir := newCluster(t, halves), t.TempDir()
		begin := func() *process {
			return c.startWith(ledger.Registration{Room: "a", Name: "i1", Address: "test:7010",
				Build: "test", Journal: dir})
		}
		p := begin()
		backup := c.fake.Revision()
		p.take(ms(10))
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if back {
			c.fake.RollBack(backup, 1000) // which only a memory can show
		}
		q := begin()
		var leaving string
		q.conn.Fate(func(txn store.Txn) ledgertest.Fate {
			for _, op := range txn.Then {
				if op.Put != nil && strings.Contains(string(op.Put.Value), `"leaving":true`) {
					leaving = string(op.Put.Value)
				}
			}
			return ledgertest.Fate{}
		})
		if err := errors.Join(q.Leave(bg), q.Close()); err != nil {
			t.Fatal(err)
		}
		if covers := strings.Contains(leaving, p.Incarnation()); leaving == "" || covers == back {
			t.Errorf("etcd went back %v: it left by %s", back, leaving)
		}
	}
}
