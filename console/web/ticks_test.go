package web_test

import (
	"strings"
	"testing"
)

// TestTicks: of edges that are close, the one that moves has the label.
func TestTicks(t *testing.T) {
	w := newWorld(t, 1000, "a", "b", "c")
	at, _ := w.console("")
	_, page := get(t,
		at+"/migrations?boundary=1000&room=a&lower=0&upper=333&room=c&lower=333&upper=380&room=b&lower=380&upper=1000")
	_, ticks, _ := strings.Cut(page, `class="ticks"`)
	ticks, _, _ = strings.Cut(ticks, "</svg>")
	if !strings.Contains(ticks, ">380<") || strings.Contains(ticks, ">333<") {
		t.Errorf("the labels are %s, want 380 and not 333", ticks)
	}
}
