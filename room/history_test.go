package room_test

import (
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestHistory: an instance remembers its minutes, those of its busiest tags, and an outage of
// etcd.
func TestHistory(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.onTxn = func(store.Txn) { time.Sleep(time.Millisecond) } // the store in memory takes no time by itself
		// The instance's clock stands still but for whole minutes, so that no minute ends by itself.
		began := time.Now()
		var ahead atomic.Int64
		c.now = func() time.Time { return began.Add(time.Duration(ahead.Load())) }
		c.onTxn = func(store.Txn) { time.Sleep(time.Millisecond) } // a latency to remember
		c.tag(nil, "order", "idle", "cold")
		a := c.start("a", "a1", nil)
		from := marchv1.NewRoomServiceClient(a.Conn)
		last := func() (all, order *marchv1.HistorySeries) {
			t.Helper()
			r, err := from.GetInstanceHistory(t.Context(), &marchv1.GetInstanceHistoryRequest{Minutes: 5})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range r.GetTags() {
				if s.GetTag() != "order" {
					t.Fatalf("tag %s has a history", s.GetTag())
				}
				order = s
			}
			return r.GetAll(), order
		}
		// minute lets the instance's minute end.
		minute := func(what string, done func(all, order *marchv1.HistorySeries) bool) {
			t.Helper()
			ahead.Add(int64(time.Minute))
			a.await(what, func() bool { return done(last()) })
		}
		issue := func() {
			t.Helper()
			for range 3 { // a rate is measured in the course of seconds
				if _, err := a.NextBatch(t.Context(), batchRequest("order", 1000)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(600 * time.Millisecond)
			}
		}
		issue()
		minute("the tag's history begins", func(all, order *marchv1.HistorySeries) bool {
			return order != nil && all.GetRates()[4] > 0
		})
		issue()
		minute("a minute of the tag", func(all, order *marchv1.HistorySeries) bool {
			return all.GetRates()[4] > 30 && order.GetRates()[4] > 30 && order.GetReserves()[4] >= 0 &&
				all.GetReserves()[4] >= 0 &&
				all.GetEtcdLatencies()[4] > 0 && all.GetFailed()[4] == 0 && all.GetEtcdAway()[4] == 0
		})

		c.Mem.Stop()
		if _, err := a.next("cold"); status.Code(err) != codes.Unavailable {
			t.Fatalf("a cold tag while etcd is away: %v", err)
		}
		time.Sleep(1100 * time.Millisecond)
		minute("the outage", func(all, order *marchv1.HistorySeries) bool {
			return all.GetFailed()[4] == 1 && all.GetEtcdAway()[4] >= 1 &&
				order.GetFailed()[4] == 0 && all.GetRates()[4] == 0
		})
		c.Mem.Start()
		if _, err := a.next("no-such-tag"); err == nil {
			t.Fatal("a tag that does not exist was asked for, and there was an ID")
		}
		minute("a caller's mistake is no failed call", func(all, _ *marchv1.HistorySeries) bool {
			return all.GetFailed()[3] == 1 && all.GetFailed()[4] == 0
		})

		_, err := from.GetInstanceHistory(t.Context(), &marchv1.GetInstanceHistoryRequest{Minutes: 2000})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("2000 minutes: %v", err)
		}
	})
}
