package ledger_test

import (
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// Where the key identity alone was deleted, every command said to make the cluster,
// `march layout init` that there is one already, and `march recover` that there is
// nothing to recover. They name the key and the ways out, and both ways lead out.
func TestIdentityLost(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.Lease(10)
	backup := c.Mem.Revision()
	identity := c.Value("identity")
	c.Corrupt("identity", nil)

	fresh := ledgertest.Open(t, c.Mem.Open())
	_, show := fresh.Refresh(bg)
	_, create := manage(fresh).CreateTag(bg, "x", record.DefaultTag(), "me")
	_, recovered := c.recover(c.Mem.Open(), nil)
	_, init := manage(fresh).Init(bg, ledgertest.Lay(t, "10 a=0-5"), "me")
	p.Ledger.Uncheck()
	_, running := p.Ledger.Refresh(bg)
	for what, err := range map[string]error{"show": show, "create": create, "recover": recovered,
		"init": init, "running": running} {
		kind := allocator.Refused
		if what == "init" {
			kind = allocator.Exists
		}
		ledgertest.WantKind(t, err, kind, "key "+prefix+"identity is missing",
			"restore etcd from a backup, then run `march recover`", "put the key back")
		if err != nil && strings.Contains(err.Error(), "layout init") {
			t.Errorf("%s: %v", what, err)
		}
	}

	c.Corrupt("identity", identity)
	p.Lease(10)
	c.Check()

	c.Corrupt("identity", nil)
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{p})
	p.hear()
	p.Lease(10)
	c.Check()
}

// A prefix without a cluster is told apart from one that lost its identity.
func TestNoCluster(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	for _, key := range []string{"identity", "epoch", "layout"} {
		c.Corrupt(key, nil)
	}
	_, err := ledgertest.Open(t, c.Mem.Open()).Refresh(bg)
	ledgertest.WantKind(t, err, allocator.Refused, "no cluster", "march layout init")
	_, err = c.recover(c.Mem.Open(), nil)
	ledgertest.WantKind(t, err, allocator.Refused, "nothing to recover")
	p.Ledger.Uncheck()
	_, err = p.Ledger.Refresh(bg)
	ledgertest.WantKind(t, err, allocator.Refused, "is gone", "restore etcd from a backup")
}
