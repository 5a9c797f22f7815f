package client_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestTimed runs the tests of time-ordered IDs.
func TestTimed(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *cluster){
		"issues":                 timedIDs,
		"texts":                  timedTexts,
		"strings of 80 bits":     timedWide,
		"without window":         timedWithoutWindow,
		"while the room is away": timedWhileTheRoomIsAway,
		"after a pause":          timedAfterAPause,
		"rollback":               timedRollback,
		"faults":                 timedFaults,
		"after moves":            timedAfterMoves,
		"over restarts":          timedOverRestarts,
		"clone":                  timedClone,
		"tag deleted":            timedTagDeleted,
		"tag dropped":            timedTagDropped,
		"close":                  timedClose,
	} {
		t.Run(name, func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				test(t, newCluster(t))
			})
		})
	}
}

var cosid = timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond,
	Epoch: timeid.EpochCosId}

// timed creates tags of time-ordered IDs.
func (c *cluster) timed(l timeid.Layout, rollback timeid.Rollback, names ...allocator.Tag) {
	c.Helper()
	c.Tag(func(s *record.TagSettings) {
		t := record.NewTimeTag(l)
		t.Rollback = rollback
		s.Time = &t
	}, "test", names...)
}

// clock is a clock that a test sets.
type clock struct{ fixed, ahead atomic.Int64 }

func (c *clock) now() int64 {
	if at := c.fixed.Load(); at != 0 {
		return at
	}
	return time.Now().UnixMilli() + c.ahead.Load()
}

// freeze stops the clock.
func (c *clock) freeze() { c.fixed.Store(c.now()) }

// oracle holds every ID of one tag against all others of it.
type oracle struct {
	testing.TB
	layout timeid.Layout
	mu     sync.Mutex
	by     map[int64]string // which process issued an ID
}

func newOracle(tb testing.TB, l timeid.Layout) *oracle {
	return &oracle{TB: tb, layout: l, by: make(map[int64]string)}
}

// add adds runs that a process issued, and returns the worker of the last ID.
func (o *oracle) add(by string, runs ...allocator.Run) (worker int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, run := range runs {
		for k := range run.Count {
			id := run.First + k*max(run.Stride, 1)
			if other, twice := o.by[id]; twice {
				o.Errorf("%s issued %d, and so did %s", by, id, other)
			}
			o.by[id] = by
			p, err := o.layout.Decompose(id)
			if err != nil {
				o.Error(err)
			}
			worker = p.Worker
		}
	}
	return worker
}

func (o *oracle) one(by string, id int64) (worker int64) {
	return o.add(by, allocator.Run{First: id, Count: 1})
}

func (o *oracle) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.by)
}

