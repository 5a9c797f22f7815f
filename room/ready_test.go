package room_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// A full etcd answers reads, but an instance cannot lease. The instance says so. It is
// ready while it has IDs, not ready once they have run out, and does not switch back and
// forth in between.
func TestReadyWithoutSpace(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "idle")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order", "idle"} })
		a.mustNext("order")
		c.Mem.NoSpace(true)
		held := a.chain("order").GetHeld()
		for range held {
			a.mustNext("order")
		}
		if _, err := a.next("order"); err == nil {
			t.Fatal("a full etcd took a lease")
		}
		a.await("not ready", func() bool {
			code, body := a.get("/readyz")
			return code == http.StatusServiceUnavailable &&
				contains(body, "ready-reserve", "database space exceeded", "alarm disarm")
		})
		a.saysReady(false)
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
		c.Mem.NoSpace(false)
		a.await("leases", func() bool { _, err := a.next("order"); return err == nil })
		a.await("ready", func() bool {
			code, body := a.get("/readyz?verbose")
			return code == http.StatusOK && contains(body, "takes writes")
		})
		a.saysReady(true)
	})
}

// saysReady checks that the metric and gRPC's health say what /readyz says.
func (i *instance) saysReady(ready bool) {
	i.Helper()
	metric, serving := `march_ready{room="a"} 0`, healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		metric, serving = `march_ready{room="a"} 1`, healthpb.HealthCheckResponse_SERVING
	}
	i.await("the metric and gRPC's health say so", func() bool {
		_, metrics := i.get("/metrics")
		return contains(metrics, metric+"\n") && i.health("march.v1.IDService") == serving
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
			c.tag(nil, "order", "cold")
			c.tag(timed(cosid), "event")
			var door net.Listener
			a := c.start("a", "a1", func(cfg *room.Config) {
				door = testcluster.Listen(c, "")
				cfg.Doors.Redis = door
			})
			a.mustNext("order")
			mend := test.breaks(c)
			var err error
			for err == nil { // until the last ID that it holds is issued
				_, err = a.next("order")
			}
			// Callers cannot mend it. Before, they got UNAUTHENTICATED, with etcd's addresses and March's flags.
			says := map[string]string{"gRPC": err.Error()}
			if code, _ := reason(err); code != codes.Unavailable {
				t.Errorf("a caller hears %v", err)
			}
			answer, err := testcluster.Client().Post("http://"+a.HTTP+"/v1/tags/order/next", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if says["HTTP"] = string(body); err != nil || answer.StatusCode != http.StatusServiceUnavailable ||
				answer.Header.Get("Retry-After") == "" {
				t.Errorf("over HTTP: %d %v %s, %v", answer.StatusCode, answer.Header, body, err)
			}
			err = newRedisClient(t, door.Addr()).err("INCR", "order")
			if err == nil || !strings.HasPrefix(err.Error(), "TRYAGAIN ") {
				t.Errorf("over Redis: %v", err)
			}
			says["Redis"] = fmt.Sprint(err)
			for _, tag := range []string{"cold", "event"} { // of which it holds nothing
				_, err = a.next(tag)
				if code, _ := reason(err); code != codes.Unavailable {
					t.Errorf("tag %s: %v", tag, err)
				}
				says["gRPC, of tag "+tag] = fmt.Sprint(err)
			}
			for way, text := range says {
				for _, secret := range []string{"--etcd", c.Etcd.Endpoint,
					strings.TrimPrefix(c.Etcd.Endpoint, "http://")} {
					if strings.Contains(text, secret) {
						t.Errorf("over %s a caller hears %s", way, text)
					}
				}
			}
			a.await("not ready", func() bool {
				code, body := a.get("/readyz")
				return code == http.StatusServiceUnavailable && contains(body, test.says...)
			})
			a.saysReady(false)
			mend()
			a.await("leases", func() bool { _, err := a.next("order"); return err == nil })
			a.await("ready", func() bool { code, _ := a.get("/readyz"); return code == http.StatusOK })
		})
	}
}

// With a ready-reserve an instance becomes not ready before its IDs run out.
func TestReadyReserve(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.ReadyReserve = allocator.LongestReserve })
		a.mustNext("order")
		if code, body := a.get("/readyz"); code != http.StatusOK {
			t.Errorf("while leases go well: %d %s", code, body)
		}
		c.Mem.NoSpace(true)
		a.await("not ready", func() bool {
			code, body := a.get("/readyz")
			return code == http.StatusServiceUnavailable && contains(body, "ready-reserve (168h0m0s)")
		})
		a.mustNext("order")
	})
}

// A tag at its own limit leases no more. How long its last IDs last says nothing of the room,
// neither in the instance's reserve nor in its readiness.
func TestReserveWithoutExhaustedTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		c.tag(func(s *record.TagSettings) { s.Limit = 400 }, "small")
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		for range 150 {
			a.mustNext("small")
		}
		a.await("a lease of the small tag has met its limit", func() bool {
			for a.chain("small").GetHeld() > 1 {
				a.mustNext("small")
			}
			return a.chain("small").GetFailure() != ""
		})
		a.await("the reserve is that of the other tag", func() bool {
			a.mustNext("order")
			r, err := marchv1.NewRoomServiceClient(a.Conn).GetInstance(bg, &marchv1.GetInstanceRequest{})
			return err == nil && r.GetStatus().GetReserveTag() == "order"
		})
	})
}

