package ledger_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// look notes who is silent and returns the one instance there is.
func (c *cluster) look() ledger.InstanceRecord {
	c.tb.Helper()
	for range 2 { // what was noted shows at the second look
		all, err := c.admin.Instances(bg, "")
		if err != nil || len(all) != 1 {
			c.tb.Fatalf("instances: %v, %v", all, err)
		}
		if err := c.admin.NoteSilence(bg, all); err != nil {
			c.tb.Fatalf("note: %v", err)
		}
	}
	all, err := c.admin.Instances(bg, "")
	if err != nil || len(all) != 1 {
		c.tb.Fatalf("instances: %v, %v", all, err)
	}
	return all[0]
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		a := c.startAs("a", "one")
		since := time.Now()
		is := func(what string, want time.Time) ledger.InstanceRecord {
			t.Helper()
			i := c.look()
			if !i.SilentSince.Equal(want.Truncate(time.Millisecond)) || i.Alive != want.IsZero() {
				t.Errorf("%s: alive %v, silent since %v, want %v", what, i.Alive, i.SilentSince, want)
			}
			return i
		}
		is("no heartbeat yet", since)
		time.Sleep(time.Hour)
		is("still none", since)
		stop := beating(a)
		is("a heartbeat", time.Time{})
		if keys := c.mem.Keys(prefix + "silent/"); len(keys) > 0 {
			t.Errorf("left behind: %v", keys)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(ledger.HeartbeatTTL + time.Second)
		since = time.Now()
		old := is("none again", since)

		// Another process of the name begins anew, and an old look forgets nobody.
		time.Sleep(time.Hour)
		again := c.startAs("a", "one")
		if err := c.admin.ForgetSilent(bg, old, "test"); err != nil {
			t.Error(err)
		}
		again.lease(1)
		since = time.Now()
		old = is("a new process", since)
		stop = beating(again)
		if err := c.admin.ForgetSilent(bg, old, "test"); err != nil {
			t.Error(err)
		}
		is("heard of meanwhile", time.Time{})
		if err := stop(); err != nil {
			t.Error(err)
		}
		if err := again.Leave(bg); err != nil {
			t.Error(err)
		}
		if keys := append(c.mem.Keys(prefix+"silent/"), c.mem.Keys(prefix+"rooms/")...); len(keys) > 0 {
			t.Errorf("left behind: %v", keys)
		}
		c.check()
	})
}

func TestForgetSilent(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	a := c.startAs("a", "one")
	all, err := c.admin.Instances(bg, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.admin.ForgetSilent(bg, all[0], "test"); err == nil {
		t.Error("one that is not known to be silent was forgotten")
	}
	a.lease(1)
	i := c.look()
	if err := c.admin.ForgetSilent(bg, i, "console x"); err != nil {
		t.Fatal(err)
	}
	c.wantInstances("")
	_, err = a.tryLease("t", 1)
	wantKind(t, err, allocator.Refused, "not registered")
	if keys := c.mem.Keys(prefix + "silent/"); len(keys) > 0 {
		t.Errorf("left behind: %v", keys)
	}
	audit, err := c.admin.Audits(bg, "", 1)
	if err != nil || len(audit) != 1 || audit[0].Actor != "console x" || audit[0].Action != "forget instance" {
		t.Errorf("audit: %+v, %v", audit, err)
	}
	c.check()
}
