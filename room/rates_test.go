package room_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

func TestRates(t *testing.T) {
	start := time.Unix(1e9, 0)
	var r room.Rates
	r.Start(start)
	for _, step := range []struct {
		after  time.Duration // since start
		issued int64         // in all
		want   []float64
	}{
		{time.Second, 100, []float64{100}},
		{2 * time.Second, 100, []float64{100, 0}},
		{2 * time.Second, 100, []float64{100, 0}},                // no time passed
		{5 * time.Second, 400, []float64{100, 0, 100, 100, 100}}, // it was late
		{6*time.Second - 200*time.Millisecond, 480, []float64{100, 0, 100, 100, 100, 100}},
	} {
		r.Note(start.Add(step.after), step.issued, 0)
		if diff := cmp.Diff(step.want, r.Get()); diff != "" {
			t.Fatalf("after %v (-want +got)\n%s", step.after, diff)
		}
	}
	// What callers lease, they take over the seconds that follow.
	r.Note(start.Add(7*time.Second), 480+10+3000, 3000)
	r.Note(start.Add(9*time.Second), 480+10+3000+20, 3000)
	if got := r.Get(); !cmp.Equal(got[6:], []float64{10/1.2 + 100, 110, 110}) {
		t.Errorf("after a lease of 3000: %v", got)
	}
	for second := range 60 {
		r.Note(start.Add(time.Duration(10+second)*time.Second), 480+10+3000+20, 3000)
	}
	if got := r.Get()[9:]; !cmp.Equal(got, append(slices.Repeat([]float64{100}, 27), make([]float64, 33)...)) {
		t.Errorf("after it: %v", got)
	}
	r.Note(start.Add(time.Hour), 480+10+3000+20, 3000)
	if diff := cmp.Diff(make([]float64, api.RatesKept), r.Get()); diff != "" {
		t.Errorf("after an hour (-want +got)\n%s", diff)
	}
}

// An instance that starts again holds IDs for some seconds at the rate before, which its journal shows. Before, it held
// min_step, IDs for a third of a second. A process that ends soon leaves less to the next one: a crash loop does not
// use up the space.
func TestARestartLeasesSecondsOfTheLastRate(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "idle")
		dir := t.TempDir()
		start := func() *instance {
			// Without what the process before kept: as after a crash.
			c.Corrupt(store.Op{Delete: "/march/default/kept/a/a1"})
			return c.start("a", "a1", func(cfg *room.Config) { cfg.Journal = dir })
		}
		const rate = 3000
		a := start()
		for range 60 {
			if _, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: rate}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		a.mustNext("idle")
		a.Stop()
		for n, want := range []struct{ least, most int64 }{{5 * rate, 20 * rate}, {1, 5 * rate}} {
			a = start()
			a.mustNext("order")
			a.mustNext("idle")
			if held := a.chain("order").GetHeld() + 1; held < want.least || held > want.most {
				t.Errorf("restart %d: the instance holds %d IDs, want %d to %d", n+1, held, want.least, want.most)
			}
			if held := a.chain("idle").GetHeld() + 1; held > 1000 {
				t.Errorf("restart %d: %d IDs of an idle tag", n+1, held)
			}
			a.Stop()
		}
	})
}