// The log has one line for each cause that keeps the instance from leasing, also where one
// follows another, and each line has the remedy.
func TestLogsWhyNothingIsLeased(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		var log logged
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
		a.mustNext("order")
		line := func(what string, parts ...string) {
			t.Helper()
			a.await(what, func() bool {
				for text := range strings.Lines(log.String()) {
					if contains(text, parts...) {
						return true
					}
				}
				return false
			})
		}
		c.Mem.NoSpace(true)
		line("full", "a problem began", "kind=etcd_full", "remedy=", "etcdctl alarm disarm")
		c.Mem.Stop()
		line("away", "a problem began", "kind=etcd_away", "remedy=", "etcdctl endpoint status")
		c.Mem.Start()
		c.Mem.NoSpace(false)
		line("back", "a problem is over", "kind=etcd_full")
		line("back", "a problem is over", "kind=etcd_away")
		if _, err := c.Admin.Ledger.Halt(bg, "ann", "tonight's restore"); err != nil {
			t.Fatal(err)
		}
		line("halted", "a problem began", "kind=halted", "halted in all rooms by ann", "remedy=", "march recover")
		for {
			if _, err := a.next("order"); err != nil {
				break
			}
		}
		line("not ready", "no IDs can be issued", "problems=", "march recover")
	})
}

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// families checks what readyz and gRPC's health service say of an instance and of its families of IDs.
func (i *instance) families(ready, counters, timed bool) {
	i.Helper()
	state := map[bool]healthpb.HealthCheckResponse_ServingStatus{
		true: healthpb.HealthCheckResponse_SERVING, false: healthpb.HealthCheckResponse_NOT_SERVING}
	i.await("readyz, the health service and the metrics say so", func() bool {
		if i.health("time-ordered") != state[timed] || i.health("counters") != state[counters] ||
			i.health("") != state[ready] {
			return false
		}
		code, _ := i.get("/readyz")
		_, metrics := i.get("/metrics") // last: it costs most
		one := map[bool]string{true: "1", false: "0"}
		return (code == http.StatusOK) == ready && contains(metrics,
			`march_family_ready{family="counters",room="a"} `+one[counters]+"\n",
			`march_family_ready{family="time-ordered",room="a"} `+one[timed]+"\n")
	})
}

// An instance whose clock went back issues counters and no time-ordered IDs. Before, readyz, status and log said
// nothing of it.
func TestFamilyWhoseClockWentBack(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		c.tag(timed(cosid), "event")
		var back atomic.Int64
		c.now = func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }
		var log logged
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
		a.mustNext("order")
		a.mustNext("event")
		a.families(true, true, true)
		back.Store(int64(time.Minute))
		if _, err := a.next("event"); err == nil {
			t.Fatal("an ID by a clock that is a minute behind")
		}
		a.mustNext("order")
		a.families(true, true, false)
		if _, body := a.get("/readyz?verbose"); !contains(body,
			"[-]time-ordered failed: tag event: the clock went back",
			"[!]instance a/a1 issues no time-ordered IDs", "readyz check passed") {
			t.Errorf("readyz: %s", body)
		}
		a.await("the log says so", func() bool {
			return contains(log.String(), "a problem began: ", "kind=time_ordered", "its clock went back by 1m0s",
				"Next: `chronyc tracking`")
		})
		back.Store(0)
		a.await("an ID", func() bool { _, err := a.next("event"); return err == nil })
		a.families(true, true, true)
	})
}

// The third instance of a room with two workers issues counters. Before, one call to the time tag took it out of
// its callers' addresses.
func TestFamilyWithoutAWorker(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		few := cosid
		few.WorkerBits, few.SequenceBits = 2, 20
		c.tag(nil, "order")
		c.tag(timed(few), "event")
		one, two := c.start("a", "a1", nil), c.start("a", "a2", nil)
		one.mustNext("event")
		two.mustNext("event")
		three := c.start("a", "a3", nil)
		if _, err := three.next("event"); err == nil {
			t.Fatal("a third worker of two")
		}
		three.families(true, true, false)
		three.mustNext("order")
		three.families(true, true, false)
	})
}

// While etcd is away, an instance whose counters have run out issues time-ordered IDs, by the window that it has: it is
// ready, and its counters are not. When the window has ended, too, it is not ready.
func TestFamilyWithoutSegments(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		c.tag(timed(cosid), "event")
		var log logged
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
		a.mustNext("order")
		a.mustNext("event")
		time.Sleep(time.Minute)
		a.families(true, true, true)
		c.Mem.Stop()
		for err := error(nil); err == nil; {
			_, err = a.next("order")
		}
		a.families(true, false, true)
		a.mustNext("event")
		if _, body := a.get("/readyz?verbose"); !contains(body, "[-]counters failed: ", "readyz check passed") {
			t.Errorf("readyz: %s", body)
		}
		for err := error(nil); err == nil; _, err = a.next("event") {
			time.Sleep(time.Minute)
		}
		a.families(false, false, false)
		c.Mem.Start()
		a.await("an ID of each", func() bool {
			_, err := a.next("order")
			_, timed := a.next("event")
			return err == nil && timed == nil
		})
		a.families(true, true, true)
	})
}
