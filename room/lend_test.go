package room_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// nonce returns a caller's nonce.
func nonce(text string) string { return text + strings.Repeat(".", api.MinNonce) }

// lend asks for a window of a tag. held is nil for a worker that the caller does not have yet.
func (i *instance) lend(tag, number string, held *marchv1.HeldWorker) (*marchv1.WorkerWindow, error) {
	answer, err := i.Lease(bg, &marchv1.LeaseRequest{Tag: tag, Count: 1,
		Window: &marchv1.WindowRequest{Nonce: nonce(number), Held: held}})
	return answer.GetTime().GetWindow(), api.FromStatus(err)
}

func (i *instance) mustLend(tag, number string, held *marchv1.HeldWorker) *marchv1.WorkerWindow {
	i.Helper()
	w, err := i.lend(tag, number, held)
	if err != nil {
		i.Fatal(err)
	}
	return w
}

// A caller that takes windows gets a worker of the upper half of the room's slice, and
// goes on with it by showing the nonce of its last request. A nonce counts once, so a
// clone gets another worker.
func TestLend(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event", "other")
		c.tag(nil, "order")
		a := c.start("a", "a1", nil)
		lease := func(tag string, w *marchv1.WindowRequest) (*marchv1.LeaseResponse, error) {
			answer, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: tag, Count: 10, Window: w})
			return answer, api.FromStatus(err)
		}
		if _, err := lease("event", nil); allocator.KindOf(err) != allocator.Refused || api.NoWindow(err) {
			t.Errorf("a caller that knows segments only: %v", err)
		}
		if answer, err := lease("order", &marchv1.WindowRequest{Nonce: nonce("1")}); err != nil ||
			answer.GetTime() != nil || answer.GetSegment().GetCount() != 10 {
			t.Errorf("a counter: %v, %v", answer, err)
		}
		answer, err := lease("event", &marchv1.WindowRequest{})
		if err != nil || answer.GetTime().GetWindow() != nil || answer.GetSegment() != nil {
			t.Fatalf("settings only: %v, %v", answer, err)
		}
		cfg, err := api.TimeTagFromProto(answer.GetTime().GetTag())
		if err != nil || cfg.Layout != cosid || cfg.Rollback != timeid.Wait || cfg.MaxWait != timeid.DefaultMaxWait {
			t.Errorf("settings %+v, %v", cfg, err)
		}
		for says, w := range map[string]*marchv1.WindowRequest{
			"nonce: 5 characters; allowed: 16 to 64":  {Nonce: "short"},
			"nonce: 65 characters; allowed: 16 to 64": {Nonce: strings.Repeat("n", 65)},
			"age: -1s; allowed: 0s or more":           {Nonce: nonce("1"), Age: durationpb.New(-time.Second)},
		} {
			if _, err := lease("event", w); allocator.KindOf(err) != allocator.Invalid ||
				!strings.Contains(err.Error(), says) {
				t.Errorf("%v, want %s", err, says)
			}
		}

		first := a.mustLend("event", "1", nil)
		if n := first.GetWorker(); n < 256 || n >= 512 {
			t.Errorf("worker %d of a, whose callers have [256, 512)", n)
		}
		if now := time.Now().UnixMilli(); first.GetUntilMs() <= now || first.GetFromMs() > now ||
			first.GetNowMs() > now ||
			first.GetRoom() != "a" || first.GetInstance() != "a1" {
			t.Errorf("window %v at %d", first, now)
		}
		held := &marchv1.HeldWorker{Worker: first.GetWorker(), Nonce: nonce("1")}
		// Another tag of the width goes on with the same worker. The window is not due yet.
		if w := a.mustLend("other", "2", held); w.GetWorker() != first.GetWorker() ||
			w.GetFromMs() != first.GetFromMs() ||
			w.GetUntilMs() != first.GetUntilMs() {
			t.Errorf("got %v, want %v", w, first)
		}
		if w := a.mustLend("event", "clone", held); w.GetWorker() == first.GetWorker() {
			t.Errorf("a clone got worker %d, too", w.GetWorker())
		}
		proof, k := nonce("2"), 0
		a.await("the window renewed", func() bool {
			k++
			next := fmt.Sprint("more ", k)
			w := a.mustLend("event", next, &marchv1.HeldWorker{Worker: first.GetWorker(), Nonce: proof})
			if w.GetWorker() != first.GetWorker() || w.GetFromMs() != first.GetFromMs() {
				t.Fatalf("got %v, want more of %v", w, first)
			}
			proof = nonce(next)
			return w.GetUntilMs() > first.GetUntilMs()
		})
		if _, body := a.get("/metrics"); !strings.Contains(body, `march_worker_clients{bits="10"`) {
			t.Error("no metric of clients' workers")
		}
		// The instance's own worker is another one.
		if p := partsOf(t, cosid, a.mustNext("event")); p.Worker == first.GetWorker() {
			t.Errorf("the instance has worker %d, too", p.Worker)
		}

		// A process that comes after it does not know the caller.
		a.Cancel()
		if err := a.Wait(); err != nil {
			t.Fatal(err)
		}
		a = c.start("a", "a1", nil)
		if w := a.mustLend("event", "3", &marchv1.HeldWorker{Worker: first.GetWorker(), Nonce: proof}); w.GetWorker() ==
			first.GetWorker() {
			t.Errorf("worker %d again, of which the window had not ended", w.GetWorker())
		}
	})
}

// When no worker for callers is left, the refusal says that Next issues IDs.
func TestLendsNoneWhenAllAreTaken(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		narrow := timeid.Layout{TimeBits: 41, WorkerBits: 2, SequenceBits: 12, Unit: time.Millisecond,
			Epoch: timeid.EpochCosId}
		c.tag(timed(narrow), "event")
		a, none := c.start("a", "a1", nil), c.start("b", "b1", func(cfg *room.Config) { cfg.ClientWorkers = -1 })
		if w := a.mustLend("event", "1", nil); w.GetWorker() != 1 {
			t.Errorf("worker %d, want 1", w.GetWorker())
		}
		for _, i := range []*instance{a, none} {
			_, err := i.lend("event", "2", nil)
			if allocator.KindOf(err) != allocator.TooMany || !api.NoWindow(err) ||
				!strings.Contains(err.Error(), "--client-workers") {
				t.Errorf("room %s: %v, kind %v, no window: %v", i.In, err, allocator.KindOf(err), api.NoWindow(err))
			}
			i.mustNext("event")
			if code, body := i.get("/readyz"); code != http.StatusOK {
				t.Errorf("room %s is not ready: %s", i.In, body)
			}
		}
	})
}

// A worker that a layout takes out of the room's slice does not go on: the caller gets
// one of the new slice.
func TestLendAfterMove(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(timed(cosid), "event")
		a := c.start("a", "a1", nil)
		first := a.mustLend("event", "1", nil)
		version := c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 10},
			"b": {Lower: 50, Upper: 100}}), "test")
		a.await("the layout served", func() bool {
			r := c.registered("a", "a1")
			return r != nil && r.Version == version
		})
		w := a.mustLend("event", "2", &marchv1.HeldWorker{Worker: first.GetWorker(), Nonce: nonce("1")})
		if n := w.GetWorker(); n < 51 || n >= 103 {
			t.Errorf("worker %d, want one of [51, 103)", n)
		}
	})
}
