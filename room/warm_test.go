package room_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

func TestWarmTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "cold")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order", "missing"} })
		if got := a.chain("order"); got.GetHeld() != 1000 || got.GetIssued() != 0 {
			t.Errorf("when it says it is ready: %v, want min_step IDs held", got)
		}
		var leases int
		a.store.onTxn(func(txn store.Txn) {
			for _, op := range txn.Then {
				if op.Get != nil && op.Get.Key == "/march/default/tags/order" ||
					op.Put != nil && op.Put.Key == "/march/default/marks/a/order" {
					leases++
				}
			}
		})
		if got := a.mustNext("order"); got != 1 {
			t.Errorf("first next: got %d, want 1", got)
		}
		a.store.onTxn(nil)
		if leases != 0 {
			t.Errorf("the first next of a warm tag made %d transactions, want 0", leases)
		}
		a.mustNext("cold")
	})
}

// TestColdBurst has a thousand callers ask for a cold tag at once. All get an answer, and
// etcd gets the transactions of one caller.
func TestColdBurst(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", nil)
		var cost atomic.Int64 // transactions on the tag
		a.store.onTxn(func(txn store.Txn) {
			for _, op := range txn.Then {
				if op.Get != nil && op.Get.Key == "/march/default/tags/order" ||
					op.Put != nil && op.Put.Key == "/march/default/marks/a/order" {
					cost.Add(1)
					return
				}
			}
		})
		const callers = 1000
		ids, mine := make([]int64, callers), &issued{TB: t, room: "a", tag: "order"}
		var work sync.WaitGroup
		for k := range callers {
			work.Go(func() { ids[k] = a.coldNext("order") })
		}
		work.Wait()
		for _, id := range ids {
			mine.last = -1
			mine.addID(id)
		}
		if got := cost.Load(); got < 2 || got > 50 { // a read, a lease or two; more if one took too long
			t.Errorf("%d callers cost etcd %d transactions", callers, got)
		}
		c.verify(mine)
	})
}

// TestColdTags has callers ask for many cold tags at once: etcd gets a bounded number of
// transactions at a time.
func TestColdTags(t *testing.T) {
	c := newCluster(t, testcluster.Halves())
	a := c.start("a", "a1", func(cfg *room.Config) { cfg.CreateTags = true })
	var now, most atomic.Int64
	a.store.onTxn(func(store.Txn) {
		n := now.Add(1)
		defer now.Add(-1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		time.Sleep(time.Millisecond) // etcd's own time
	})
	var work sync.WaitGroup
	for k := range 200 {
		work.Go(func() { a.coldNext(fmt.Sprintf("tag-%d", k)) })
	}
	work.Wait()
	// 64 tags are read at once, each with up to two reads beside each other while it is made. Leases, and the
	// server's own, come on top.
	if got := most.Load(); got > 2*64+16+5 {
		t.Errorf("%d transactions at once", got)
	}
}

// TestManyTags has one room issue a thousand tags: no tag has a goroutine of its own.
func TestManyTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // alone, as it counts all goroutines
		const tags = 1_000
		c := newCluster(t, testcluster.Halves())
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.CreateTags = true })
		a.mustNext("first")
		before := runtime.NumGoroutine()
		var work sync.WaitGroup
		for w := range 32 {
			work.Go(func() {
				for k := w; k < tags; k += 32 {
					a.coldNext(fmt.Sprintf("tag-%d", k))
				}
			})
		}
		work.Wait()
		a.await("goroutines to go", func() bool { return runtime.NumGoroutine() <= before+20 })

		// Every tag is listed once, a page at a time.
		seen, token := 0, ""
		for {
			r, err := marchv1.NewRoomServiceClient(a.Conn).ListChains(bg,
				&marchv1.ListChainsRequest{PageSize: 999, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, chain := range r.GetChains() {
				if chain.GetTag() <= token {
					t.Fatalf("%q is listed after %q", chain.GetTag(), token)
				}
				token = chain.GetTag()
				seen++
			}
			if r.GetNextPageToken() == "" {
				break
			}
			token = r.GetNextPageToken()
		}
		if seen != tags+1 {
			t.Errorf("%d chains are listed, want %d", seen, tags+1)
		}
	})
}

// TestIdleChains drops the chains of tags that were not used for long, and no others.
func TestIdleChains(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.CreateTags, cfg.IdleAfter = true, time.Second })
		for _, tag := range []string{"first", "second", "third"} {
			a.mustNext(tag)
		}
		busy := make(chan struct{})
		var work sync.WaitGroup
		work.Go(func() {
			for {
				select {
				case <-busy:
					return
				case <-time.After(10 * time.Millisecond):
					a.mustNext("first")
				}
			}
		})
		a.await("idle chains to be dropped", func() bool {
			r, err := marchv1.NewRoomServiceClient(a.Conn).ListChains(bg, &marchv1.ListChainsRequest{})
			return err == nil && len(r.GetChains()) == 1
		})
		close(busy)
		work.Wait()
		if got := a.mustNext("second"); got <= 1000 {
			t.Errorf("after the chain was dropped: got %d, want one above what was leased before", got)
		}
	})
}

// TestDeadlines has callers give up while etcd hangs: none waits beyond its deadline.
func TestDeadlines(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "cold")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order"} })
		held := make(chan struct{})
		var release sync.Once
		t.Cleanup(func() { release.Do(func() { close(held) }) })
		a.store.onTxn(func(store.Txn) { <-held }) // etcd hangs
		for tag, count := range map[string]int64{"order": 100_000, "cold": 1} {
			ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
			start := time.Now()
			_, err := a.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: tag, Count: count})
			if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Unavailable {
				t.Errorf("tag %s: got %v", tag, err)
			}
			took(t, "to give up", start, time.Second)
			cancel()
		}
		if got := a.mustNext("order"); got != 1 {
			t.Errorf("the batch that was not answered took IDs: next is %d, want 1", got)
		}
		if code, body := a.get("/readyz"); code != http.StatusOK {
			t.Errorf("readyz: %d %s", code, body)
		}
		a.store.onTxn(nil)
		release.Do(func() { close(held) })
		a.mustNext("cold")
	})
}
