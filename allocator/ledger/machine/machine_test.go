package machine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

// start is when the clocks of tests begin, in Unix ms.
const start = int64(1_800_000_000_000)

// cluster is a cluster in memory, of boundary 100.
type cluster struct {
	*testing.T
	fake   *ledgertest.Fake
	ledger *ledger.Ledger
	admin  *admin.Admin
	now    atomic.Int64 // Unix ms
}

var (
	halves = allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50},
		"b": {Lower: 50, Upper: 100}}}
	// reserved keeps [50, 55) for machines, with 10 bits the numbers [512, 564).
	reserved = allocator.Layout{
		Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50},
			"b": {Lower: 55, Upper: 100}},
		Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 50, Upper: 55}},
	}
)

func newCluster(t *testing.T, layout allocator.Layout) *cluster {
	t.Helper()
	c := &cluster{T: t, fake: ledgertest.NewFake(t)}
	c.now.Store(start)
	c.ledger, _ = c.open()
	c.admin = admin.New(c.ledger, admin.DefaultConfig())
	if _, err := c.admin.Init(t.Context(), layout, "test"); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) open() (*ledger.Ledger, *ledgertest.Conn) {
	c.Helper()
	cfg := ledger.DefaultConfig()
	cfg.Now = func() time.Time { return time.UnixMilli(c.now.Load()) }
	conn := c.fake.Open()
	l, err := ledger.New(conn, cfg)
	if err != nil {
		c.Fatal(err)
	}
	return l, conn
}

// machines are those of an instance of its own, of room a.
func (c *cluster) machines() (*machine.Machines, *ledgertest.Conn) { return c.machinesOf("a") }

func (c *cluster) machinesOf(room allocator.Room) (*machine.Machines, *ledgertest.Conn) {
	c.Helper()
	l, conn := c.open()
	m := machine.New(l, room, "cosid")
	m.CountBy(func() time.Duration { return time.Duration(c.now.Load()-start) * time.Millisecond })
	return m, conn
}

func (c *cluster) move(to allocator.Layout) {
	c.Helper()
	from, err := c.ledger.Refresh(c.Context())
	if err == nil {
		_, err = c.admin.ChangeLayout(c.Context(), from, to, "test")
	}
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) pass(d time.Duration) { c.now.Add(d.Milliseconds()) }

func client(instance string) machine.Client {
	return machine.Client{Namespace: "ns", Instance: instance}
}

// gives checks the number and the time of a client.
func (c *cluster) gives(m *machine.Machines, of machine.Client, bits int, guard time.Duration, number, last int64) {
	c.Helper()
	got, at, err := m.Distribute(c.Context(), of, bits, guard)
	if err != nil || got != number || at-start != last {
		c.Errorf("%v: %d since %d, %v; want %d since %d", of, got, at-start, err, number, last)
	}
}

func (c *cluster) no(want, err error) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Errorf("got %v, want %v", err, want)
	}
}

// Two bits have 4 numbers, of which [2, 4) are of the range [50, 100).
func TestOrder(t *testing.T) {
	c := newCluster(t, allocator.Layout{
		Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}},
		Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 50, Upper: 100}},
	})
	m, _ := c.machines()
	other, _ := c.machines() // of another instance
	ctx := t.Context()
	c.gives(m, client("a"), 2, time.Minute, 2, 0)
	c.gives(other, client("b"), 2, time.Minute, 3, 0)
	_, _, err := m.Distribute(ctx, client("c"), 2, time.Minute)
	c.no(machine.ErrOverflow, err)
	c.gives(m, client("c"), 1, time.Minute, 1, 0) // of another width
	c.pass(time.Second)
	c.gives(other, client("a"), 2, time.Minute, 2, 0) // its own one, and when it was in use
	if err := other.Revert(ctx, client("a")); err != nil {
		t.Error(err)
	}
	c.pass(time.Second)
	// what a gave back
	c.gives(m, machine.Client{Namespace: "other", Instance: "a", Stable: true}, 2, time.Minute, 3-1, 1000)
	_, _, err = m.Distribute(ctx, client("a"), 2, time.Minute)
	c.no(machine.ErrOverflow, err)
	// b is silent: its number goes to another client after that one's guard and what clocks may differ.
	c.pass(time.Minute)
	_, _, err = m.Distribute(ctx, client("a"), 2, time.Minute)
	c.no(machine.ErrOverflow, err)
	if err := m.Guard(ctx, client("b")); err != nil {
		t.Error(err)
	}
	c.pass(81 * time.Second)
	_, _, err = m.Distribute(ctx, client("a"), 2, machine.Forever)
	c.no(machine.ErrOverflow, err)
	c.gives(m, client("a"), 2, time.Minute, 3, 62000) // not the stable one, which is silent for longer
	c.no(machine.ErrNotFound, m.Guard(ctx, client("b")))
	if err := m.Revert(ctx, client("b")); err != nil { // it has nothing to give back
		t.Error(err)
	}
	stable := machine.Client{Namespace: "other", Instance: "a", Stable: true}
	if err := m.Revert(ctx, stable); err != nil {
		t.Error(err)
	}
	_, _, err = m.Distribute(ctx, client("d"), 2, 0)
	c.no(machine.ErrOverflow, err)
	c.gives(m, stable, 2, 0, 2, 143000)
}

