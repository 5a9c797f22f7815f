package room_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// An instance works whose etcd is far away: it is ready, leases for cold tags and ahead of need, stays registered with
// heartbeats that no console calls silent, and leaves. At 1.2 s of round trip nothing was leased at all.
func TestFarEtcd(t *testing.T) {
	for _, away := range []time.Duration{60 * time.Millisecond, time.Second, 2 * time.Second} {
		t.Run(fmt.Sprint(away), func(t *testing.T) {
			testcluster.Bubble(t, func(t *testing.T) {
				c := newCluster(t, testcluster.Halves())
				c.tag(nil, "order", "user")
				far := &ledgertest.Far{Store: c.store(), Away: away}
				began := time.Now()
				a := c.launch("a", "a1", func(cfg *room.Config) { cfg.Ledger = c.LedgerOver(far, nil) })
				a.await("ready", func() bool { code, _ := a.get("/readyz"); return code == 200 })
				if trips := float64(time.Since(began)) / float64(away); away >= time.Second && trips > 5 {
					t.Errorf("it was ready after %.1f round trips", trips)
				}
				for k := range 20 {
					tag := allocator.Tag(fmt.Sprint("cold", k))
					c.tag(nil, tag)
					time.Sleep(1700 * time.Millisecond)
					began := time.Now()
					a.mustNext(string(tag))
					if trips := float64(time.Since(began)) / float64(away); away >= time.Second && trips > 2.1 {
						t.Errorf("a cold ID came after %.2f round trips", trips)
					}
				}
				for range 10_000 { // which takes refills
					a.mustNext("order")
				}
				beat, since := "", time.Now()
				for began := since; time.Since(began) < time.Minute; time.Sleep(time.Second) {
					if err := a.problems(); err != nil {
						t.Error(err)
					}
					if v, _ := c.Mem.Value("/march/default/alive/a/a1"); string(v) != beat {
						beat, since = string(v), time.Now()
					}
					if silent := time.Since(since); silent > 3*ledger.HeartbeatInterval(1) {
						t.Fatalf("no heartbeat for %v", silent)
					}
				}
				a.Stop()
				if c.registered("a", "a1") != nil {
					t.Error("it is still registered")
				}
			})
		})
	}
}

// problems returns the instance's problems as it sees them.
func (i *instance) problems() error {
	r, err := marchv1.NewRoomServiceClient(i.Conn).GetInstance(bg, &marchv1.GetInstanceRequest{})
	if err == nil && len(r.GetStatus().GetProblems()) > 0 {
		err = fmt.Errorf("problems: %v", r.GetStatus().GetProblems())
	}
	return err
}
