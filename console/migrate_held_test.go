package console_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// metered is a store that counts leases.
type metered struct {
	store.Store
	leases atomic.Int64
}

func (m *metered) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := m.Store.Txn(ctx, txn)
	for _, op := range txn.Then {
		if err == nil && answer.Succeeded && op.Put != nil && strings.Contains(op.Put.Key, "/marks/") {
			m.leases.Add(1)
		}
	}
	return answer, err
}

// TestMovesCostWhatIsLost makes 20 moves with many active tags in three rooms. Two of the
// rooms lose no residue: one never changes and one only grows. These two lease nothing and
// write nothing for any tag. Before, every move had every room drop all its IDs and lease
// again.
func TestMovesCostWhatIsLost(t *testing.T) {
	measured(t, movesCostWhatIsLost)
}

func movesCostWhatIsLost(t *testing.T) {
	const moves, loses = 20, 50 // every fiftieth tag is active in the room that loses
	tags := 500
	if *migrations > 0 {
		tags = 10_000
	}
	w := newWorld(t, layout(1000, map[string][2]int64{"same": {0, 300}, "grows": {300, 400}, "loses": {700, 1000}}))
	var opened []*metered
	open := w.Open
	w.Open = func(tb testing.TB) store.Store {
		opened = append(opened, &metered{Store: open(tb)})
		return opened[len(opened)-1]
	}
	w.tags(tags)
	leases := make(map[allocator.Room]*metered)
	for room, every := range map[allocator.Room]int{"same": 1, "grows": 1, "loses": loses} {
		ids := w.server(room, "one")
		leases[room] = opened[len(opened)-1]
		var work sync.WaitGroup
		for part := range 16 {
			work.Go(func() {
				// the rest is below the target, so a second lease follows
				for k := part * every; k < tags; k += 16 * every {
					if _, err := ids.Lease(bg, &marchv1.LeaseRequest{Tag: string(tagOf(k)), Count: 1}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		work.Wait()
		testcluster.Await(t, "all chains are full", func() bool {
			return leases[room].leases.Load() == int64(2*tags/every)
		})
	}
	size := func() (keys, bytes, layouts int) {
		answer := must(w.Open(w).Txn(bg,
			store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: "/march/default/",
				End: "/march/default0"}}}}}))(t)
		for _, kv := range answer.Got[0] {
			switch rest := strings.TrimPrefix(kv.Key, "/march/default/"); {
			case strings.HasPrefix(rest, "layouts/"), strings.HasPrefix(rest, "audit/"):
				layouts++
			case !strings.Contains(rest, "/loses"): // a room's own marks, and its eras
				keys, bytes = keys+1, bytes+len(kv.Key)+len(kv.Value)
			}
		}
		return keys, bytes, layouts
	}
	before := make(map[allocator.Room]int64)
	for room, etcd := range leases {
		before[room] = etcd.leases.Load()
	}
	keys, bytes, layouts := size()
	start := time.Now()
	for move := int64(1); move <= moves; move++ {
		from := must(w.Admin.Ledger.Refresh(bg))(t)
		to := allocator.Layout{Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{
			"same": {Lower: 0, Upper: 300}, "grows": {Lower: 300, Upper: 400 + 10*((move)/2)},
			"loses": {Lower: 700 + 10*((move+1)/2), Upper: 1000},
		}}
		made := must(w.Admin.ChangeLayout(bg, from, to, "test"))(t)
		testcluster.Await(t, "all report", func() bool {
			list, _, err := w.Admin.Instances(bg, "")
			done := err == nil && len(list) == 3
			for _, i := range list {
				done = done && i.Version == made.Layout.Version
			}
			return done
		})
	}
	took := time.Since(start)
	lost := leases["loses"].leases.Load() - before["loses"]
	for _, room := range []allocator.Room{"same", "grows"} {
		if n := leases[room].leases.Load() - before[room]; n != 0 {
			t.Errorf("%d leases by room %s, which lost nothing", n, room)
		}
	}
	nowKeys, nowBytes, nowLayouts := size()
	t.Logf("%d active tags in two rooms that lost nothing, %d in one that lost: %d moves in %v; leases: 0 wanted, "+
		"%d by the room that lost",
		tags, tags/loses, moves, took.Round(time.Millisecond), lost)
	t.Logf("without that room: %d keys and %d bytes, then %d and %d; %d keys of layouts and audit, then %d", keys,
		bytes, nowKeys, nowBytes, layouts, nowLayouts)
	if lost < int64(moves/2*tags/loses) {
		t.Errorf("%d leases by the room that lost: the test shows nothing", lost)
	}
	// The versions of the layout and of three reports have more digits now.
	if nowKeys != keys || nowBytes-bytes > 200 {
		t.Errorf("%d keys and %d bytes, then %d and %d", keys, bytes, nowKeys, nowBytes)
	}
	ledgertest.CheckCluster(w, w.Open(w), w.ClusterName, nil)
}
