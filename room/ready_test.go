package room_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/room"
)

// An etcd that is full answers reads, and no lease is made. The instance says so, is
// ready while it has IDs, is not when they have run out, and does not change its mind
// in between.
func TestReadyWithoutSpace(t *testing.T) {
	t.Parallel()
	c := newCluster(t, halves())
	c.tag(nil, "order", "idle")
	a := c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order", "idle"} })
	a.mustNext("order")
	c.etcd.NoSpace(t, true)
	held := a.chain("order").GetHeld()
	for range held {
		a.mustNext("order")
	}
	if _, err := a.next("order"); err == nil {
		t.Fatal("a full etcd took a lease")
	}
	a.await("not ready", func() bool {
		code, body := a.get("/readyz")
		return code == http.StatusServiceUnavailable && contains(body, "ready-reserve", "database space exceeded", "alarm disarm")
	})
	for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(20 * time.Millisecond) {
		if code, body := a.get("/readyz"); code != http.StatusServiceUnavailable {
			t.Fatalf("it changed its mind: %d %s", code, body)
		}
	}
	// A tag that no caller asked for has IDs, and they can still be had.
	a.mustNext("idle")
	a.await("ready by another tag", func() bool {
		code, body := a.get("/readyz?verbose")
		return code == http.StatusOK && contains(body, "only those that are held", "database space exceeded")
	})
	c.etcd.NoSpace(t, false)
	a.await("leases", func() bool { _, err := a.next("order"); return err == nil })
	a.await("ready", func() bool {
		code, body := a.get("/readyz?verbose")
		return code == http.StatusOK && contains(body, "takes writes")
	})
}

// With a ready-reserve an instance leaves before its IDs run out.
func TestReadyReserve(t *testing.T) {
	t.Parallel()
	c := newCluster(t, halves())
	c.tag(nil, "order")
	a := c.start("a", "a1", func(cfg *room.Config) { cfg.ReadyReserve = allocator.LongestReserve })
	a.mustNext("order")
	if code, body := a.get("/readyz"); code != http.StatusOK {
		t.Errorf("while leases go well: %d %s", code, body)
	}
	c.etcd.NoSpace(t, true)
	a.await("not ready", func() bool {
		code, body := a.get("/readyz")
		return code == http.StatusServiceUnavailable && contains(body, "ready-reserve (168h0m0s)")
	})
	a.mustNext("order")
}