// drain takes IDs of a client's tag in all ways until stop is called, which returns how
// many calls failed, and the last error.
func (o *oracle) drain(by string, t *client.Tag) (stop func() (int, error)) {
	ctx, cancel := context.WithCancel(o.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed int
	var last error
	for range 2 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				runs := []allocator.Run{{Count: 1}}
				var err error
				if n%10 == 0 {
					runs, err = t.NextN(o.Context(), int64(1+n%300), nil)
				} else {
					runs[0].First, err = t.Next(o.Context())
				}
				if err != nil {
					mu.Lock()
					failed, last = failed+1, err
					mu.Unlock()
				} else {
					o.add(by, runs...)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	return func() (int, error) {
		cancel()
		all.Wait()
		return failed, last
	}
}

// more waits until so many more IDs were issued.
func (o *oracle) more(n int) {
	o.Helper()
	want := o.count() + n
	testcluster.Await(o, "more IDs", func() bool { return o.count() >= want })
}

// Clients and rooms issue the IDs of a tag at the same time: clients with workers of the
// upper half of their room's slice.
func timedIDs(t *testing.T, c *cluster) {
	last := cosid
	last.Order = timeid.WorkerLast
	c.timed(cosid, timeid.Wait, "event")
	c.timed(last, timeid.Wait, "last")
	a1, a2, b := c.room("a", "a1"), c.room("a", "a2"), c.room("b", "b1")
	oracles := map[string]*oracle{"event": newOracle(t, cosid), "last": newOracle(t, last)}
	var all sync.WaitGroup
	for name, o := range oracles {
		for by, in := range map[string]*instance{"client 1 of a": a1, "client 2 of a": a1,
			"client 3 of a": a2, "client of b": b} {
			tag, err := newClient(t, client.Options{Addresses: []string{in.address},
				WarmTags: []string{name}}).Tag(name)
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				own := 0 // IDs of the client's own worker
				for n := range 1000 {
					id, err := tag.Next(t.Context())
					if err != nil {
						t.Errorf("%s: %v", by, err)
						return
					}
					lower := map[allocator.Room]int64{"a": 0, "b": 512}[in.in]
					w := o.one(by, id)
					if w < lower || w >= lower+512 {
						t.Errorf("%s has worker %d, want one of [%d, %d)", by, w, lower, lower+512)
					}
					if w >= lower+256 {
						own++
					}
					if n%100 == 0 {
						runs, err := tag.NextN(t.Context(), 500, nil)
						if err != nil {
							t.Error(err)
						}
						o.add(by, runs...)
					}
				}
				if own == 0 {
					t.Errorf("%s issued nothing itself", by)
				}
				if _, err := tag.NextN(t.Context(), 5_000_000, nil); allocator.KindOf(err) != allocator.Invalid {
					t.Errorf("5 million at once: %v", err)
				}
				if s := tag.Status(); s.Failure != nil || s.Lasts <= 0 || string(s.Tag) != name {
					t.Errorf("%s: %+v", by, s)
				}
			})
		}
		for _, in := range []*instance{a1, a2, b} {
			ids := marchv1.NewIDServiceClient(testcluster.Dial(t, in.address))
			all.Go(func() {
				for range 500 {
					answer, err := ids.Next(t.Context(), &marchv1.NextRequest{Tag: name})
					if err != nil {
						t.Error(err)
						return
					}
					o.one(string(in.name), answer.GetId())
				}
			})
		}
	}
	all.Wait()
}

// One worker of a client serves all of its tags of a width, and an ID allocates nothing.
func TestTimedTagsShareAWorker(t *testing.T) {
	c := newCluster(t)
	c.timed(cosid, timeid.Wait, "event", "other")
	seconds := timeid.Layout{TimeBits: 31, WorkerBits: 10, SequenceBits: 22,
		Unit: time.Second, Epoch: timeid.EpochCosId}
	c.timed(seconds, timeid.Wait, "seconds")
	ids := newClient(t, client.Options{Addresses: []string{c.room("a", "a1").address}})
	workers := make(map[int64]bool)
	for name, l := range map[string]timeid.Layout{"event": cosid, "other": cosid, "seconds": seconds} {
		// A window that begins within a second has its first whole one later.
		testcluster.Await(t, "an ID of a window", func() bool {
			id, err := ids.Next(t.Context(), name)
			p, bad := l.Decompose(id)
			if err == nil && bad == nil && p.Worker >= 256 {
				workers[p.Worker] = true
			}
			return err == nil && p.Worker >= 256
		})
	}
	if len(workers) != 1 {
		t.Errorf("workers %v, want one", workers)
	}
	tag := tagOf(t, ids, "seconds")
	ctx := t.Context()
	if n := allocations(func() { _, _ = tag.Next(ctx) }); n > 0 {
		t.Errorf("%v allocations for an ID", n)
	}
}