// No client gets a worker's number before the worker's window is over, even if its residues
// were reserved meanwhile; and no worker takes a reserved number.
func TestNeverAWorkers(t *testing.T) {
	c := newCluster(t, halves)
	l, _ := c.open()
	instance, err := l.Join(t.Context(), ledger.Registration{Room: "b", Name: "b1",
		Address: "b.test:7010", Build: "test"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := worker.DefaultConfig()
	cfg.Now = func() time.Time { return time.UnixMilli(c.now.Load()) }
	cfg.CallerWorkers = -1
	workers, err := worker.New(instance, cfg)
	if err != nil {
		t.Fatal(err)
	}
	request := worker.Request{Bits: 10, Tick: time.Millisecond}
	w, err := workers.Take(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	slice := timeid.Slice(reserved.Reserved["cosid"], 100, 10)
	if !slice.Contains(w.ID().Number) {
		t.Fatalf("the worker is %v, and this test reserves %v", w.ID(), slice)
	}
	m, _ := c.machines()
	_, _, err = m.Distribute(t.Context(), client("early"), 10, time.Minute)
	if allocator.KindOf(err) != allocator.Refused ||
		!strings.Contains(err.Error(), "layout version 1 reserves no range cosid") {
		t.Errorf("got %v", err)
	}
	c.move(reserved)
	given := make(map[int64]bool)
	for k := range slice.Width() - 1 {
		n, _, err := m.Distribute(t.Context(), client(fmt.Sprint("h:", k)), 10, machine.Forever)
		if err != nil || given[n] || !slice.Contains(n) || n == w.ID().Number {
			t.Fatalf("client %d has %d, %v", k, n, err)
		}
		given[n] = true
	}
	_, _, err = m.Distribute(t.Context(), client("last"), 10, machine.Forever)
	c.no(machine.ErrOverflow, err)
	if err := workers.Renew(t.Context(), w); err == nil {
		t.Error("the worker was renewed, and its number is reserved")
	}
	for range 20 {
		taken, err := workers.Take(t.Context(), request)
		if err != nil || slice.Contains(taken.ID().Number) {
			t.Fatalf("a worker %v, %v", taken.ID(), err)
		}
	}
	c.pass(record.LongestWindow + record.MaxAhead)
	c.gives(m, client("last"), 10, machine.Forever, w.ID().Number, c.now.Load()-start)
	// When the range goes, a client's guard tells it.
	c.move(halves)
	c.no(machine.ErrLost, m.Guard(t.Context(), client("last")))
	if err := m.Revert(t.Context(), client("last")); err != nil {
		t.Error(err)
	}
}

// An instance whose clock is an hour ahead gives no live client's number to another client,
// and neither does one that has just started: silence is counted by a clock of its own. It gave
// the numbers of all clients that guarded.
func TestClockGivesNoNumberAway(t *testing.T) {
	c := newCluster(t, allocator.Layout{
		Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}},
		Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 50, Upper: 100}},
	})
	right, _ := c.machines()
	cfg := ledger.DefaultConfig()
	cfg.Now = func() time.Time { return time.UnixMilli(c.now.Load()).Add(time.Hour) }
	l, err := ledger.New(c.fake.Open(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ahead := machine.New(l, "a", "cosid")
	ahead.CountBy(func() time.Duration { return time.Duration(c.now.Load()-start) * time.Millisecond })
	c.gives(right, client("a"), 2, time.Minute, 2, 0)
	c.gives(right, client("b"), 2, time.Minute, 3, 0)
	for range 5 {
		_, _, err := ahead.Distribute(t.Context(), client("c"), 2, time.Minute)
		c.no(machine.ErrOverflow, err)
		c.pass(time.Minute)
		for _, name := range []string{"a", "b"} {
			if err := right.Guard(t.Context(), client(name)); err != nil {
				t.Error(err)
			}
		}
	}
	c.pass(time.Hour)
	started, _ := c.machines()
	for _, m := range []*machine.Machines{ahead, started} { // the last guards are new to both
		_, _, err := m.Distribute(t.Context(), client("c"), 2, time.Minute)
		c.no(machine.ErrOverflow, err)
	}
	c.pass(81 * time.Second)
	if n, _, err := started.Distribute(t.Context(), client("c"), 2, time.Minute); err != nil || n != 2 {
		t.Errorf("number %d, %v", n, err)
	}
}

// A room that never had a range gives no number: other rooms do not compare its keys, so another
// room would give the number again, from a snapshot that was stale.
func TestRoomThatNeverWasGivesNoNumber(t *testing.T) {
	c := newCluster(t, reserved)
	m, _ := c.machinesOf("c")
	for range 2 {
		_, _, err := m.Distribute(t.Context(), client("a"), 10, time.Minute)
		if allocator.KindOf(err) != allocator.NoRange || !strings.Contains(err.Error(),
			"room c has never had a range") {
			t.Errorf("%v", err)
		}
	}
	c.move(allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50},
		"b": {Lower: 55, Upper: 99}, "c": {Lower: 99, Upper: 100}}, Reserved: reserved.Reserved})
	if _, _, err := m.Distribute(t.Context(), client("a"), 10, time.Minute); err != nil {
		t.Error(err)
	}
}

