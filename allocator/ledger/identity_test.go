package ledger_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

func TestIdentityMismatch(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	uuid, err := c.admin.UUID(bg)
	if err != nil || len(uuid) != 36 {
		t.Fatalf("uuid %q, %v", uuid, err)
	}
	configured := func(uuid string) *ledger.Ledger {
		return open(t, c.mem.Open(), func(cfg *ledger.Config) { cfg.UUID = uuid })
	}
	if _, err := configured(strings.ToUpper(uuid)).Refresh(bg); err != nil {
		t.Errorf("with its own uuid: %v", err)
	}
	const other = "00000000-0000-4000-8000-000000000000"
	wrong := configured(other)
	_, join := wrong.Join(bg, ledger.Registration{Room: "a", Name: "one"})
	_, refresh := wrong.Refresh(bg)
	_, create := wrong.CreateTag(bg, "x", ledger.DefaultTag(), "me")
	_, instances := wrong.Instances(bg, "")
	for _, err := range []error{join, refresh, create, instances} {
		wantKind(t, err, allocator.Refused, uuid, other)
	}

	// The same data under another etcd: a copy, or a wrong endpoint.
	conn := c.mem.Open()
	conn.Fate(func(ledger.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.WrongCluster} })
	_, err = open(t, conn).Refresh(bg)
	wantKind(t, err, allocator.Refused, "fedcba9876543210", "fedcba9876543211")

	// Met later, every answer is refused.
	p := c.start("a")
	p.conn.Fate(func(ledger.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.WrongCluster} })
	_, err = p.ledger.Refresh(bg)
	wantKind(t, err, allocator.WentBack, "fedcba9876543210", "fedcba9876543211")
	c.check()
}

func TestInitTakesTheConfiguredUUID(t *testing.T) {
	const uuid = "00000000-0000-4000-8000-00000000000a"
	l := open(t, ledgertest.NewMemory(t).Open(), func(cfg *ledger.Config) { cfg.UUID = uuid })
	if _, err := l.Init(bg, lay(t, "10 a=0-5"), "me"); err != nil {
		t.Fatal(err)
	}
	if got, err := l.UUID(bg); got != uuid || err != nil {
		t.Errorf("uuid %s, %v", got, err)
	}
}

func TestCheckVersion(t *testing.T) {
	for _, version := range []string{"3.6.9", "3.6.10", "3.6.99", "3.7.0", "3.7.3", "3.8.0", "3.10.1", "3.6.9+git.abc"} {
		if err := ledger.CheckVersion(version); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
	for _, version := range []string{
		"", "garbage", "3", "3.6", "v3.6.9", "3.6.x", "2.3.8", "3.4.37", "3.5.21", "3.6.0", "3.6.8", "3.-6.9", "4.0.0", "-3.6.9",
		"3.6.9garbage", "3.6.9.1", "3.06.9", "99999999999999999999.6.9", "3.7.0-rc.1", "3.6.9 ",
	} {
		wantKind(t, ledger.CheckVersion(version), allocator.Refused, "3.6.9 or newer", version)
	}
}

func TestContact(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p := c.start("a")
	if away, last, cause := p.ledger.Contact(); !away.IsZero() || cause != nil || last.IsZero() {
		t.Errorf("in contact: %v, %v, %v", away, last, cause)
	}
	before := time.Now()
	p.conn.Fate(func(ledger.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NoLeader} })
	ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
	defer cancel()
	_, err := p.ledger.Refresh(ctx)
	wantKind(t, err, allocator.Unavailable, "no leader")
	away, last, cause := p.ledger.Contact()
	if away.Before(before) || cause == nil || last.After(before) {
		t.Errorf("away: %v, %v, %v", away, last, cause)
	}
	wantKind(t, p.Serve(bg, 1), allocator.Unavailable)
	if again, _, _ := p.ledger.Contact(); !again.Equal(away) {
		t.Errorf("away since %v, then since %v", away, again)
	}
	p.conn.Fate(nil)
	p.lease(1)
	if away, last, cause := p.ledger.Contact(); !away.IsZero() || cause != nil || last.Before(before) {
		t.Errorf("back: %v, %v, %v", away, last, cause)
	}
	// A caller that gives up says nothing of etcd.
	gone, cancelGone := context.WithCancel(bg)
	cancelGone()
	if _, err := p.ledger.Refresh(gone); err == nil {
		t.Error("no error")
	}
	if away, _, _ := p.ledger.Contact(); !away.IsZero() {
		t.Errorf("away since %v for a caller that gave up", away)
	}
}

func TestOrigin(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p, q := c.start("a"), c.start("b")
	p.lease(7)
	q.lease(7)
	c.move("7 a=3-7 b=0-3")
	p.lease(7)
	q.lease(7)
	c.check()
	for room, segments := range c.issued["t"] {
		for _, seg := range segments {
			for id := range seg.IDs() {
				got, layout, err := c.admin.Origin(bg, "t", id)
				if err != nil || got != room || layout.Layout.Version != seg.Version {
					t.Errorf("ID %d: %s, version %d, %v; want %s, %d", id, got, layout.Layout.Version, err, room, seg.Version)
				}
			}
		}
	}
	for _, id := range []int64{0, 10_000, allocator.MaxID, -1} {
		_, _, err := c.admin.Origin(bg, "t", id)
		wantKind(t, err, allocator.NotFound)
	}
}
