package ledger_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

func TestCheckVersion(t *testing.T) {
	for _, version := range []string{"3.6.9", "3.6.10", "3.6.99", "3.7.0", "3.7.3", "3.8.0",
		"3.10.1", "3.6.9+git.abc"} {
		if err := ledger.CheckVersion(version); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
	for _, version := range []string{
		"", "garbage", "3", "3.6", "v3.6.9", "3.6.x", "2.3.8", "3.4.37", "3.5.21", "3.6.0", "3.6.8",
		"3.-6.9", "4.0.0", "-3.6.9",
		"3.6.9garbage", "3.6.9.1", "3.06.9", "99999999999999999999.6.9", "3.7.0-rc.1", "3.6.9 ",
	} {
		ledgertest.WantKind(t, ledger.CheckVersion(version), allocator.Refused, "3.6.9 or newer", version)
	}
}

func TestContact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		p := c.start("a")
		if now := p.Ledger.Contact(); !now.Away.IsZero() || now.Cause != nil || now.Last.IsZero() {
			t.Errorf("in contact: %+v", now)
		}
		before := time.Now()
		p.Conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NoLeader} })
		ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
		defer cancel()
		_, err := p.Ledger.Refresh(ctx)
		ledgertest.WantKind(t, err, allocator.Unavailable, "no leader")
		away := p.Ledger.Contact()
		if away.Away.Before(before) || away.Cause == nil || away.Last.After(before) {
			t.Errorf("away: %+v", away)
		}
		ledgertest.WantKind(t, p.Serve(bg, 1), allocator.Unavailable)
		if again := p.Ledger.Contact().Away; !again.Equal(away.Away) {
			t.Errorf("away since %v, then since %v", away.Away, again)
		}
		p.Conn.Fate(nil)
		p.Lease(1)
		if back := p.Ledger.Contact(); !back.Away.IsZero() || back.Cause != nil || back.Last.Before(before) {
			t.Errorf("back: %+v", back)
		}
		// A caller that gives up says nothing of etcd.
		gone, cancelGone := context.WithCancel(bg)
		cancelGone()
		if _, err := p.Ledger.Refresh(gone); err == nil {
			t.Error("no error")
		}
		if away := p.Ledger.Contact().Away; !away.IsZero() {
			t.Errorf("away since %v for a caller that gave up", away)
		}
	})
}

// The latency begins with the first answer's and follows the later ones: one
// slow answer shows and does not stay.
func TestContactLatency(t *testing.T) {
	var c ledger.Contact
	took := func(d time.Duration, times int) time.Duration {
		for range times {
			ledger.Answered(&c, time.Now(), d)
		}
		return c.Latency
	}
	for _, step := range []struct {
		took  time.Duration
		times int
		want  time.Duration
	}{
		{8 * time.Millisecond, 1, 8 * time.Millisecond},
		{8 * time.Millisecond, 5, 8 * time.Millisecond},
		{808 * time.Millisecond, 1, 108 * time.Millisecond},
		{8 * time.Millisecond, 1, 95500 * time.Microsecond},
	} {
		if got := took(step.took, step.times); got != step.want {
			t.Errorf("after %d answers in %v: %v, want %v", step.times, step.took, got, step.want)
		}
	}
	if got := took(8*time.Millisecond, 100); got > 9*time.Millisecond {
		t.Errorf("a slow answer is still seen after 100 others: %v", got)
	}
}

// Each transaction is observed, with what came of it; an etcd that is lost and
// found over and over says so once in a while.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		var log bytes.Buffer
		outcomes := map[allocator.Kind]int{}
		good, conn := 0, c.Mem.Open()
		l := ledgertest.Open(t, conn, func(cfg *ledger.Config) {
			cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
			cfg.Observe = func(took time.Duration, err error) {
				if took < 0 {
					t.Errorf("took %v", took)
				}
				if err != nil {
					outcomes[allocator.KindOf(err)]++
				} else {
					good++
				}
			}
		})
		for range 3 {
			if _, err := l.Refresh(bg); err != nil {
				t.Fatal(err)
			}
			conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NoLeader} })
			ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
			_, err := l.Refresh(ctx)
			cancel()
			ledgertest.WantKind(t, err, allocator.Unavailable)
			conn.Fate(nil)
		}
		if _, err := l.Refresh(bg); err != nil {
			t.Fatal(err)
		}
		// the first Refresh reads the identity, too
		if good != 5 || outcomes[allocator.Unavailable] < 3 || len(outcomes) != 1 {
			t.Errorf("observed %d answers, failures %v", good, outcomes)
		}
		for line, want := range map[string]int{"etcd does not answer": 1, "etcd answers again": 1,
			"layout adopted": 1} {
			if got := strings.Count(log.String(), line); got != want {
				t.Errorf("%q logged %d times, want %d:\n%s", line, got, want, &log)
			}
		}
	})
}

func TestOrigin(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p, q := c.start("a"), c.start("b")
	p.Lease(7)
	q.Lease(7)
	c.Move("7 a=3-7 b=0-3")
	p.Lease(7)
	q.Lease(7)
	c.Check()
	for room, segments := range c.Issued["t"] {
		for _, seg := range segments {
			for id := range seg.IDs() {
				got, err := c.Admin.Origin(bg, "t", id)
				if err != nil || got.Room != room || got.Layout.Layout.Version != seg.Version {
					t.Errorf("ID %d: %+v, %v; want %s, %d", id, got, err, room, seg.Version)
				}
			}
		}
	}
	for _, id := range []int64{0, 10_000, allocator.MaxID, -1} {
		_, err := c.Admin.Origin(bg, "t", id)
		ledgertest.WantKind(t, err, allocator.NotFound)
	}
}

func TestClusterNames(t *testing.T) {
	for _, name := range []string{"", "A", "a/b", "a ", "-a", strings.Repeat("a", 64), "ä"} {
		_, err := ledger.New(nil, ledger.Config{Cluster: name, TryTimeout: 1})
		ledgertest.WantKind(t, err, allocator.Invalid, "cluster")
	}
	_, err := ledger.New(nil, ledger.Config{Cluster: "a"})
	ledgertest.WantKind(t, err, allocator.Invalid, "try timeout")
}
