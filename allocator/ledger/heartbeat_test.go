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
	"github.com/march-id/march/allocator/ledger/record"
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

// An etcd that was empty for some seconds and then restored, as operators do by
// mistake, ended every live instance: each took its own heartbeat of before for
// that of a copy.
func TestEtcdEmptyAndThenRestored(t *testing.T) {
	for name, lost := range map[string]time.Duration{"nothing is lost": 0, "a minute is lost": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "10 a=0-5 b=5-10")
				p, q := c.startAs("a", "one"), c.startAs("b", "one")
				dropped := countingDrops(p)
				stopP, stopQ := beating(p), beating(q)
				p.Lease(10)
				time.Sleep(20 * time.Minute)
				backup := c.Mem.Revision()
				time.Sleep(lost)
				keys := c.Mem.Keys(prefix)
				ops := make([]store.Op, 0, len(keys))
				for _, key := range keys {
					ops = append(ops, store.Op{Delete: key})
				}
				c.Mem.Corrupt(ops...)
				time.Sleep(8 * time.Second)
				if keys := c.Mem.Keys(prefix); len(keys) > 0 {
					t.Errorf("written into an empty etcd: %v", keys)
				}
				c.Mem.Restore(backup, 0, ledgertest.ClusterID)
				time.Sleep(time.Minute)
				c.wantInstances("", "a/one:1", "b/one:1")
				for _, id := range []record.InstanceID{"a/one", "b/one"} {
					if seen, _ := c.heard(id); time.Since(seen) > 5*time.Second {
						t.Errorf("%s was last heard of at %v, now %v", id, seen, time.Now())
					}
				}
				if c.isHalted() == "" {
					t.Error("leasing is not halted")
				}
				if n := dropped.Load(); n != 0 {
					t.Errorf("it dropped what it holds %d times", n)
				}
				for _, stop := range []func() error{stopP, stopQ} {
					if err := stop(); err != nil {
						t.Errorf("Run: %v", err)
					}
				}
			})
		})
	}
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