// A halt gives no live client's number away: while it lasts nobody hears a client.
func TestHaltGivesNoNumberAway(t *testing.T) {
	c := newCluster(t, allocator.Layout{
		Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 75}},
		Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 75, Upper: 100}},
	})
	l, _ := c.open()
	m := machine.New(l, "a", "cosid")
	m.CountBy(func() time.Duration { return time.Duration(c.now.Load()-start) * time.Millisecond })
	c.gives(m, client("a"), 2, time.Minute, 3, 0)
	if _, err := c.ledger.Halt(t.Context(), "test", "a test"); err != nil {
		t.Fatal(err)
	}
	c.pass(time.Hour)
	if err := m.Guard(t.Context(), client("a")); allocator.KindOf(err) != allocator.WentBack {
		t.Errorf("a guard while leasing is halted: %v", err)
	}
	cfg := recovery.Config{Actor: "test", Apply: true}
	if _, err := recovery.Run(t.Context(), c.ledger, cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also not once the first look is over
		_, _, err := m.Distribute(t.Context(), client("b"), 2, time.Minute)
		c.no(machine.ErrOverflow, err)
		c.pass(time.Minute)
	}
	if err := m.Guard(t.Context(), client("a")); err != nil {
		t.Error(err)
	}
	c.pass(81 * time.Second)
	c.gives(m, client("b"), 2, time.Minute, 3, (time.Hour + 2*time.Minute).Milliseconds())
}

// No client's guard arrives while etcd is away, so an outage is no silence of a client.
func TestOutageGivesNoNumberAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, allocator.Layout{
			Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 75}},
			Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 75, Upper: 100}},
		})
		l, conn := c.open()
		m := machine.New(l, "a", "cosid")
		passes := func(d time.Duration) {
			c.pass(d)
			time.Sleep(d)
		}
		c.gives(m, client("a"), 2, time.Minute, 3, 0)
		conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NotDone} })
		for range 2 {
			if err := m.Guard(t.Context(), client("a")); allocator.KindOf(err) != allocator.Unavailable {
				t.Errorf("a guard while etcd is away: %v", err)
			}
			passes(time.Hour)
		}
		conn.Fate(nil)
		for range 2 {
			_, _, err := m.Distribute(t.Context(), client("b"), 2, time.Minute)
			c.no(machine.ErrOverflow, err)
			passes(30 * time.Second)
		}
		passes(21 * time.Second)
		c.gives(m, client("b"), 2, time.Minute, 3, 0) // last in use before the outage
	})
}

