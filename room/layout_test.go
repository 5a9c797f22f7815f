package room_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestLayoutChanges changes the layout again and again under load. No call fails, and
// every ID is in its room's range under some layout. Once an instance has reported a
// version, its answers to later calls have only IDs in the room's range under that
// version or a later one.
func TestLayoutChanges(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		tags := []allocator.Tag{"order", "user", "item"}
		c.tag(nil, tags...)
		instances := []*instance{c.start("a", "a1", nil), c.start("a", "a2", nil), c.start("b", "b1", nil)}
		ranges := func(al, au, bl, bu int64) map[allocator.Room]allocator.Range {
			return map[allocator.Room]allocator.Range{"a": {Lower: al, Upper: au}, "b": {Lower: bl, Upper: bu}}
		}
		layouts := []allocator.Layout{
			1: testcluster.Halves(),
			2: layout(100, ranges(10, 40, 60, 90)),           // shrunk
			3: layout(100, ranges(60, 90, 10, 40)),           // swapped
			4: layout(1000, ranges(0, 400, 500, 1000)),       // another boundary
			5: layout(64, ranges(63, 64, 0, 1)),              // and another, one residue each
			6: layout(100, ranges(0, 50, 50, 100)),           // and back
			7: layout(100, ranges(50, 100, 0, 50)),           // swapped
			8: layout(1<<40, ranges(0, 1<<30, 1<<30, 1<<40)), // wider than any step
		}
		reported := make([]atomic.Int64, len(instances)) // the version that each was seen to report
		done := make(chan struct{})
		var all []*issued
		var work sync.WaitGroup
		var calls atomic.Int64
		for n, i := range instances {
			for _, tag := range tags {
				mine := &issued{TB: t, room: i.In, tag: tag}
				all = append(all, mine)
				work.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
						}
						version := reported[n].Load()
						r, err := i.NextBatch(bg, batchRequest(string(tag), 1+calls.Add(1)%30))
						if err != nil {
							t.Errorf("instance %s of room %s, tag %s, version %d: %v", i.Instance, i.In, tag, version,
								err)
							return
						}
						mine.add(r.GetRuns()...)
						for _, run := range r.GetRuns() {
							for id := run.GetFirst(); id < run.GetFirst()+run.GetCount(); id++ {
								if !ofSome(layouts[max(version, 1):], i.In, id) {
									t.Errorf("instance %s of room %s: %d of tag %s after it had reported version %d",
										i.Instance, i.In, id, tag, version)
									return
								}
							}
						}
					}
				})
			}
		}
		for version := 2; version < len(layouts) && !t.Failed(); version++ {
			if got := c.Change(layouts[version], "test"); got != int64(version) {
				t.Fatalf("changed to version %d, want %d", got, version)
			}
			for n, i := range instances {
				i.await(fmt.Sprintf("room %s %s reports version %d", i.In, i.Instance, version), func() bool {
					return c.registered(i.In, i.Instance).Version >= int64(version)
				})
				reported[n].Store(int64(version))
			}
			for at := calls.Load() + 200; calls.Load() < at && !t.Failed(); {
				time.Sleep(time.Millisecond)
			}
		}
		close(done)
		work.Wait()
		c.verify(all...)
	})
}

// ofSome reports whether an ID is of a room's range in any of layouts.
func ofSome(layouts []allocator.Layout, in allocator.Room, id int64) bool {
	for _, l := range layouts {
		if r, ok := l.Ranges[in]; ok && r.Contains(l.Residue(id)) {
			return true
		}
	}
	return false
}

