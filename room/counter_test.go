package room_test

import (
	"testing"
	"time"

	"github.com/march-id/march/room"

	"github.com/march-id/march/internal/testcluster"
)

func TestGrowth(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		start := time.Unix(1e9, 0)
		var g room.Growth
		if got := g.Rate(start, 100); got != 0 {
			t.Errorf("%v before any segment", got)
		}
		last := int64(0)
		for _, step := range []struct {
			after time.Duration // since start
			last  int64         // the end of a leased segment; 0 for none
			want  float64       // the rate then
		}{
			{0, 1000, 0},
			{time.Second, 2000, 0}, // too early to say
			{9 * time.Minute, 0, 0},
			{1000 * time.Second, 0, 1},   // 2000 - 1000 in 1000 s
			{2000 * time.Second, 0, 0.5}, // it slows down by itself
			{time.Hour, 37000, 10},       // and speeds up: 36000 in an hour
			{2 * time.Hour, 109000, 20},  // looks back to the hour before, not to the start
			{4 * time.Hour, 0, 72000. / 3 / 3600},
			{4*time.Hour + 1, 50, 0}, // the rate is never negative
		} {
			now := start.Add(step.after)
			if step.last != 0 {
				g.Note(now, step.last)
				last = step.last
			}
			if got := g.Rate(now, last); got != step.want {
				t.Errorf("after %v: %v, want %v", step.after, got, step.want)
			}
		}
	})
}
