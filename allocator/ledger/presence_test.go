package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// instances returns the registered instances as room/name:version.
func (c *cluster) instances(room allocator.Room) (out []string) {
	c.Helper()
	all, _, err := c.Admin.Instances(bg, room)
	if err != nil {
		c.Fatalf("instances: %v", err)
	}
	for _, i := range all {
		out = append(out, fmt.Sprintf("%s/%s:%d", i.Room, i.Name, i.Version))
		if i.Address != string(i.Name)+".test:7010" || i.Build != "test" || i.Started.IsZero() || i.LastSeen.IsZero() {
			c.Errorf("instance %+v", i)
		}
	}
	return out
}

func (c *cluster) wantInstances(room allocator.Room, want ...string) {
	c.Helper()
	if got := c.instances(room); fmt.Sprint(got) != fmt.Sprint(want) {
		c.Errorf("instances of %q: %v, want %v", room, got, want)
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

// heard returns when the last heartbeat of an instance was sent, and what tells it
// from others.
func (c *cluster) heard(id record.InstanceID) (time.Time, string) {
	c.Helper()
	all, _, err := c.Admin.Instances(bg, "")
	if err != nil {
		c.Fatalf("instances: %v", err)
	}
	for _, i := range all {
		if i.ID() == id {
			return i.LastSeen, i.Beat
		}
	}
	c.Fatalf("%s is not registered", id)
	return time.Time{}, ""
}

func TestRegistrationsAndHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		a, b := c.startAs("a", "one"), c.startAs("b", "one")
		c.startAs("a", "two.x-y")
		c.wantInstances("", "a/one:1", "a/two.x-y:1", "b/one:1")
		stop := beating(a)
		c.Move("10 a=0-10")
		if err := a.Serve(bg, 2); err != nil {
			t.Fatal(err)
		}
		c.wantInstances("b", "b/one:1")
		_, silent := c.heard("b/one")
		time.Sleep(time.Second)
		for range 100 { // a heartbeat every five seconds
			_, was := c.heard("a/one")
			time.Sleep(5 * time.Second)
			if seen, is := c.heard("a/one"); is == was || time.Since(seen) > 5*time.Second {
				t.Fatalf("last heard of at %v, now %v", seen, time.Now())
			}
		}
		if _, is := c.heard("b/one"); is != silent {
			t.Error("an instance that does not run was heard of")
		}
		c.wantInstances("a", "a/one:2", "a/two.x-y:1")
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		time.Sleep(time.Hour)
		c.wantInstances("a", "a/one:2", "a/two.x-y:1") // silence is not absence
		a.Lease(10)
		stop = beating(b)
		_ = stop()
		if err := b.Leave(bg); err != nil {
			t.Fatal(err)
		}
		c.wantInstances("", "a/one:2", "a/two.x-y:1")
		if keys := c.Mem.Keys(prefix + "alive/b/"); len(keys) > 0 {
			t.Errorf("left behind: %v", keys)
		}
		_, err := b.TryLease("t", 1)
		ledgertest.WantKind(t, err, allocator.Refused, "has left")
		if err := b.Leave(bg); err != nil {
			t.Errorf("leaving twice: %v", err)
		}
		if err := a.Leave(bg); err != nil {
			t.Error(err)
		}
		c.Check()
	})
}

// An instance whose name another process took over ends.
func TestRunEndsWhereTheNameIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		old := c.startAs("a", "one")
		stop := beating(old)
		stopNext := beating(c.startAs("a", "one"))
		time.Sleep(time.Minute)
		ledgertest.WantKind(t, stop(), allocator.Refused, "another process registered", "--name")
		if err := stopNext(); err != nil {
			t.Error(err)
		}
	})
}