// TestIdleChainsMove changes the layout while there are no calls. Chains still replace
// their IDs, and the instance reports the layout.
func TestIdleChainsMove(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		var tags []allocator.Tag
		for k := range 600 { // more than are renewed at once
			tags = append(tags, allocator.Tag(fmt.Sprintf("tag-%d", k)))
		}
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.CreateTags = true })
		for _, tag := range tags {
			a.mustNext(string(tag))
		}
		version := c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 50, Upper: 100},
			"b": {Lower: 0, Upper: 50}}), "test")
		a.await("a1 reports", func() bool { return c.registered("a", "a1").Version == version })
		for _, tag := range tags {
			if id := a.mustNext(string(tag)); id%100 < 50 {
				t.Fatalf("tag %s: got %d of the old range", tag, id)
			}
		}
		if chain := a.chain("tag-1"); chain.GetVersion() != version || chain.GetDropped() == 0 {
			t.Errorf("chain: %v", chain)
		}
		c.verify()
	})
}

// TestColdTagsMove changes the layout while there are no calls, once for another room and
// once for this one. The instance leases nothing ahead, and the next caller waits for one
// transaction.
func TestColdTagsMove(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		var tags []allocator.Tag
		for k := range 50 {
			tags = append(tags, allocator.Tag(fmt.Sprintf("tag-%d", k)))
		}
		c.tag(nil, tags...)
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.ColdAfter = 0 })
		b := c.start("b", "b1", nil)
		all := make([]*issued, len(tags))
		for k, tag := range tags {
			all[k] = &issued{TB: t, room: "a", tag: tag}
			all[k].add(&marchv1.Run{First: a.mustNext(string(tag)), Count: 1})
			b.mustNext(string(tag))
		}
		writes := a.store.writes.Load()
		for _, to := range []map[allocator.Room]allocator.Range{
			{"a": {Lower: 0, Upper: 50}, "b": {Lower: 60, Upper: 100}},
			{"a": {Lower: 0, Upper: 25}, "b": {Lower: 60, Upper: 100}},
		} {
			version := c.Change(layout(100, to), "test")
			a.await("a1 reports", func() bool { return c.registered("a", "a1").Version == version })
		}
		if n := a.store.writes.Load() - writes; n >= int64(len(tags)) {
			t.Errorf("%d transactions that write without a call", n)
		}
		for k, tag := range tags {
			var first atomic.Pointer[store.Txn] // of the transactions on this tag
			a.store.onTxn(func(txn store.Txn) {
				if slices.ContainsFunc(txn.If, func(c store.Cond) bool {
					return strings.HasSuffix(c.Key, "/"+string(tag))
				}) ||
					slices.ContainsFunc(txn.Then, func(op store.Op) bool {
						return op.Get != nil && strings.HasSuffix(op.Get.Key, "/"+string(tag))
					}) {
					first.CompareAndSwap(nil, &txn)
				}
			})
			id := a.mustNext(string(tag))
			a.store.onTxn(nil)
			// Leases compare the registration: the first lease may come while the answer to the
			// report is on its way. A lease ahead of the next caller may follow at once.
			leased := first.Load() != nil && slices.ContainsFunc(first.Load().Then, func(op store.Op) bool {
				return op.Put != nil
			})
			if !leased && k > 0 || id%100 >= 25 {
				t.Errorf("tag %s: got %d after %+v, want a lease first", tag, id, first.Load())
			}
			all[k].add(&marchv1.Run{First: id, Count: 1})
		}
		c.verify(all...)
	})
}

