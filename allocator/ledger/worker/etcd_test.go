package worker_test

import (
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

// Over a real etcd, instances that start together take different workers, renew them and give
// them back.
func TestWithEtcd(t *testing.T) {
	etcd := ledgertest.StartEtcd(t)
	c := newClusterOn(t, func() store.Store { return etcd.Store(t) }, halves)
	all := []*process{c.start("a"), c.start("a"), c.start("b"), c.start("b")}
	taken := make([]*worker.Worker, len(all))
	var group sync.WaitGroup
	for k, p := range all {
		group.Go(func() {
			var err error
			if taken[k], err = p.Take(bg, ms(2)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	seen := map[int64]bool{}
	for k, w := range taken {
		if w == nil {
			t.FailNow()
		}
		if seen[w.ID().Number] {
			t.Errorf("worker %v was taken twice", w.ID())
		}
		seen[w.ID().Number] = true
		c.pass(time.Second) // no heartbeats are sent, so the clock would soon count as ahead
		all[k].renew(w)
	}
	if err := all[0].GiveBack(bg, taken[0], taken[0].Window().From+1000); err != nil {
		t.Fatal(err)
	}
	again := c.start("a").take(ms(2))
	if again.ID() != taken[0].ID() {
		t.Errorf("took worker %v, and %v was given back", again.ID(), taken[0].ID())
	}
	_, err := c.start("a").Take(bg, worker.Request{Bits: 2, Tick: time.Millisecond})
	ledgertest.WantKind(t, err, allocator.Unavailable, "no other is free sooner")
	ledgertest.CheckCluster(t, c.open(), "default", nil)
}
