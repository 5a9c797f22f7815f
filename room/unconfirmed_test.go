package room_test

import (
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestRequiredJournal: if a cluster requires journals, the first instance of a new cluster
// starts by itself, with its tags warmed. An instance that starts later without a journal
// issues nothing and says why, until an operator confirms it.
func TestRequiredJournal(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		if _, err := c.Admin.UpdateSettings(bg, func(s *record.ClusterSettings) error {
			s.RequireJournal = true
			return nil
		}, "ann"); err != nil {
			t.Fatal(err)
		}
		warm := func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order"} }
		a := c.start("a", "a1", warm)
		mine := &issued{TB: t, room: "a", tag: "order"}
		for range 3_000 {
			mine.addID(a.mustNext("order"))
		}
		a.Cancel()
		if err := a.Wait(); err != nil {
			t.Error(err)
		}
		late := c.launch("a", "a2", nil)
		late.await("registered", func() bool { return c.registered("a", "a2") != nil })
		var err error
		late.await("answering", func() bool {
			_, err = late.next("order")
			return err != nil && !contains(err.Error(), "starting")
		})
		if code, _ := reason(err); code != codes.Unavailable ||
			!contains(err.Error(), "a/a2 started without its journal", "`march instance confirm a a2`",
				"`march recover`") {
			t.Errorf("without its journal: %v", err)
		}
		if code, body := late.get("/readyz?verbose"); code != http.StatusServiceUnavailable ||
			!contains(body, "[-]counters failed: it holds no IDs, and instance a/a2 started without its journal") {
			t.Errorf("readyz: %d %s", code, body)
		}
		client := marchv1.NewRoomServiceClient(late.Conn)
		if r, err := client.GetInstance(bg, &marchv1.GetInstanceRequest{}); err != nil ||
			!contains(r.GetStatus().GetNotReady(), "march instance confirm") {
			t.Errorf("status: %+v, %v", r, err)
		}
		between := &lateStore{Store: c.store(), key: "/rooms/a/a2"}
		between.next(func() { // the instance writes its registration again, as under a new epoch
			was := c.registered("a", "a2").RegistrationKV
			c.Corrupt(store.OpPut(was.Key, was.Value))
		})
		if err := admin.New(c.LedgerOver(between, nil), admin.DefaultConfig()).
			ConfirmInstance(bg, "a", "a2", "ann"); err != nil {
			t.Fatal(err)
		}
		late.await("issuing", func() bool {
			id, err := late.next("order")
			if err == nil {
				mine.addID(id)
			}
			return err == nil
		})
	})
}
