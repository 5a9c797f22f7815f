package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// instances returns the registered instances as room/name:version:alive.
func (c *cluster) instances(room allocator.Room) (out []string) {
	c.tb.Helper()
	all, err := c.admin.Instances(bg, room)
	if err != nil {
		c.tb.Fatalf("instances: %v", err)
	}
	for _, i := range all {
		out = append(out, fmt.Sprintf("%s/%s:%d:%v", i.Room, i.Name, i.Version, i.Alive))
		if i.Address != string(i.Name)+".test:7010" || i.Build != "test" || i.Started.IsZero() || i.Alive == i.LastSeen.IsZero() {
			c.tb.Errorf("instance %+v", i)
		}
	}
	return out
}

func (c *cluster) wantInstances(room allocator.Room, want ...string) {
	c.tb.Helper()
	if got := c.instances(room); fmt.Sprint(got) != fmt.Sprint(want) {
		c.tb.Errorf("instances of %q: %v, want %v", room, got, want)
	}
}

// beating runs p's heartbeats in a bubble; stop ends them and returns Run's
// error.
func beating(p *process) (stop func() error) {
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-done
	}
}

func TestRegistrationsAndHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		a, b := c.startAs("a", "one"), c.startAs("b", "one")
		c.startAs("a", "two.x-y")
		c.wantInstances("", "a/one:1:false", "a/two.x-y:1:false", "b/one:1:false")
		stop := beating(a)
		c.wantInstances("a", "a/one:1:true", "a/two.x-y:1:false")
		c.move("10 a=0-10")
		if err := a.Serve(bg, 2); err != nil {
			t.Fatal(err)
		}
		c.wantInstances("b", "b/one:1:false")
		time.Sleep(time.Hour) // it lives as long as it beats
		c.wantInstances("a", "a/one:2:true", "a/two.x-y:1:false")
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		time.Sleep(ledger.HeartbeatTTL + time.Second)
		c.wantInstances("a", "a/one:2:false", "a/two.x-y:1:false") // silence is not absence
		a.lease(10)
		stop = beating(b)
		_ = stop()
		if err := b.Leave(bg); err != nil {
			t.Fatal(err)
		}
		c.wantInstances("", "a/one:2:false", "a/two.x-y:1:false")
		if keys := c.mem.Keys(prefix + "alive/b/"); len(keys) > 0 {
			t.Errorf("left behind: %v", keys)
		}
		_, err := b.tryLease("t", 1)
		wantKind(t, err, allocator.Refused, "not registered")
		if err := b.Leave(bg); err != nil {
			t.Errorf("leaving twice: %v", err)
		}
		if err := a.Leave(bg); err != nil {
			t.Error(err)
		}
		c.check()
	})
}

func TestHeartbeatOutlivesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		p := c.start("a")
		stop := beating(p)
		c.mem.ExpireAll()
		c.wantInstances("a", "a/i1:1:false")
		time.Sleep(10 * time.Second)
		c.wantInstances("a", "a/i1:1:true")
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestRunEndsWhenTheRegistrationIsLost(t *testing.T) {
	for name, lose := range map[string]func(c *cluster){
		"another process registered":   func(c *cluster) { c.startAs("a", "one") },
		"is not registered any longer": func(c *cluster) { c.corrupt("rooms/a/one", nil) },
		// A clone: it has our incarnation, and our heartbeat as it was.
		"runs twice": func(c *cluster) {
			var v map[string]any
			if err := json.Unmarshal(c.value("alive/a/one"), &v); err != nil {
				t.Fatal(err)
			}
			v["nonce"] = "the clone's"
			b, _ := json.Marshal(v)
			c.corrupt("alive/a/one", b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "10 a=0-5 b=5-10")
				p := c.startAs("a", "one")
				done := make(chan error)
				go func() { done <- p.Run(bg) }()
				time.Sleep(time.Minute)
				lose(c)
				lost := time.Now()
				wantKind(t, <-done, allocator.Refused, name)
				if took := time.Since(lost); took > 6*time.Second {
					t.Errorf("it took %v to find out", took)
				}
				wantKind(t, p.Serve(bg, 1), allocator.Refused, name)
				c.mem.ExpireAll()
			})
		})
	}
}

// Who was forgotten, and has seen it in a lease, stops: also where etcd is restored
// before its next heartbeat, and has the registration again. It would live on
// otherwise, and report no layout any longer.
func TestRunEndsThoughARestoreHasTheRegistrationAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		p := c.startAs("a", "one")
		p.lease(1)
		done := make(chan error, 1)
		ctx, stop := context.WithCancel(bg)
		defer stop()
		go func() { done <- p.Run(ctx) }()
		time.Sleep(11 * time.Second) // and a heartbeat is sent every five
		backup := c.mem.Revision()
		if err := c.admin.Forget(bg, "a", "one", "test"); err != nil {
			t.Fatal(err)
		}
		_, err := p.tryLease("t", 1)
		wantKind(t, err, allocator.Refused, "is not registered any longer")
		c.mem.Restore(backup, 0, ledgertest.ClusterID)
		time.AfterFunc(6*time.Second, stop)
		wantKind(t, <-done, allocator.Refused, "is not registered any longer")
		c.mem.ExpireAll()
	})
}

