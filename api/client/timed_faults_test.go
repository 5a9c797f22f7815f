package client_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/internal/testcluster"
)

// Each fault of a lease, once and twice in a row: no call fails, and no ID comes
// twice. A window of which the answer was lost is not used.
func timedFaults(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	a := c.room("a", "a1")
	o := newOracle(t, cosid)
	var all sync.WaitGroup
	for name, f := range faults {
		all.Go(func() {
			front := newFront(t, a)
			tag := tagOf(t, newClient(t, client.Options{Addresses: []string{front.address}}), "event")
			stop := o.drain(name, tag)
			for _, times := range []int{1, 2} { // more, and the pauses grow
				o.more(300)
				front.fault(nil, slices.Repeat([]fault{f}, times)...)
				testcluster.Await(t, "the faults", func() bool {
					front.mu.Lock()
					defer front.mu.Unlock()
					return len(front.mu.next) == 0
				})
			}
			front.mu.Lock()
			before := front.mu.windows
			front.mu.Unlock()
			testcluster.Await(t, "another window", func() bool {
				front.mu.Lock()
				defer front.mu.Unlock()
				return front.mu.windows > before
			})
			o.more(300)
			if n, err := stop(); n > 0 {
				t.Errorf("%s: %d calls failed: %v", name, n, err)
			}
		})
	}
	all.Wait()
}

// A layout that takes a client's worker out of the room's slice has the client take
// another one at its next renewal. No call fails, and no ID comes twice.
func timedAfterMoves(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	o := newOracle(t, cosid)
	var stops []func() (int, error)
	tags := make(map[string]*client.Tag)
	for by, in := range map[string]*instance{"client of a": c.room("a", "a1"), "client of b": c.room("b", "b1")} {
		tags[by] = tagOf(t, newClient(t, client.Options{Addresses: []string{in.address}}), "event")
		stops = append(stops, o.drain(by, tags[by]))
	}
	// a's range moves away from all that it had, to [90, 100).
	for _, to := range []allocator.Layout{layout(100, 0, 50, 50, 90), layout(100, 90, 100, 50, 90),
		layout(100, 90, 100, 0, 50)} {
		o.more(200)
		c.Change(to, "test")
		for by, tag := range tags {
			part := to.Ranges[map[string]allocator.Room{"client of a": "a", "client of b": "b"}[by]]
			slice := timeid.Slice(part, 100, 10)
			testcluster.Await(t, by+" has a worker of the new slice", func() bool {
				return slice.Contains(o.one(by, mustNext(t, tag)))
			})
		}
	}
	for _, stop := range stops {
		if n, err := stop(); n > 0 {
			t.Errorf("%d calls failed: %v", n, err)
		}
	}
}

// Instances that stop and start under load: the client goes on with its window, then with
// a worker of another instance.
func timedOverRestarts(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	a1, a2 := c.room("a", "a1"), c.room("a", "a2")
	o := newOracle(t, cosid)
	tag := tagOf(t, newClient(t, client.Options{Addresses: []string{a1.address, a2.address}}), "event")
	stop := o.drain("client", tag)
	for _, in := range []*instance{a1, a2, a1} {
		o.more(300)
		in.end()
		o.more(300)
		in.start()
	}
	if n, err := stop(); n > 0 {
		t.Errorf("%d calls failed: %v", n, err)
	}
}

// Of two clients that have the same worker, as a process and its clone have, one gets
// another worker when both have asked for more.
func timedClone(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	a := c.room("a", "a1")
	workers := make(map[int64]bool)
	first, clone := newClient(t, client.Options{Addresses: []string{a.address}}),
		newClient(t, client.Options{Addresses: []string{a.address}})
	one, two := tagOf(t, first, "event"), tagOf(t, clone, "event")
	client.Clone(first, clone)
	o := newOracle(t, cosid)
	testcluster.Await(t, "two workers", func() bool {
		// The IDs until then are issued twice: a clone within a window is not found out.
		w1, w2 := newOracle(t, cosid).one("", mustNext(t, one)), newOracle(t, cosid).one("", mustNext(t, two))
		clear(workers)
		workers[w1], workers[w2] = true, true
		return len(workers) == 2
	})
	for range 1000 {
		o.one("first", mustNext(t, one))
		o.one("clone", mustNext(t, two))
	}
}

// A tag that is deleted is not found, and a counter that reuses its name is one.
func timedTagDeleted(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	a := c.Room("a", "a1", nil)
	ids := newClient(t, client.Options{Addresses: []string{a.Address}})
	tag := tagOf(t, ids, "event")
	mustNext(t, tag)
	if err := c.Admin.DeleteTag(t.Context(), "event", "test"); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "not found", func() bool {
		_, err := tag.Next(t.Context())
		return err != nil && allocator.KindOf(err) == allocator.NotFound
	})
	if _, _, err := c.Admin.ReuseTag(t.Context(), "event", record.DefaultTag(), "test"); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "a counter's ID", func() bool {
		id, err := tag.Next(t.Context())
		return err == nil && id < 1000
	})
}

// A tag that is unused is dropped, and its next generator begins above the last one.
func timedTagDropped(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	ids := newClient(t, client.Options{Addresses: []string{c.room("a", "a1").address}})
	last := int64(0)
	for range 10 {
		for range 100 {
			id, err := ids.Next(t.Context(), "event")
			if err != nil || id <= last {
				t.Fatalf("%d after %d, %v", id, last, err)
			}
			last = id
		}
		testcluster.Await(t, "the tag dropped", func() bool { ids.DropUnused(time.Nanosecond); return ids.Tags() == 0 })
	}
}

// Close ends what is under way, and is final.
func timedClose(t *testing.T, c *cluster) {
	c.timed(cosid, timeid.Wait, "event")
	ids := newClient(t, client.Options{Addresses: []string{c.room("a", "a1").address}})
	tag := tagOf(t, ids, "event")
	o := newOracle(t, cosid)
	stop := o.drain("client", tag)
	o.more(500)
	ids.Close()
	if _, err := stop(); err != nil && !errors.Is(err, error(client.ErrClosed)) {
		t.Error(err)
	}
	if _, err := tag.Next(t.Context()); !errors.Is(err, error(client.ErrClosed)) {
		t.Error(err)
	}
}
