package skew_test

import (
	"testing"
	"time"

	"github.com/march-id/march/internal/skew"
)

func TestClocks(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	after := since.Add(10 * time.Second)
	for name, c := range map[string]struct {
		clock skew.Clock
		want  time.Time
	}{
		"right":   {skew.Clock{}, after},
		"ahead":   {skew.Clock{Since: since, Ahead: time.Hour}, after.Add(time.Hour)},
		"back":    {skew.Clock{Since: since, Ahead: -time.Hour}, after.Add(-time.Hour)},
		"frozen":  {skew.Clock{Since: since, Gains: -time.Second}, since},
		"double":  {skew.Clock{Since: since, Gains: time.Second}, after.Add(10 * time.Second)},
		"sprints": {skew.Clock{Since: since, Ahead: -time.Minute, Gains: time.Second}, after.Add(-50 * time.Second)},
	} {
		if got := c.clock.At(after); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	jumping := skew.Clock{Jumps: time.Second}
	distinct := make(map[time.Time]bool)
	for range 100 {
		shown := jumping.At(after)
		if off := shown.Sub(after); off < -time.Second || off > time.Second {
			t.Errorf("jumping: off by %v", off)
		}
		distinct[shown] = true
	}
	if len(distinct) < 90 {
		t.Errorf("jumping: %d times of 100 looks", len(distinct))
	}
}
