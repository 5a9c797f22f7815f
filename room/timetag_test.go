package room_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// timed makes a tag one of time-ordered IDs.
func timed(l timeid.Layout) func(*record.TagSettings) {
	t := record.NewTimeTag(l)
	return func(s *record.TagSettings) { s.Time = &t }
}

var cosid = timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond,
	Epoch: timeid.EpochCosId}

// partsOf decomposes an ID or ends the test.
func partsOf(t *testing.T, l timeid.Layout, id int64) timeid.Parts {
	t.Helper()
	p, err := l.DecomposeBefore(id, time.Now().Add(time.Minute).UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Rooms issue time-ordered IDs of workers of their slices: a of [0, 512), b of
// [512, 1024).
func TestTimeTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event", "other")
		last := cosid
		last.Order = timeid.WorkerLast
		c.tag(timed(last), "last")
		a1, a2, b := c.start("a", "a1", nil), c.start("a", "a2", nil), c.start("b", "b1", nil)

		seen := make(map[int64]bool)
		workers := make(map[int64]*instance)
		for _, i := range []*instance{a1, a2, b} {
			first := int64(-1)
			for range 1000 {
				id := i.mustNext("event")
				if seen[id] || id <= first {
					t.Fatalf("ID %d after %d, seen before: %v", id, first, seen[id])
				}
				seen[id], first = true, id
			}
			p := partsOf(t, cosid, first)
			if inA := p.Worker < 512; inA != (i.In == "a") {
				t.Errorf("room %s issues with worker %d", i.In, p.Worker)
			}
			if workers[p.Worker] != nil {
				t.Errorf("two instances have worker %d", p.Worker)
			}
			workers[p.Worker] = i
			decoded, err := i.Decode(bg, &marchv1.DecodeRequest{Tag: "event", Id: first})
			if d := decoded.GetTime(); err != nil || d.GetRoom() != string(i.In) || d.GetWorker() != p.Worker ||
				d.GetSequence() != p.Sequence || d.GetTime().AsTime().UnixMilli() != p.Time {
				t.Errorf("decoded %v, %v; want %+v of room %s", d, err, p, i.In)
			}
			if other := partsOf(t, cosid, i.mustNext("other")); other.Worker != p.Worker {
				t.Errorf("another tag of the width has worker %d, want %d", other.Worker, p.Worker)
			}
		}

		batch, err := a1.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "last", Count: 10_000})
		if err != nil {
			t.Fatal(err)
		}
		count := int64(0)
		for _, run := range batch.GetRuns() {
			count += run.GetCount()
			if run.GetStride() != 1024 || run.GetFirst()%1024 >= 512 {
				t.Errorf("run %v: want a stride of 1024, and a worker of room a", run)
			}
		}
		if count != 10_000 {
			t.Errorf("%d IDs, want 10,000", count)
		}
		if _, err := a1.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "event", Count: 5_000_000}); allocator.KindOf(
			api.FromStatus(err)) != allocator.Invalid {
			t.Errorf("a batch of 5 million: %v", err)
		}
		if _, err := a1.Lease(bg, &marchv1.LeaseRequest{Tag: "event", Count: 10}); allocator.KindOf(
			api.FromStatus(err)) != allocator.Refused {
			t.Errorf("a lease: %v", err)
		}

		stream, err := b.Stream(bg)
		if err != nil {
			t.Fatal(err)
		}
		for k := range 100 {
			if err := stream.Send(&marchv1.NextRequest{Tag: []string{"event", ""}[min(k, 1)]}); err != nil {
				t.Fatal(err)
			}
			answer, err := stream.Recv()
			if err != nil || seen[answer.GetId()] {
				t.Fatalf("ID %d, %v", answer.GetId(), err)
			}
			seen[answer.GetId()] = true
		}
		_ = stream.CloseSend()

		_, body := a1.get("/metrics")
		for name, least := range map[string]float64{
			"march_time_tags": 3, "march_time_requests_total": 1002, "march_time_issued_ids_total": 11_001,
			"march_worker_window_seconds": 1,
		} {
			found := regexp.MustCompile(`(?m)^` + name + `\{[^}]*\} (\S+)$`).FindStringSubmatch(body)
			if found == nil {
				t.Errorf("no %s", name)
			} else if value, err := strconv.ParseFloat(found[1], 64); err != nil || value < least {
				t.Errorf("%s is %s, want %v or more", name, found[1], least)
			}
		}

		// A tag that is deleted is gone, and IDs of one of the same name are above all before.
		before := a1.mustNext("event")
		if err := c.Admin.DeleteTag(bg, "event", "test"); err != nil {
			t.Fatal(err)
		}
		a1.await("the tag gone", func() bool {
			_, err := a1.next("event")
			return allocator.KindOf(api.FromStatus(err)) == allocator.NotFound
		})
		c.tag(timed(cosid), "event")
		var after int64
		a1.await("the tag back", func() bool { after, err = a1.next("event"); return err == nil })
		if after <= before {
			t.Errorf("ID %d of the new tag, %d of the old one", after, before)
		}
	})
}

