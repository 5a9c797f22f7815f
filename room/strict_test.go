package room_test

import (
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

var strictWant = want{codes.Unavailable, "unavailable", []string{"strict_retract", "hold (1s)", "layout version 1"}}

// strict makes a tag strict, with more IDs held than a test can issue while etcd is away.
func strict(s *record.TagSettings) { s.StrictRetract, s.MinStep = true, 1_000_000 }

// TestStrictRetract cuts an instance off from etcd and takes residues from its room
// meanwhile. Its strict tag stops within hold of the change. The other tag goes on with
// its IDs. Both adopt the layout when etcd is back.
func TestStrictRetract(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(strict, "strict")
		c.tag(nil, "plain")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Hold = time.Second })
		issuedOf := map[string]*issued{"strict": {TB: t, room: "a", tag: "strict"},
			"plain": {TB: t, room: "a", tag: "plain"}}
		for tag, mine := range issuedOf {
			for range 10 {
				mine.addID(a.mustNext(tag))
			}
		}
		if r := c.registered("a", "a1"); r == nil || r.Hold.Duration() != time.Second {
			t.Errorf("registered as %+v", r)
		}
		a.store.cut.Store(true)
		c.Change(layout(1000, map[allocator.Room]allocator.Range{"a": {Upper: 5}, "b": {Lower: 500, Upper: 1000}}),
			"test")
		changed := time.Now()

		var refusal error
		for refusal == nil {
			start := time.Now()
			id, err := a.next("strict")
			if err == nil {
				mine := issuedOf["strict"]
				if mine.addID(id); start.Sub(changed) > time.Second {
					t.Fatalf("%d was issued %v after the change", id, start.Sub(changed))
				}
				continue
			}
			refusal = err
		}
		if problem := strictWant.check(refusal); problem != "" {
			t.Errorf("strict: %s", problem)
		}
		lost := false // an ID of a residue that the room lost: unique, and allowed here
		for range 20 {
			id := a.mustNext("plain")
			issuedOf["plain"].addID(id)
			lost = lost || id%1000 >= 5
		}
		if !lost {
			t.Error("the plain tag issued no ID of a lost residue: the test shows nothing")
		}
		if _, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: "strict", Count: 5}); strictWant.check(err) != "" {
			t.Errorf("lease of a strict tag: %v", err)
		}
		if _, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "strict", Count: 5}); strictWant.check(err) != "" {
			t.Errorf("batch of a strict tag: %v", err)
		}

		a.store.cut.Store(false)
		a.await("the strict tag issues again", func() bool {
			id, err := a.next("strict")
			if err != nil {
				return false
			}
			if id%1000 >= 5 {
				t.Errorf("strict issued %d, whose residue the room lost", id)
			}
			issuedOf["strict"].addID(id)
			return true
		})
		a.await("the layout is served", func() bool { return c.registered("a", "a1").Version == 2 })
		for range 5 {
			id := a.mustNext("plain")
			if issuedOf["plain"].addID(id); id%1000 >= 5 {
				t.Errorf("plain issued %d after the report", id)
			}
		}
		c.verify(issuedOf["strict"], issuedOf["plain"])
	})
}

// TestStrictReady: an instance without etcd is not ready if it holds only IDs that it may
// no longer issue, however many.
func TestStrictReady(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(strict, "strict")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Hold = time.Second })
		a.mustNext("strict")
		if r := a.chain("strict"); r.GetReserve().AsDuration() <= 0 || r.GetReserve().AsDuration() > time.Second {
			t.Errorf("%d IDs last %v; want no longer than hold", r.GetHeld(), r.GetReserve().AsDuration())
		}
		a.store.cut.Store(true)
		a.await("it issues nothing", func() bool {
			_, err := a.next("strict")
			return err != nil
		})
		if r := a.chain("strict"); r.GetHeld() == 0 {
			t.Fatalf("it holds nothing, so the test shows nothing: %v", r)
		} else if r.GetReserve().AsDuration() != 0 {
			t.Errorf("IDs that may not be issued last %v", r.GetReserve().AsDuration())
		}
		a.await("it is not ready", func() bool {
			return contains(a.request("GET /readyz"), "503 ",
				"[-]counters failed: it may not issue what it holds, as strict_retract is set and hold (1s) has "+
					"passed, and etcd has not answered since ")
		})
		a.await("its health", func() bool { return a.health("") == healthpb.HealthCheckResponse_NOT_SERVING })
		a.store.cut.Store(false)
		a.await("it is ready", func() bool { return a.request("GET /readyz") == "200 ok\n" })
	})
}