// Where no worker is left for a client, the room issues its IDs.
func timedWithoutWindow(t *testing.T, c *cluster) {
	narrow := cosid
	narrow.WorkerBits = 2
	c.timed(narrow, timeid.Wait, "event")
	a := c.room("a", "a1")
	o := newOracle(t, narrow)
	workers := make(map[int64]bool)
	for _, by := range []string{"first", "second"} {
		ids := newClient(t, client.Options{Addresses: []string{a.address}, WarmTags: []string{"event"}})
		for range 100 {
			id, err := ids.Next(t.Context(), "event")
			if err != nil {
				t.Fatal(err)
			}
			workers[o.one(by, id)] = true
		}
		runs, err := ids.NextN(t.Context(), "event", 20_000)
		if err != nil {
			t.Fatal(err)
		}
		before := o.count()
		if o.add(by, runs...); o.count() != before+20_000 {
			t.Errorf("%d IDs, want 20,000", o.count()-before)
		}
		if tag := tagOf(t, ids, "event"); by == "second" &&
			allocator.KindOf(tag.Status().Failure) != allocator.TooMany {
			t.Errorf("%+v: want the reason why there is no window", tag.Status())
		}
	}
	if len(workers) != 2 || !workers[0] || !workers[1] {
		t.Errorf("workers %v, want the client's 1 and the room's 0", workers)
	}
	none := c.Room("b", "b1", func(cfg *room.Config) { cfg.ClientWorkers = -1 })
	if id, err := newClient(t, client.Options{Addresses: []string{none.Address}}).Next(t.Context(),
		"event"); err != nil || o.one("b", id) > 3 {
		t.Errorf("without workers for clients: %d, %v", id, err)
	}
}

// A client issues while its room is away, until its window ends: then no call waits for
// ever. When an instance is back the client goes on, with another worker.
func timedWhileTheRoomIsAway(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	a := c.room("a", "a1")
	var clock clock
	tag := tagOf(t, newClient(t, client.WithClock(client.Options{Addresses: []string{a.address}}, clock.now)), "event")
	o := newOracle(t, cosid)
	before := o.one("client", mustNext(t, tag))
	clock.freeze() // in the window
	a.end()
	for range 1000 {
		if w := o.one("client", mustNext(t, tag)); w != before {
			t.Fatalf("worker %d, want %d", w, before)
		}
	}
	clock.fixed.Add(time.Hour.Milliseconds()) // the window is over
	_, err := tag.Next(t.Context())
	ledgertest.WantKind(t, err, allocator.Unavailable, "room at "+a.address)
	clock.fixed.Store(0)
	a.start()
	testcluster.Await(t, "IDs", func() bool {
		id, err := tag.Next(t.Context())
		return err == nil && o.one("client", id) != before && id > 0
	})
}

// A process that was stopped past the end of its window issues nothing of it: the IDs are
// of a window that is in force, or the room's.
func timedAfterAPause(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	a := c.room("a", "a1")
	var stopped clock
	o := newOracle(t, cosid)
	tag := tagOf(t, newClient(t, client.WithClock(client.Options{Addresses: []string{a.address}}, stopped.now)),
		"event")
	other := tagOf(t, newClient(t, client.Options{Addresses: []string{a.address}}), "event")
	for _, ahead := range []time.Duration{0, 4 * time.Second, time.Hour, 0} {
		stopped.ahead.Store(ahead.Milliseconds())
		for range 200 {
			o.one("client", mustNext(t, tag))
			id := mustNext(t, other)
			o.one("other", id)
			if p, err := cosid.DecomposeBefore(id, time.Now().Add(10*time.Second).UnixMilli()); err != nil {
				t.Error(p, err)
			}
		}
	}
}

// A clock that goes back is met as the tag says.
func timedRollback(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Fail, "fail")
	c.timed(cosid, timeid.Offset, "offset")
	a := c.room("a", "a1")
	var clock clock
	ids := newClient(t, client.WithClock(client.Options{Addresses: []string{a.address}}, clock.now))
	fail, offset := tagOf(t, ids, "fail"), tagOf(t, ids, "offset")
	first, highest := mustNext(t, fail), mustNext(t, offset)
	clock.freeze()
	clock.fixed.Add(1)
	first, highest = max(first, mustNext(t, fail)), max(highest, mustNext(t, offset))
	clock.fixed.Add(-2)
	_, err := fail.Next(t.Context())
	ledgertest.WantKind(t, err, allocator.Unavailable, "the clock went back")
	var back *timeid.RollbackError
	if !errors.As(err, &back) {
		t.Errorf("%v is no RollbackError", err)
	}
	if id := mustNext(t, offset); id <= highest {
		t.Errorf("%d after %d", id, highest)
	}
	clock.fixed.Add(10)
	if id := mustNext(t, fail); id <= first {
		t.Errorf("%d after %d", id, first)
	}
}