// An instance that stops gives its worker back, and the next process with its name goes
// on with that worker at once.
func TestTimeTagAfterRestart(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event")
		var last, number int64
		for k := range 3 {
			i := c.start("a", "a1", func(cfg *room.Config) { cfg.Worker = worker.PinTo(3) })
			id := i.mustNext("event")
			p := partsOf(t, cosid, id)
			if id <= last || k > 0 && p.Worker != number || p.Worker != 3 {
				t.Errorf("ID %d of worker %d after %d of %d; want worker 3", id, p.Worker, last, number)
			}
			last, number = id, p.Worker
			i.Cancel()
			if err := i.Wait(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A layout that takes a worker out of the room's slice has the instance take another
// one before it reports the layout. No call fails, and no ID is issued twice.
func TestTimeTagsMove(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event")
		a, b := c.start("a", "a1", func(cfg *room.Config) { cfg.Worker = worker.Pin{} }), c.start("b", "b1", nil)
		stop := make(chan struct{})
		var group sync.WaitGroup
		ids := make([][]int64, 2)
		for k, i := range []*instance{a, b} {
			i.mustNext("event")
			group.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					id, err := i.next("event")
					if err != nil {
						t.Errorf("room %s: %v", i.In, err)
						return
					}
					ids[k] = append(ids[k], id)
				}
			})
		}
		// a's range moves from [0, 50) to [90, 100), b's from [50, 100) to [0, 90) by way of a
		// gap, as migrations do.
		for _, l := range []allocator.Layout{
			layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 90}}),
			layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 90, Upper: 100}, "b": {Lower: 50, Upper: 90}}),
			layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 90, Upper: 100}, "b": {Lower: 0, Upper: 50}}),
		} {
			version := c.Change(l, "test")
			for _, i := range []*instance{a, b} {
				i.await(fmt.Sprintf("layout %d served by %s", version, i.In), func() bool {
					r := c.registered(i.In, i.Instance)
					return r != nil && r.Version == version
				})
				slice, _ := timeid.SliceOf(l, i.In, 10)
				if p := partsOf(t, cosid, i.mustNext("event")); !slice.Contains(p.Worker) {
					t.Errorf("room %s issues with worker %d after it reported layout %d, where its slice is %v",
						i.In, p.Worker, version, slice)
				}
			}
		}
		close(stop)
		group.Wait()
		for _, mine := range ids {
			if !slices.IsSorted(mine) {
				t.Error("the IDs of an instance do not grow")
			}
		}
		all := slices.Concat(ids...)
		slices.Sort(all)
		if twice := len(all) - len(slices.Compact(all)); twice > 0 || len(all) == 0 {
			t.Errorf("%d of %d IDs were issued twice", twice, len(all))
		}
	})
}

// An instance that finds no free worker issues no time-ordered IDs, and does again without any call once
// a worker is free.
func TestTimeTagsWithoutWorker(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		narrow := timeid.Layout{TimeBits: 41, WorkerBits: 1, SequenceBits: 12, Unit: time.Millisecond,
			Epoch: timeid.EpochCosId}
		c.tag(timed(narrow), "event")
		first := c.start("a", "a1", nil) // it takes the only worker of the slice
		first.mustNext("event")
		second := c.start("a", "a2", nil)
		if _, err := second.next("event"); allocator.KindOf(api.FromStatus(err)) != allocator.Unavailable {
			t.Fatalf("a second instance with one worker: %v", err)
		}
		second.families(true, true, false)
		first.Cancel()
		if err := first.Wait(); err != nil {
			t.Fatal(err)
		}
		second.families(true, true, true)
		second.mustNext("event")
	})
}