// TestColdTagsMoveBounded changes the layout while etcd hangs on reads of tags. The
// instance sends a bounded number of reads at a time. Refills that are due read tags as
// well, and have a bound of their own.
func TestColdTagsMoveBounded(t *testing.T) {
	t.Parallel()
	const tags, bound = 200, 64
	refills := int64(allocator.DefaultRefillerConfig(nil, nil).Concurrency)
	c := newCluster(t, testcluster.Halves())
	a := c.start("a", "a1", func(cfg *room.Config) { cfg.ColdAfter, cfg.CreateTags = 0, true })
	var work sync.WaitGroup
	for k := range tags {
		work.Go(func() { a.coldNext(fmt.Sprintf("tag-%d", k)) })
	}
	work.Wait()
	var now, most, seen atomic.Int64
	release := make(chan struct{})
	a.store.onTxn(func(txn store.Txn) {
		if !slices.ContainsFunc(txn.Then, func(op store.Op) bool {
			return op.Get != nil && strings.HasPrefix(op.Get.Key, "/march/default/tags/tag-")
		}) {
			return
		}
		seen.Add(1)
		n := now.Add(1)
		defer now.Add(-1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		<-release
	})
	version := c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 25},
		"b": {Lower: 50, Upper: 100}}), "test")
	a.await("as many reads as may be", func() bool { return now.Load() >= bound })
	time.Sleep(500 * time.Millisecond) // 50 more are due
	close(release)
	a.await("a1 reports", func() bool { return c.registered("a", "a1").Version == version })
	a.store.onTxn(nil)
	if n := most.Load(); n > bound+refills || seen.Load() < tags {
		t.Errorf("%d of %d reads at once, want %d to %d of %d or more", n, seen.Load(), bound, bound+refills, tags)
	}
	c.verify()
}

// TestNoRange starts an instance of a room without a range, and takes the range of
// another room away. Both stay up, say so, and issue once they get a range.
func TestNoRange(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, layout(100, map[allocator.Room]allocator.Range{"b": {Lower: 50, Upper: 100}}))
		c.tag(nil, "order")
		a := c.launch("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order"} })
		b := c.start("b", "b1", nil)
		none := func(i *instance, version string) {
			t.Helper()
			i.await("no_range", func() bool {
				_, err := i.next("order")
				return want{codes.Unavailable, "no_range",
					[]string{"room " + string(i.In), "layout version " + version}}.check(err) == ""
			})
			i.await("not ready", func() bool {
				code, body := i.get("/readyz")
				return code == http.StatusServiceUnavailable && contains(body, "no range in layout version "+version)
			})
			i.await("not serving", func() bool { return i.health("") == healthpb.HealthCheckResponse_NOT_SERVING })
			if code, _ := i.get("/livez"); code != http.StatusOK {
				t.Errorf("livez: %d", code)
			}
		}
		none(a, "1")
		b.mustNext("order")

		c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 50, Upper: 100}}), "test")
		b.await("b1 reports version 2", func() bool { return c.registered("b", "b1").Version == 2 })
		none(b, "2")
		a.await("a issues", func() bool { id, err := a.next("order"); return err == nil && id%100 >= 50 })
		a.await("a is ready", func() bool { code, _ := a.get("/readyz"); return code == http.StatusOK })
		a.await("a is serving", func() bool { return a.health("") == healthpb.HealthCheckResponse_SERVING })

		c.Change(testcluster.Halves(), "test")
		b.await("b issues again", func() bool { id, err := b.next("order"); return err == nil && id%100 >= 50 })
		a.await("a has moved", func() bool { id, err := a.next("order"); return err == nil && id%100 < 50 })
		c.verify()
	})
}

// TestReportsVersionOfStart changes the layout between an instance's registration and
// its first check of the layout that it serves.
func TestReportsVersionOfStart(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		for range 5 {
			c := newCluster(t, testcluster.Halves())
			var once sync.Once
			a := c.launch("a", "a1", nil)
			a.store.onTxn(func(txn store.Txn) {
				for _, op := range txn.Then {
					if op.Put != nil && op.Put.Key == "/march/default/rooms/a/a1" {
						once.Do(func() {
							c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 50, Upper: 100}}),
								"test")
						})
					}
				}
			})
			a.await("a1 reports version 2", func() bool {
				from, err := c.Admin.Ledger.Refresh(bg)
				if err != nil {
					t.Fatal(err)
				}
				r := c.registered("a", "a1")
				return r != nil && r.Version == from.Layout.Version
			})
			// One that is stopped as it starts says that it could not start.
			a.await("ready", func() bool { code, _ := a.get("/readyz"); return code == http.StatusOK })
			a.Cancel()
			if err := a.Wait(); err != nil {
				t.Error(err)
			}
		}
	})
}
