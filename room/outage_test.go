package room_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestEtcdAway stops etcd. An instance goes on with the IDs that it holds. Then it says
// since when and why it issues none, and it issues again soon after etcd is back.
func TestEtcdAway(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "cold")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order"} })
		mine := &issued{TB: t, room: "a", tag: "order"}
		a.mustNext("order")
		if got, want := a.request("GET /readyz?verbose"), "200 [+]serving ok\n[+]layout ok: version 1, "+
			"boundary 100\n[+]counters ok: etcd answers and takes writes\nreadyz check passed\n"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		stopped := time.Now()
		c.Mem.Stop()

		// A tag that was never used, while the instance holds IDs of another.
		start := time.Now()
		_, err := a.next("cold")
		if problem := awayWant.check(err); problem != "" {
			t.Errorf("cold tag: %s", problem)
		}
		checkSince(t, err, "cold", stopped)
		took(t, "the refusal", start, 5*time.Second)

		a.await("it says that etcd is away", func() bool {
			return contains(a.request("GET /readyz?verbose"), "200 ",
				"[+]counters ok: only those that are held: etcd has not answered since ")
		})
		held := a.chain("order").GetHeld()
		for range held {
			if code, body := a.get("/readyz"); len(mine.runs)%250 == 0 && code != http.StatusOK {
				t.Errorf("readyz with IDs held: %d %s", code, body)
			}
			mine.addID(a.mustNext("order"))
		}
		start = time.Now()
		_, err = a.next("order")
		if problem := awayWant.check(err); problem != "" {
			t.Errorf("with nothing held: %s", problem)
		}
		checkSince(t, err, "order", stopped)
		took(t, "the refusal", start, 5*time.Second)
		if got := a.request("POST /v1/tags/order/next"); !contains(got,
			`503 {"code":"UNAVAILABLE","reason":"unavailable"`, `"metadata":{"since":"20`) {
			t.Errorf("over HTTP: %s", got)
		}
		a.await("not ready", func() bool {
			code, body := a.get("/readyz")
			return code == http.StatusServiceUnavailable &&
				contains(body, "[+]serving ok\n[+]layout ok", "connection refused", "readyz check failed",
					"[-]counters failed: it holds no IDs, and etcd has not answered since ")
		})
		a.await("not serving", func() bool { return a.health("") == healthpb.HealthCheckResponse_NOT_SERVING })
		if code, _ := a.get("/livez"); code != http.StatusOK {
			t.Errorf("livez: %d", code)
		}

		// Callers go on asking, each as soon as the last was answered.
		ctx, cancel := context.WithCancel(bg)
		var asking sync.WaitGroup
		for _, tag := range []string{"order", "cold", "order", "cold"} {
			asking.Go(func() {
				for ctx.Err() == nil {
					_, _ = a.Next(ctx, &marchv1.NextRequest{Tag: tag})
				}
			})
		}
		c.Mem.Start()
		start = time.Now()
		for _, tag := range []string{"order", "cold"} {
			a.await(tag+" issues", func() bool { _, err := a.next(tag); return err == nil })
			took(t, "to issue "+tag+" again", start, 2*time.Second)
		}
		cancel()
		asking.Wait()
		a.await("ready", func() bool { code, _ := a.get("/readyz"); return code == http.StatusOK })
		mine.addID(a.mustNext("order"))
		c.verify(mine)
	})
}

var awayWant = want{codes.Unavailable, "unavailable", []string{"since 2", "retry"}}

// checkSince checks the time in the ErrorInfo of err.
func checkSince(t *testing.T, err error, tag string, stopped time.Time) {
	t.Helper()
	_, info := reason(err)
	since, parseErr := time.Parse(time.RFC3339, info.GetMetadata()[api.MetadataSince])
	if parseErr != nil || info.GetMetadata()[api.MetadataTag] != tag {
		t.Errorf("metadata %v of %v", info.GetMetadata(), err)
		return
	}
	if since.Before(stopped.Add(-time.Second)) || since.After(time.Now()) {
		t.Errorf("since %v, but etcd was stopped at %v", since, stopped)
	}
}

// TestStopsWithoutEtcd stops an instance while etcd is away.
func TestStopsWithoutEtcd(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		c.Mem.Stop()
		start := time.Now()
		a.Cancel()
		if err := a.Wait(); err != nil {
			t.Errorf("run: %v", err)
		}
		took(t, "the stop", start, 5*time.Second)
		c.Mem.Start()
		if c.registered("a", "a1") == nil {
			t.Error("the registration is gone, though etcd was away")
		}
		// A new instance of the same name takes the old registration's place.
		again := c.start("a", "a1", nil)
		if got := again.mustNext("order"); got <= 1000 {
			t.Errorf("after a restart: got %d, want one above what was leased before", got)
		}
	})
}

// TestStartsWithoutEtcd starts an instance while etcd is away: it asks again for half a minute, and registers
// if etcd is back by then.
func TestStartsWithoutEtcd(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.Mem.Stop()
		began := time.Now()
		a := c.launch("a", "a1", nil)
		if err := a.Wait(); allocator.KindOf(err) != allocator.Unavailable || time.Since(began) < 30*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := a.next("order"); err == nil {
			t.Error("the instance serves")
		}
		late := c.launch("a", "a2", nil)
		time.Sleep(5 * time.Second)
		c.Mem.Start()
		late.await("ready", func() bool { return late.health("") == healthpb.HealthCheckResponse_SERVING })
	})
}