// A room that creates tags as they are asked for makes no counter of a deleted tag of
// time-ordered IDs, be it one that it had in memory, or one that was deleted before it began.
// It makes one of a counter that was deleted.
func TestDeletedTimeTagsAreNotMade(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event", "other")
		c.tag(nil, "order")
		creates := func(cfg *room.Config) { cfg.CreateTags = true }
		a := c.start("a", "a1", creates)
		a.mustNext("event")
		a.mustNext("new")
		for _, name := range []allocator.Tag{"other", "order", "event"} { // the instance hears of the last one last
			if err := c.Admin.DeleteTag(bg, name, "test"); err != nil {
				t.Fatal(err)
			}
		}
		gone := func(i *instance, tag string) bool {
			_, err := i.next(tag)
			return allocator.KindOf(api.FromStatus(err)) == allocator.NotFound
		}
		a.await("the tag gone", func() bool { return gone(a, "event") })
		b := c.start("b", "b1", creates)
		for _, i := range []*instance{a, b} {
			if !gone(i, "event") || !gone(i, "other") {
				t.Errorf("room %s made a deleted tag", i.In)
			}
			i.mustNext("order")
		}
		c.tag(timed(cosid), "event")
		a.await("the tag back", func() bool { return !gone(a, "event") })
		if tag, err := c.Admin.Tag(bg, "event"); err != nil || tag.Time == nil {
			t.Errorf("%+v, %v", tag, err)
		}
	})
}

// A room remembers longer than the audit log which tags of time-ordered IDs were deleted: before the upgrade no
// tombstone says so.
func TestDeletedTimeTagsAreRemembered(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := &cluster{Cluster: testcluster.New(t)}
		cfg := admin.DefaultConfig()
		cfg.Formats = 1
		c.Admin = admin.New(c.Ledger(), cfg)
		c.Init(testcluster.Halves(), "test")
		c.tag(timed(cosid), "event")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.CreateTags = true })
		a.mustNext("event")
		if err := c.Admin.DeleteTag(bg, "event", "test"); err != nil {
			t.Fatal(err)
		}
		a.await("gone", func() bool {
			_, err := a.next("event")
			return allocator.KindOf(api.FromStatus(err)) == allocator.NotFound
		})
		for i := range 1000 {
			if _, err := c.Admin.CreateTag(bg, allocator.Tag(fmt.Sprintf("t%d", i)), record.DefaultTag(),
				"test"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(11 * time.Second) // now the memory of unknown tags does not answer
		if id, err := a.next("event"); err == nil {
			t.Errorf("the deleted tag was made a counter: ID %d", id)
		}
	})
}

// A tag that is unused for long goes from memory, and its next caller goes on with the same
// worker above the last ID.
func TestIdleTimeTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event", "busy")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.IdleAfter = time.Second })
		before, issued, body := a.mustNext("event"), 1, ""
		a.await("the idle tag gone", func() bool {
			a.mustNext("busy")
			issued++
			_, body = a.get("/metrics")
			return regexp.MustCompile(`(?m)^march_time_tags\{[^}]*\} 1$`).MatchString(body)
		})
		for _, name := range []string{"march_time_requests_total", "march_time_issued_ids_total"} { // its are not lost
			if !regexp.MustCompile(fmt.Sprintf(`(?m)^%s\{[^}]*\} %d$`, name, issued)).MatchString(body) {
				t.Errorf("%s is not %d:\n%s", name, issued, body)
			}
		}
		after := a.mustNext("event")
		if p, q := partsOf(t, cosid, before), partsOf(t, cosid, after); after <= before || p.Worker != q.Worker {
			t.Errorf("%+v after %+v", q, p)
		}
	})
}

// Readiness and metrics answer while a renewal waits for etcd.
func TestTimeTagsWhileEtcdHangs(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event")
		a := c.start("a", "a1", nil)
		a.mustNext("event")
		hangs, over := make(chan struct{}), make(chan struct{})
		var once sync.Once
		a.store.onTxn(func(txn store.Txn) {
			for _, op := range txn.Then {
				if op.Get != nil && strings.Contains(op.Get.Key, "/windows/") {
					once.Do(func() { close(hangs) })
					<-over
				}
			}
		})
		defer close(over)
		<-hangs // the first window is three seconds long
		for _, path := range []string{"/readyz", "/metrics"} {
			if code, body := a.get(path); code == 0 {
				t.Errorf("%s: %s", path, body)
			}
		}
	})
}
