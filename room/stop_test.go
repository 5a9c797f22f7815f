package room_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

func leaseRequest(tag string, n int64) *marchv1.LeaseRequest {
	return &marchv1.LeaseRequest{Tag: tag, Count: n}
}

func batchRequest(tag string, n int64) *marchv1.NextBatchRequest {
	return &marchv1.NextBatchRequest{Tag: tag, Count: n}
}

// TestGracefulStop stops an instance with calls under way. It answers these, takes no new
// ones, and leaves nothing behind.
func TestGracefulStop(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "slow")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Drain = 10 * time.Second })
		mine := &issued{TB: t, room: "a", tag: "order"}
		mine.addID(a.mustNext("order"))

		release, waiting := make(chan struct{}), make(chan struct{})
		var once, gone sync.Once
		var after []store.Txn // the transactions after the registration was deleted
		var mu sync.Mutex
		var left bool
		a.store.onTxn(func(txn store.Txn) {
			for _, op := range txn.Then {
				if op.Put != nil && op.Put.Key == "/march/default/marks/a/slow" {
					once.Do(func() { close(waiting) })
					<-release
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if left {
				after = append(after, txn)
			}
			if len(txn.Then) > 0 && txn.Then[0].Delete != "" {
				gone.Do(func() { left = true })
			}
		})
		slow := make(chan error, 20)
		for range cap(slow) {
			go func() { _, err := a.next("slow"); slow <- err }()
		}
		<-waiting
		a.await("all calls are under way", func() bool { return a.chain("slow").GetWaits() == int64(cap(slow)) })
		a.Cancel()
		a.await("new calls are refused", func() bool {
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			conn := testcluster.Dial(t, a.Address)
			defer conn.Close()
			_, err := marchv1.NewIDServiceClient(conn).Next(ctx, &marchv1.NextRequest{Tag: "order"})
			return status.Code(err) == codes.Unavailable
		})
		if c.registered("a", "a1") == nil {
			t.Error("the registration is gone while calls are under way")
		}
		close(release)
		for range cap(slow) {
			if err := <-slow; err != nil {
				t.Errorf("a call under way: %v", err)
			}
		}
		start := time.Now()
		if err := a.Wait(); err != nil {
			t.Error(err)
		}
		took(t, "the stop after the last call", start, time.Second)
		if r := c.registered("a", "a1"); r != nil {
			t.Errorf("the registration is still there: %v", r)
		}
		if len(after) > 0 {
			t.Errorf("sent after the registration was deleted: %+v", after)
		}
		c.verify(mine)
	})
}

// TestStopEndsStreams stops an instance with open streams. An idle stream ends at once. A
// stream with a pipeline gets all its answers in order.
func TestStopEndsStreams(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Drain = 30 * time.Second })
		mine := &issued{TB: t, room: "a", tag: "order"}
		idle, err := a.Stream(bg)
		if err != nil {
			t.Fatal(err)
		}
		fresh, err := a.Stream(bg) // never had a request
		if err != nil {
			t.Fatal(err)
		}
		busy, err := a.Stream(bg)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(s marchv1.IDService_StreamClient) (int64, error) {
			_ = s.Send(&marchv1.NextRequest{Tag: "order"})
			r, err := s.Recv()
			return r.GetId(), err
		}
		for _, s := range []marchv1.IDService_StreamClient{idle, busy} {
			id, err := ask(s)
			if err != nil {
				t.Fatal(err)
			}
			mine.addID(id)
		}
		var work sync.WaitGroup
		work.Go(func() {
			for busy.Send(&marchv1.NextRequest{Tag: "order"}) == nil {
			}
		})
		end := make(chan error, 1)
		work.Go(func() {
			for k := 0; ; k++ {
				r, err := busy.Recv()
				if err != nil {
					end <- err
					return
				}
				mine.addID(r.GetId())
				if k == 100 {
					a.Cancel()
				}
			}
		})
		start := time.Now()
		if err := a.Wait(); err != nil {
			t.Error(err)
		}
		took(t, "the stop with idle streams", start, 2*time.Second)
		w := want{codes.Unavailable, "unavailable", []string{"stopping", "call another"}}
		if problem := w.check(<-end); problem != "" {
			t.Errorf("busy stream: %s", problem)
		}
		for _, s := range []marchv1.IDService_StreamClient{idle, fresh} {
			_, err := s.Recv()
			if problem := w.check(err); problem != "" {
				t.Errorf("idle stream: %s", problem)
			}
		}
		work.Wait()
		c.verify(mine)
	})
}