// A restore gives no number away that a mirror saw a client have: recover puts its key back, and those of
// one number in the order in which they were written.
func TestRestoreGivesNoNumberAwayThatAMirrorSaw(t *testing.T) {
	for _, mirrored := range []bool{true, false} {
		c := newCluster(t, reserved)
		ctx := t.Context()
		a, _ := c.machinesOf("a")
		b, _ := c.machinesOf("b")
		c.gives(a, client("first"), 10, time.Minute, 512, 0)
		backup := c.fake.Revision()
		c.pass(time.Second)
		c.gives(b, client("lost"), 10, time.Minute, 513, 1000)
		if err := a.Revert(ctx, client("first")); err != nil {
			t.Fatal(err)
		}
		c.pass(time.Second)
		c.gives(b, client("second"), 10, time.Minute, 512, 1000)
		keys, err := record.NewKeys("default")
		if err != nil {
			t.Fatal(err)
		}
		saw := mirror.New(10)
		id, err := c.ledger.Identity(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := saw.Attach(id, "e", 1); err != nil {
			t.Fatal(err)
		}
		for _, key := range c.fake.Keys(string(keys)) {
			value, _ := c.fake.Value(key)
			saw.Saw(keys, store.KV{Key: key, Value: value, ModRevision: 1}, false)
		}
		c.fake.Restore(backup, 0, ledgertest.ClusterID)
		cfg := recovery.Config{Actor: "test", Apply: true}
		if mirrored {
			cfg.Witnesses = []recovery.Witness{{Name: "m", Ask: saw.Asked, Needed: true}}
		}
		l, _ := c.open()
		report, err := recovery.Run(ctx, l, cfg)
		if err != nil {
			t.Fatal(err)
		}
		a, _ = c.machinesOf("a")
		b, _ = c.machinesOf("b")
		if !mirrored { // so it is the mirror that tells
			c.gives(b, client("new"), 10, time.Minute, 513, 2000)
			continue
		}
		if report.Machines != 3 {
			t.Errorf("%d machine IDs were put back, want 3", report.Machines)
		}
		c.gives(b, client("new"), 10, time.Minute, 514, 2000)
		c.gives(b, client("lost"), 10, time.Minute, 513, 1000)
		if err := b.Guard(ctx, client("second")); err != nil {
			t.Errorf("the client that has the number: %v", err)
		}
		c.no(machine.ErrNotFound, a.Guard(ctx, client("first")))
	}
}

// Clients of many instances at once have different numbers, and each keeps its own, also
// when answers are lost.
func TestManyAtOnce(t *testing.T) {
	c := newCluster(t, reserved)
	var mu sync.Mutex
	owner := make(map[int64]string)
	var all sync.WaitGroup
	lost := atomic.Int64{}
	for k := range 4 {
		m, conn := c.machinesOf([]allocator.Room{"a", "b"}[k%2])
		conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if len(txn.Then) > 0 && txn.Then[0].Put != nil && strings.Contains(txn.Then[0].Put.Key, "/clients/") &&
				lost.Add(1)%5 == 0 {
				return ledgertest.Fate{Name: ledgertest.DoneAnswerLost}
			}
			return ledgertest.Fate{}
		})
		all.Go(func() {
			for j := range 12 {
				name := fmt.Sprintf("h%d:%d", k, j)
				n, _, err := m.Distribute(c.Context(), client(name), 10, time.Minute)
				for err != nil && allocator.KindOf(err) == allocator.Unavailable {
					n, _, err = m.Distribute(c.Context(), client(name), 10, time.Minute)
				}
				mu.Lock()
				if other, twice := owner[n]; err != nil || twice {
					t.Errorf("%s has %d, as %s, %v", name, n, other, err)
				}
				owner[n] = name
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if keys := c.fake.Keys("/march/default/clients/"); len(keys) != len(owner) || lost.Load() < 5 {
		t.Errorf("%d keys of %d clients, %d writes", len(keys), len(owner), lost.Load())
	}
}

func TestRefusals(t *testing.T) {
	c := newCluster(t, reserved)
	m, _ := c.machines()
	for _, tt := range []struct {
		of    machine.Client
		bits  int
		guard time.Duration
		says  string
	}{
		{client("a"), 0, 0, "machineBit: 0; allowed: 1 to 31"},
		{client("a"), 32, 0, "machineBit: 32; allowed: 1 to 31"},
		{client("a"), 10, -1, "safeGuardDuration: -1ns; allowed"},
		{client(""), 10, 0, `instanceId: ""; allowed: 1 to 255 bytes`},
		{client(strings.Repeat("x", 256)), 10, 0, "instanceId: "},
		{machine.Client{Instance: "a"}, 10, 0, `namespace: ""; allowed`},
	} {
		_, _, err := m.Distribute(context.Background(), tt.of, tt.bits, tt.guard)
		if allocator.KindOf(err) != allocator.Invalid || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("got %v, want %s", err, tt.says)
		}
	}
	if _, err := c.ledger.Halt(t.Context(), "test", "a test"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Distribute(t.Context(), client("a"), 10, 0); err == nil {
		t.Error("a number was given while leasing is halted")
	}
}

// rollsBack is a store whose etcd goes back after the first number was written.
type rollsBack struct {
	store.Store
	fake *ledgertest.Fake
	done bool
}

func (s *rollsBack) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	for _, op := range txn.Then {
		if !s.done && err == nil && answer.Succeeded && op.Put != nil && strings.Contains(op.Put.Key, "/clients/") {
			s.done = true
			s.fake.RollBack(answer.Revision-1, 1)
		}
	}
	return answer, err
}

// A number is given only where etcd still has it when it is read back.
func TestNumberIsReadBack(t *testing.T) {
	c := newCluster(t, reserved)
	etcd := &rollsBack{Store: c.fake.Open(), fake: c.fake}
	l := ledgertest.Open(t, etcd)
	got, _, err := machine.New(l, "a", "cosid").Distribute(t.Context(), client("one"), 10, time.Minute)
	answer, readErr := etcd.Txn(t.Context(),
		store.Txn{Then: []store.Op{store.OpGetPrefix("/march/default/clients/a/")}})
	if err != nil || readErr != nil || !etcd.done || len(answer.Got[0]) != 1 {
		t.Errorf("number %d, %v; etcd has %v, %v", got, err, answer.Got, readErr)
	}
}

// Whatever room b's user of etcd writes into its own keys, and into those that all rooms wrote
// before, room a gives no client the number of another one that goes on.
func TestNoRoomGivesAnotherOnesMachineAway(t *testing.T) {
	const keys = record.Keys("/march/default/")
	c := newCluster(t, reserved)
	m, _ := c.machines()
	c.gives(m, client("one"), 10, time.Minute, 512, 0)
	forge := func(instance string, returned bool) {
		value := record.Machine{Namespace: "ns", Instance: instance, Last: start, Returned: returned}.Encode()
		id := record.WorkerID{Bits: 10, Number: 512}
		c.fake.Corrupt(store.OpPut(keys.Client("b", id), value), store.OpPut(keys.Machine(id), value))
	}
	for k, forged := range []struct {
		instance string
		returned bool
	}{{"one", true}, {"two", true}, {"two", false}} {
		forge(forged.instance, forged.returned)
		if n, _, err := m.Distribute(c.Context(), client("two"), 10, time.Minute); err != nil || n == 512 {
			t.Errorf("forgery %d: number %d, %v", k, n, err)
		}
		c.no(nil, m.Revert(c.Context(), client("two")))
	}
	forge("one", true)
	c.no(nil, m.Guard(c.Context(), client("one")))
}

// A client may go on through another room, which then gives its number to no other client.
func TestClientThatChangesRooms(t *testing.T) {
	c := newCluster(t, reserved)
	a, _ := c.machinesOf("a")
	b, _ := c.machinesOf("b")
	c.gives(a, client("one"), 10, time.Minute, 512, 0)
	c.no(nil, b.Guard(c.Context(), client("one")))
	c.no(nil, a.Revert(c.Context(), client("one")))
	c.gives(a, client("two"), 10, machine.Forever, 513, 0) // room b has not said that it ended
	c.no(nil, b.Revert(c.Context(), client("one")))
	c.gives(b, client("three"), 10, machine.Forever, 512, 0)
}
