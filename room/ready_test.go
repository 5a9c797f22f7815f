package room_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// A full etcd answers reads, but an instance cannot lease. The instance says so. It is
// ready while it has IDs, not ready once they have run out, and does not switch back and
// forth in between.
func TestReadyWithoutSpace(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "idle")
	a := c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order", "idle"} })
	a.mustNext("order")
	c.Etcd.NoSpace(t, true)
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
			t.Fatalf("the instance switched back: %d %s", code, body)
		}
	}
	// The instance has IDs of a tag that no caller asked for, and still issues them.
	a.mustNext("idle")
	a.await("ready by another tag", func() bool {
		code, body := a.get("/readyz?verbose")
		return code == http.StatusOK && contains(body, "only those that are held", "database space exceeded")
	})
	c.Etcd.NoSpace(t, false)
	a.await("leases", func() bool { _, err := a.next("order"); return err == nil })
	a.await("ready", func() bool {
		code, body := a.get("/readyz?verbose")
		return code == http.StatusOK && contains(body, "takes writes")
	})
}

// Leases can fail although etcd answers: the answers are another cluster's, or etcd wants
// a user and password that the instance was not given. The instance says so. It is ready
// while it has IDs, not ready once they have run out, and ready again after the repair.
func TestReadyWhereEtcdRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		breaks func(c *cluster) (mend func())
		says   []string
	}{
		"another cluster": {func(c *cluster) func() {
			backup, data := c.Etcd.Backup(c), c.Etcd.CopyData(c)
			c.Etcd.Restore(c, backup, 0, "another")
			return func() { c.Etcd.PutBack(c, data, false) }
		}, []string{"answered, but cluster", "--etcd"}},
		"no credentials": {func(c *cluster) func() { return c.Etcd.RequireCredentials(c) },
			[]string{"--etcd-user", "--etcd-password-file"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, testcluster.Halves())
			c.tag(nil, "order")
			a := c.start("a", "a1", nil)
			a.mustNext("order")
			mend := test.breaks(c)
			a.await("the last ID that it holds", func() bool { _, err := a.next("order"); return err != nil })
			a.await("not ready", func() bool {
				code, body := a.get("/readyz")
				return code == http.StatusServiceUnavailable && contains(body, test.says...)
			})
			mend()
			a.await("leases", func() bool { _, err := a.next("order"); return err == nil })
			a.await("ready", func() bool { code, _ := a.get("/readyz"); return code == http.StatusOK })
		})
	}
}

// With a ready-reserve an instance becomes not ready before its IDs run out.
func TestReadyReserve(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order")
	a := c.start("a", "a1", func(cfg *room.Config) { cfg.ReadyReserve = allocator.LongestReserve })
	a.mustNext("order")
	if code, body := a.get("/readyz"); code != http.StatusOK {
		t.Errorf("while leases go well: %d %s", code, body)
	}
	c.Etcd.NoSpace(t, true)
	a.await("not ready", func() bool {
		code, body := a.get("/readyz")
		return code == http.StatusServiceUnavailable && contains(body, "ready-reserve (168h0m0s)")
	})
	a.mustNext("order")
}
