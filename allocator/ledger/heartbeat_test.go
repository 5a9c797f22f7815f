package ledger_test

import (
	"encoding/json"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// counting has p count how often it drops what it holds.
func countingDrops(p *process) *atomic.Int64 {
	var dropped atomic.Int64
	p.OnDrop(func(string) { dropped.Add(1) })
	return &dropped
}

// counter returns the counter of a heartbeat.
func (c *cluster) counter(key string) int64 {
	c.Helper()
	var v struct {
		Counter int64 `json:"counter,string"`
	}
	if err := json.Unmarshal(c.Value(key), &v); err != nil {
		c.Fatalf("%v", err)
	}
	return v.Counter
}

// Faults of heartbeats never look like a copy, nor like a forget, and heartbeats
// come through.
func TestHeartbeatUnderEachFault(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		t.Run(fate.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "10 a=0-5 b=5-10")
				p := c.start("a")
				dropped := countingDrops(p)
				var count atomic.Int64
				p.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
					if n := int(count.Add(1)); ledgertest.PutsUnder("alive/")(txn) && n%3 != 1 {
						return ledgertest.Fate{Name: fate, N: n % 4}
					}
					return ledgertest.Fate{}
				})
				stop := beating(p)
				time.Sleep(20 * time.Minute)
				p.Conn.Fate(nil)
				time.Sleep(10 * time.Second)
				if seen, _ := c.heard("a/i1"); time.Since(seen) > 6*time.Second {
					t.Errorf("last heard of at %v, now %v", seen, time.Now())
				}
				p.Lease(10)
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
				if n := dropped.Load(); n != 0 {
					t.Errorf("it dropped what it holds %d times", n)
				}
			})
		})
	}
}

// A cluster writes at most 20 heartbeats a second.
func TestHeartbeatInterval(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 5 * time.Second, 100: 5 * time.Second, 101: 5050 * time.Millisecond,
		2000: 100 * time.Second} {
		if got := ledger.HeartbeatInterval(n); got != want {
			t.Errorf("%d instances: %v, want %v", n, got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		p := c.startAs("a", "one")
		for i := range 400 { // as many registrations, which no process reads
			c.Corrupt("rooms/b/i"+strconv.Itoa(i), c.Value("rooms/a/one"))
		}
		was := c.counter("alive/a/one")
		stop := beating(p)
		time.Sleep(205 * time.Second)
		if n := c.counter("alive/a/one") - was; n != 11 { // at once, and every 20 s
			t.Errorf("%d heartbeats in 205 s among 401 instances", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
