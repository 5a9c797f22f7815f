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
	p.lease(10)
	backup := c.mem.Revision()
	identity := c.value("identity")
	c.corrupt("identity", nil)

	fresh := open(t, c.mem.Open())
	_, show := fresh.Refresh(bg)
	_, create := manage(fresh).CreateTag(bg, "x", record.DefaultTag(), "me")
	_, recovered := c.recover(c.mem.Open(), nil)
	_, init := manage(fresh).Init(bg, lay(t, "10 a=0-5"), "me")
	p.ledger.Uncheck()
	_, running := p.ledger.Refresh(bg)
	for what, err := range map[string]error{"show": show, "create": create, "recover": recovered, "init": init, "running": running} {
		kind := allocator.Refused
		if what == "init" {
			kind = allocator.Exists
		}
		wantKind(t, err, kind, "key "+prefix+"identity is missing", "restore etcd from a backup, then run `march recover`", "put the key back")
		if err != nil && strings.Contains(err.Error(), "layout init") {
			t.Errorf("%s: %v", what, err)
		}
	}

	c.corrupt("identity", identity)
	p.lease(10)
	c.check()

	c.corrupt("identity", nil)
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{p})
	p.hear()
	p.lease(10)
	c.check()
}

// A prefix without a cluster is told apart from one that lost its identity.
func TestNoCluster(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	for _, key := range []string{"identity", "epoch", "layout"} {
		c.corrupt(key, nil)
	}
	_, err := open(t, c.mem.Open()).Refresh(bg)
	wantKind(t, err, allocator.Refused, "no cluster", "march layout init")
	_, err = c.recover(c.mem.Open(), nil)
	wantKind(t, err, allocator.Refused, "nothing to recover")
	p.ledger.Uncheck()
	_, err = p.ledger.Refresh(bg)
	wantKind(t, err, allocator.Refused, "is gone", "restore etcd from a backup")
}