// TestDrainEnds stops an instance while a call hangs: the end of the drain ends the call.
func TestDrainEnds(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "slow")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Drain = 300 * time.Millisecond })
		hung, waiting := make(chan struct{}), make(chan struct{})
		var once sync.Once
		a.store.onTxn(func(txn store.Txn) {
			for _, op := range txn.Then {
				if op.Put != nil && op.Put.Key == "/march/default/marks/a/slow" {
					once.Do(func() { close(waiting) })
					<-hung
				}
			}
		})
		failed := make(chan error, 1)
		go func() { _, err := a.next("slow"); failed <- err }()
		<-waiting
		start := time.Now()
		a.Cancel()
		if code := status.Code(<-failed); code != codes.Unavailable && code != codes.Canceled {
			t.Errorf("the call that hung: %v", code)
		}
		took(t, "the drain", start, 2*time.Second)
		close(hung)
		if err := a.Wait(); err != nil {
			t.Error(err)
		}
		if c.registered("a", "a1") != nil {
			t.Error("the registration is still there")
		}
	})
}

// TestReplaced starts a second process of the same name: the first stops with an error
// and issues nothing more.
func TestReplaced(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "user")
		first := c.start("a", "a1", nil)
		firsts, seconds := &issued{TB: t, room: "a", tag: "order"}, &issued{TB: t, room: "a", tag: "order"}
		firsts.addID(first.mustNext("order"))
		second := c.start("a", "a1", nil)
		seconds.addID(second.mustNext("order"))

		// The first process can no longer lease IDs of a tag of which it holds none.
		_, err := first.next("user")
		if problem := (want{codes.FailedPrecondition, "refused",
			[]string{"another process registered", second.Address}}).check(err); problem != "" {
			t.Errorf("a lease of the replaced process: %s", problem)
		}
		var stopped time.Time
		var work sync.WaitGroup
		work.Go(func() {
			for {
				id, err := first.next("order")
				if err != nil {
					return
				}
				firsts.addID(id)
			}
		})
		lost := first.Wait()
		stopped = time.Now()
		if allocator.KindOf(lost) != allocator.Refused ||
			!contains(lost.Error(), "another process registered", second.Address) {
			t.Errorf("the first ended with %v", lost)
		}
		work.Wait()
		took(t, "its callers to know", stopped, time.Second)
		if r := c.registered("a", "a1"); r == nil || r.Address != second.Address {
			t.Errorf("registered: %v", r)
		}
		seconds.addID(second.mustNext("order"))
		c.verify(firsts, seconds)
	})
}

// TestForgotten deletes an instance's registration, as an operator does. Before, the
// instance then stopped, and its memory was lost. Now it drops its IDs, registers anew,
// and goes on.
func TestForgotten(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", nil)
		ids := &issued{TB: t, room: "a", tag: "order"}
		first := a.mustNext("order")
		ids.addID(first)
		if err := c.Admin.Forget(bg, "a", "a1", "test"); err != nil {
			t.Fatal(err)
		}
		a.await("registered again", func() bool { return c.registered("a", "a1") != nil })
		next := a.mustNext("order")
		ids.addID(next)
		if next <= first+1 {
			t.Errorf("after ID %d it issued %d of what it held", first, next)
		}
		c.verify(ids)
	})
}
