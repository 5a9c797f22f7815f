package throttle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/march-id/march/internal/throttle"
)

func TestLine(t *testing.T) {
	var got []string
	say := func(msg string, args ...any) { got = append(got, fmt.Sprint(append([]any{msg}, args...))) }
	var line throttle.Log
	start := time.Unix(1e9, 0)
	for _, after := range []time.Duration{0, 0, 3 * time.Second, throttle.Interval - 1, throttle.Interval,
		2*throttle.Interval - 1, 2 * throttle.Interval, time.Hour} {
		before := len(got)
		if said := line.Log(start.Add(after), say, "away", "after", after); said != (len(got) > before) {
			t.Errorf("after %v it returned %v", after, said)
		}
	}
	want := []string{
		"[away after 0s]",
		"[away after 10s left_out 3]",
		"[away after 20s left_out 1]",
		"[away after 1h0m0s]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