// Faults of heartbeats never look like a clone, and heartbeats come through.
func TestHeartbeatUnderEachFault(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		t.Run(fate.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "10 a=0-5 b=5-10")
				p := c.start("a")
				var count atomic.Int64
				p.conn.Fate(func(txn ledger.Txn) ledgertest.Fate {
					if n := int(count.Add(1)); writes("alive/")(txn) && n%3 != 1 {
						return ledgertest.Fate{Name: fate, N: n % 4}
					}
					return ledgertest.Fate{}
				})
				stop := beating(p)
				time.Sleep(10 * time.Minute)
				c.mem.ExpireAll()
				time.Sleep(10 * time.Minute)
				c.wantInstances("a", "a/i1:1:true")
				p.conn.Fate(nil)
				p.lease(10)
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		})
	}
}

func TestRestartTakesTheNameOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		old := c.startAs("a", "one")
		stop := beating(old)
		fresh := c.startAs("a", "one")
		c.wantInstances("a", "a/one:1:false") // the heartbeat there is the old one's
		stopFresh := beating(fresh)
		c.wantInstances("a", "a/one:1:true")
		time.Sleep(time.Minute)
		wantKind(t, stop(), allocator.Refused)
		wantKind(t, old.Leave(bg), allocator.Refused) // and takes nothing away
		c.wantInstances("a", "a/one:1:true")
		if err := stopFresh(); err != nil {
			t.Error(err)
		}
	})
}

// A first try to register that comes late must not throw out the second.
func TestJoinUnknownOutcome(t *testing.T) {
	for _, fate := range unknown {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "10 a=0-5 b=5-10")
			p := &process{c: c, room: "a", conn: c.mem.Open(), sources: map[allocator.Tag]allocator.Source{}, last: map[allocator.Tag]int64{}}
			p.ledger = open(t, p.conn)
			p.next(ledgertest.Fate{Name: fate, N: 1000}, writes("rooms/"))
			as := ledger.Registration{Room: "a", Name: "one", Address: "127.0.0.1:1", Build: "test"}
			var err error
			if p.Instance, err = p.ledger.Join(bg, as); fate != ledgertest.Twice {
				wantKind(t, err, allocator.Unavailable)
				p.Instance, err = p.ledger.Join(bg, as)
			}
			if err != nil {
				t.Fatal(err)
			}
			c.mem.Arrive()
			p.lease(10)
			for _, version := range []int64{1, 1} {
				p.next(ledgertest.Fate{Name: fate, N: 1000}, writes("rooms/"))
				if err := p.Serve(bg, version); err != nil {
					wantKind(t, err, allocator.Unavailable)
					_ = p.Serve(bg, version) // may first learn that it was done
					if err := p.Serve(bg, version); err != nil {
						t.Errorf("Serve, for the third time: %v", err)
					}
				}
				c.mem.Arrive()
				p.lease(10)
			}
			p.next(ledgertest.Fate{Name: fate, N: 1000}, func(txn ledger.Txn) bool { return len(txn.Then) > 0 && txn.Then[0].Delete != "" })
			if err := p.Leave(bg); err != nil {
				wantKind(t, err, allocator.Unavailable)
				if err := p.Leave(bg); err != nil {
					t.Errorf("leaving again: %v", err)
				}
			}
			c.wantInstances("a")
			c.check()
		})
	}
}

// A read from the past, in which it was not registered yet, or another process
// was, does not make an instance lose its registration.
func TestRegistrationDespiteStaleReads(t *testing.T) {
	for _, again := range []bool{false, true} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		c.tag("full", func(s *ledger.TagSettings) { s.Limit = 2 })
		if again {
			c.startAs("a", "one")
		}
		before, met := c.mem.Revision(), 0
		p := c.startAs("a", "one")
		if _, err := p.tryLease("full", 1); err != nil {
			t.Fatal(err)
		}
		p.conn.Fate(func(txn ledger.Txn) ledgertest.Fate {
			if len(txn.If) > 3 && !ledgertest.Writes(txn) && met == 0 {
				met++
				return ledgertest.Fate{Name: ledgertest.StaleRead, N: int(c.mem.Revision() - before)}
			}
			return ledgertest.Fate{}
		})
		_, err := p.tryLease("full", 1)
		wantKind(t, err, allocator.Exhausted)
		if met == 0 {
			t.Error("nothing was read from the past")
		}
		if err := p.Serve(bg, 1); err != nil {
			t.Errorf("after a read from the past: %v", err)
		}
		c.check()
	}
}