// TestStrictUnderLoad changes the layout all the while. No caller of a strict tag notices,
// and a tag that is no longer strict has no gate.
func TestStrictUnderLoad(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(strict, "strict")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Hold = 2 * time.Second })
		mine := make([]*issued, 4)
		done := make(chan struct{})
		var callers sync.WaitGroup
		for k := range mine {
			mine[k] = &issued{TB: t, room: "a", tag: "strict"}
			callers.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						mine[k].addID(a.mustNext("strict"))
					}
				}
			})
		}
		for k := range 10 {
			version := c.Change(layout(1000, map[allocator.Room]allocator.Range{"a": {Lower: int64(k),
				Upper: int64(500 - k)}, "b": {Lower: 500, Upper: 1000}}), "test")
			a.await("the layout is served", func() bool { return c.registered("a", "a1").Version == version })
		}
		for _, set := range []bool{false, true} {
			c.update("strict", func(s *record.TagSettings) { s.StrictRetract = set })
		}
		close(done)
		callers.Wait()
		c.verify(mine...)
	})
}

// TestLeaseTimeToLive: a lease says for how long a client may use its segment.
func TestLeaseTimeToLive(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(strict, "strict")
		c.tag(nil, "plain")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Hold = 3 * time.Second })
		all := c.start("a", "a2", func(cfg *room.Config) { cfg.Hold, cfg.StrictRetract = 3*time.Second, true })
		for tag, i := range map[string]*instance{"strict": a, "plain": all} {
			r, err := i.Lease(bg, &marchv1.LeaseRequest{Tag: tag, Count: 5})
			if ttl := r.GetTtl().AsDuration(); err != nil || ttl <= 0 || ttl > 3*time.Second {
				t.Errorf("%s: %v, %v; want up to the hold", tag, ttl, err)
			}
		}
		r, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: "plain", Count: 5})
		if ttl := r.GetTtl().AsDuration(); err != nil || ttl != 3*time.Second {
			t.Errorf("%v, %v; want the hold", ttl, err)
		}
	})
}

// TestStrictStays keeps the range of a strict tag's room while the layout changes for other
// rooms, for longer than hold. The tag issues its IDs all the while and leases nothing. It
// stops within hold of the layout that takes a residue from its room.
func TestStrictStays(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) {
			strict(s)
			s.Reserve = "10s" // the first segment is enough at any measured rate
		}, "strict")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Hold = time.Second })
		mine := &issued{TB: t, room: "a", tag: "strict"}
		// it is filled ahead by then
		for start := time.Now(); time.Since(start) < time.Second; time.Sleep(time.Millisecond) {
			mine.addID(a.mustNext("strict"))
		}
		refills := a.chain("strict").GetRefills()
		for k := range 3 {
			version := c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Upper: 50},
				"b": {Lower: 51 + int64(k), Upper: 100}}), "test")
			a.await("the layout is served", func() bool { return c.registered("a", "a1").Version == version })
			for start := time.Now(); time.Since(start) < 600*time.Millisecond; time.Sleep(time.Millisecond) {
				mine.addID(a.mustNext("strict"))
			}
		}
		if r := a.chain("strict"); r.GetRefills() != refills || r.GetDropped() != 0 || r.GetVersion() != 1 {
			t.Errorf("the room lost nothing: %v; %d refills before", r, refills)
		}
		a.store.cut.Store(true)
		c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Upper: 49}, "b": {Lower: 53, Upper: 100}}),
			"test")
		changed := time.Now()
		for {
			start := time.Now()
			id, err := a.next("strict")
			if err != nil {
				if problem := strictWant.check(err); problem != "" {
					t.Error(problem)
				}
				break
			}
			if mine.addID(id); start.Sub(changed) > time.Second {
				t.Fatalf("%d was issued %v after the change", id, start.Sub(changed))
			}
		}
		a.store.cut.Store(false)
		a.await("it issues again", func() bool {
			id, err := a.next("strict")
			if err == nil {
				if mine.addID(id); id%100 >= 49 {
					t.Errorf("%d, of a residue that the room lost", id)
				}
			}
			return err == nil
		})
		c.verify(mine)
	})
}
