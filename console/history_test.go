package console_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestHistory: a console puts the histories of instances together, with the migrations. It
// names an instance that does not answer.
func TestHistory(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(testcluster.Halves(), "ann")
		c.Tag(nil, "ann", "order")
		var behind atomic.Int64 // how far the instances' clocks are behind: their minutes end when a test says so
		behind.Store(int64(time.Minute))
		clock := func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) }
		on := func(cfg *room.Config) {
			cfg.Ledger = c.LedgerOver(c.Open(t), func(cfg *ledger.Config) { cfg.Now = clock })
		}
		rooms := []*testcluster.Room{c.Room("a", "a1", on), c.Room("a", "a2", on), c.Room("b", "b1", on)}
		n := c.Console(nil)
		for _, r := range rooms {
			must(r.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: "order", Count: 6000}))(t)
		}
		get := func() *marchv1.GetHistoryResponse {
			t.Helper()
			r := must(n.GetHistory(t.Context(), &marchv1.GetHistoryRequest{Minutes: 10, Step: 5}))(t)
			return r
		}
		if r := get(); len(r.GetRooms()) != 2 || len(r.GetRooms()[0].GetAll().GetRates()) != 2 ||
			len(r.GetSilent()) != 0 {
			t.Fatalf("before a minute has ended: %v", r)
		}
		behind.Store(0)
		sum := func(r *marchv1.RoomHistory) (sum float32) {
			for _, v := range r.GetAll().GetRates() {
				sum += max(v, 0)
			}
			return sum
		}
		testcluster.Await(t, "the rates of both rooms", func() bool {
			rooms := get().GetRooms()
			return sum(rooms[1]) > 0 && sum(rooms[0]) > 1.5*sum(rooms[1]) // two instances
		})
		planned := must(n.PlanMigration(t.Context(), &marchv1.PlanMigrationRequest{Move: []string{"a:25-50=b"}}))(t)
		m := must(n.ApplyMigration(t.Context(), &marchv1.ApplyMigrationRequest{Plan: planned.GetPlan()}))(t)
		if _, err := c.Ledger().Join(t.Context(), ledger.Registration{Room: "b", Name: "gone", Address: "127.0.0.1:1",
			Hold: time.Minute}); err != nil {
			t.Fatal(err)
		}
		r := get()
		if r.GetStep() != 5 || r.GetFirst().AsTime().Unix()%300 != 0 {
			t.Errorf("points of %d minutes from %v on", r.GetStep(), r.GetFirst().AsTime())
		}
		if ms := r.GetMigrations(); len(ms) != 1 || ms[0].GetId() != m.GetMigration().GetId() ||
			ms[0].GetBegan() == nil {
			t.Errorf("migrations %v", r.GetMigrations())
		}
		if diff := cmp.Diff([]string{"b/gone"}, r.GetSilent()); diff != "" {
			t.Errorf("instances that did not answer (-want +got)\n%s", diff)
		}
		if _, err := n.GetHistory(t.Context(), &marchv1.GetHistoryRequest{Minutes: 10, Step: 3}); status.Code(
			err) != codes.InvalidArgument {
			t.Errorf("a step that does not divide the minutes: %v", err)
		}
	})
}
