package console

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// growing is an etcd whose database grows by a MiB an hour.
type growing struct {
	store.Store
	began time.Time
}

func (g growing) Status(ctx context.Context) (store.Status, error) {
	status, err := g.Store.Status(ctx)
	status.Size += int64(time.Since(g.began).Seconds() * (1 << 20) / 3600)
	return status, err
}

// A console that has run for long enough says when etcd is full. Before, no date was told of
// etcd and of workers.
func TestCapacityHasDates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		s := b.consoleOver(growing{b.Mem.Open(), time.Now()})
		ctx, stop := context.WithCancel(bg)
		var work sync.WaitGroup
		work.Go(func() { every(ctx, s.tend) })
		work.Go(func() { every(ctx, s.readEnds) })
		work.Go(func() { s.wantsTags.run(ctx, s.readTags) })
		defer func() { stop(); work.Wait() }()

		ask := func() map[marchv1.CapacityKind]*marchv1.Capacity {
			t.Helper()
			// the tags are read when they are asked for
			must(s.GetCapacity(bg, &marchv1.GetCapacityRequest{}))(t)
			time.Sleep(time.Second)
			answer, err := s.GetCapacity(bg, &marchv1.GetCapacityRequest{})
			if err != nil || answer.GetTagsAsOf() == nil {
				t.Fatalf("%v, %v", answer, err)
			}
			kinds := make(map[marchv1.CapacityKind]*marchv1.Capacity)
			for _, c := range answer.GetCapacity() {
				kinds[c.GetKind()] = c
			}
			return kinds
		}
		etcd, tags, ids := marchv1.CapacityKind_CAPACITY_KIND_ETCD, marchv1.CapacityKind_CAPACITY_KIND_TAGS,
			marchv1.CapacityKind_CAPACITY_KIND_IDS
		early := ask()
		if early[etcd] == nil || early[etcd].Growth != nil || early[ids].GetTag() != "t" {
			t.Errorf("at once: %v", early)
		}
		time.Sleep(8 * time.Hour)
		late := ask()
		// 1 MiB an hour is 291 bytes a second
		if c := late[etcd]; c.GetGrowth() < 250 || c.GetGrowth() > 330 || c.GetFull() == nil {
			t.Errorf("etcd: %v", c)
		}
		if c := late[tags]; c.Growth == nil || c.GetGrowth() != 0 || c.GetUsed() != 1 || c.GetOf() != 2_000_000 {
			t.Errorf("tags: %v", c)
		}
	})
}
