package room_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/api"
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
		r.Note(start.Add(step.after), step.issued)
		if diff := cmp.Diff(step.want, r.Get()); diff != "" {
			t.Fatalf("after %v (-want +got)\n%s", step.after, diff)
		}
	}
	r.Note(start.Add(time.Hour), 480)
	if diff := cmp.Diff(make([]float64, api.RatesKept), r.Get()); diff != "" {
		t.Errorf("after an hour (-want +got)\n%s", diff)
	}
}
