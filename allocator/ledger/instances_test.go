package ledger_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/plan"
)

// one returns the one instance that is registered.
func (c *cluster) one() record.Instance {
	c.Helper()
	all, _, err := c.Admin.Instances(bg, "")
	if err != nil || len(all) != 1 {
		c.Fatalf("instances: %v, %v", all, err)
	}
	return all[0]
}

// An instance is forgotten as it was seen, and not where it was heard of since, or
// another process has its name.
func TestForgetSilent(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	c.startAs("a", "one")
	old := c.one()
	again := c.startAs("a", "one")
	forget := func(i record.Instance) {
		t.Helper()
		if err := c.Admin.ForgetSilent(bg, i, "console x"); err != nil {
			t.Fatal(err)
		}
	}
	forget(old)
	old = c.one()
	if err := again.Beat(bg); err != nil {
		t.Fatal(err)
	}
	forget(old)
	again.Lease(1)
	forget(c.one())
	c.wantInstances("")
	if keys := c.Mem.Keys(prefix + "alive/"); len(keys) > 0 {
		t.Errorf("left behind: %v", keys)
	}
	audit, _, err := c.Admin.Audits(bg, "", 1)
	if err != nil || len(audit) != 1 || audit[0].Actor != "console x" || audit[0].Action != "forget instance" {
		t.Errorf("audit: %+v, %v", audit, err)
	}
	if err := c.Admin.Forget(bg, "a", "one", "test"); allocator.KindOf(err) != allocator.NotFound {
		t.Errorf("forget again: %v", err)
	}
	c.Check()
}

// A move that waited for reports under one epoch is not made under another.
func TestMoveIsOfTheEpochOfItsReports(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("b")
	from, err := c.Admin.Ledger.Refresh(bg)
	if err != nil {
		t.Fatal(err)
	}
	to := from.Layout
	to.Version, to.Ranges = 2, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50},
		"b": {Lower: 50, Upper: 60}}
	m, err := c.Admin.StartMigration(bg, from, record.Migration{
		From: from.Layout, Target: to, Moves: record.MovesOf(plan.Move{Kind: plan.Retract, Layout: to,
			Loses: []allocator.Room{"b"}}),
	}, "test")
	if err != nil {
		t.Fatal(err)
	}
	read, _ := c.Admin.Ledger.State()
	c.mustRecover([]*process{p})
	_, err = c.Admin.MakeMove(bg, m, read)
	ledgertest.WantKind(t, err, allocator.Conflict)
	if m, err = c.Admin.MakeMove(bg, m, nil); err != nil || m.Reached != 1 {
		t.Errorf("%+v, %v", m, err)
	}
}