// A process that restarts under its name reported the latest layout at once, for
// its predecessor too, which may be cut off and still issue what its room lost.
// Now its registration has the predecessor's version until that one's hold has
// passed. With the predecessor's journal it is sure that that one has ended.
func TestARestartDoesNotReportForItsPredecessor(t *testing.T) {
	for _, journal := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "10 a=0-5 b=5-10")
			as := ledger.Registration{Room: "a", Name: "one", Address: "one.test:7010",
				Build: "test", Hold: time.Minute}
			if journal {
				as.Journal = t.TempDir()
			}
			join := func() *process {
				p := c.process()
				p.Ledger = ledgertest.Open(t, p.Conn)
				var err error
				if p.Instance, err = p.Ledger.Join(bg, as); err != nil {
					t.Fatal(err)
				}
				return p
			}
			if err := join().Close(); err != nil { // it crashes
				t.Fatal(err)
			}
			c.Move("10 a=0-3 b=5-10")
			p := join()
			stop := beating(p)
			if err := p.Serve(bg, 2); err != nil || p.Version() != 2 {
				t.Errorf("serve: %v, version %d", err, p.Version())
			}
			time.Sleep(59 * time.Second)
			want := "a/one:1"
			if journal {
				want = "a/one:2"
			}
			c.wantInstances("", want)
			time.Sleep(2 * time.Second)
			c.wantInstances("", "a/one:2")
			if err := stop(); err != nil {
				t.Error(err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// An instance that had waited for its predecessor's hold wrote its own version once
// only: where etcd did not answer just then, no heartbeat tried again, and a migration
// waited for ever.
func TestARestartReportsAsSoonAsItCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		lost := 0
		join := func() *process {
			p := c.process()
			p.Ledger = ledgertest.Open(t, p.Conn)
			var err error
			p.Instance, err = p.Ledger.Join(bg, ledger.Registration{Room: "a", Name: "one", Address: "one.test:7010",
				Build: "test", Hold: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			p.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
				if len(txn.Then) == 1 && txn.Then[0].Put != nil &&
					txn.Then[0].Put.Key == prefix+"rooms/a/one" && lost < 2 {
					lost++
					return ledgertest.Fate{Name: ledgertest.NotDone}
				}
				return ledgertest.Fate{}
			})
			return p
		}
		if err := join().Close(); err != nil { // it crashes
			t.Fatal(err)
		}
		c.Move("10 a=0-3 b=5-10")
		p := join()
		stop := beating(p)
		time.Sleep(59 * time.Second)
		c.wantInstances("", "a/one:1")
		time.Sleep(time.Minute)
		c.wantInstances("", "a/one:2")
		if lost != 2 {
			t.Errorf("%d reports were lost, want 2", lost)
		}
		if err := errors.Join(stop(), p.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A first try to register that comes late must not throw out the second.
func TestJoinUnknownOutcome(t *testing.T) {
	for _, fate := range ledgertest.Unknown {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "10 a=0-5 b=5-10")
			p := c.process()
			p.Ledger = ledgertest.Open(t, p.Conn)
			p.Conn.Next(ledgertest.Fate{Name: fate, N: 1000}, ledgertest.PutsUnder("rooms/"))
			as := ledger.Registration{Room: "a", Name: "one", Address: "127.0.0.1:1", Build: "test"}
			var err error
			if p.Instance, err = p.Ledger.Join(bg, as); fate != ledgertest.Twice {
				ledgertest.WantKind(t, err, allocator.Unavailable)
				p.Instance, err = p.Ledger.Join(bg, as)
			}
			if err != nil {
				t.Fatal(err)
			}
			c.Mem.Arrive()
			p.Lease(10)
			for _, version := range []int64{1, 1} {
				p.Conn.Next(ledgertest.Fate{Name: fate, N: 1000}, ledgertest.PutsUnder("rooms/"))
				if err := p.Serve(bg, version); err != nil {
					ledgertest.WantKind(t, err, allocator.Unavailable)
					_ = p.Serve(bg, version) // may first learn that it was done
					if err := p.Serve(bg, version); err != nil {
						t.Errorf("Serve, for the third time: %v", err)
					}
				}
				c.Mem.Arrive()
				p.Lease(10)
			}
			p.Conn.Next(ledgertest.Fate{Name: fate, N: 1000}, func(txn store.Txn) bool {
				return len(txn.Then) > 0 && txn.Then[0].Delete != ""
			})
			if err := p.Leave(bg); err != nil {
				ledgertest.WantKind(t, err, allocator.Unavailable)
				if err := p.Leave(bg); err != nil {
					t.Errorf("leaving again: %v", err)
				}
			}
			c.wantInstances("a")
			c.Check()
		})
	}
}

// A read from the past, in which it was not registered yet, or another process
// was, does not make an instance lose its registration.
func TestRegistrationDespiteStaleReads(t *testing.T) {
	for _, again := range []bool{false, true} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		c.Tag("full", func(s *record.TagSettings) { s.Limit = 2 })
		if again {
			c.startAs("a", "one")
		}
		before, met := c.Mem.Revision(), 0
		p := c.startAs("a", "one")
		if _, err := p.TryLease("full", 1); err != nil {
			t.Fatal(err)
		}
		p.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if len(txn.If) > 3 && !ledgertest.Writes(txn) && met == 0 {
				met++
				return ledgertest.Fate{Name: ledgertest.StaleRead, N: int(c.Mem.Revision() - before)}
			}
			return ledgertest.Fate{}
		})
		_, err := p.TryLease("full", 1)
		ledgertest.WantKind(t, err, allocator.Exhausted)
		if met == 0 {
			t.Error("nothing was read from the past")
		}
		if err := p.Serve(bg, 1); err != nil {
			t.Errorf("after a read from the past: %v", err)
		}
		c.Check()
	}
}
