package room_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// What an instance holds can be read by Prometheus: how long each chain lasts
// among it.
func TestMetrics(t *testing.T) {
	c := newCluster(t, halves())
	c.tag(nil, "order")
	a := c.start("a", "a1", nil)
	a.mustNext("order")
	code, body := a.get("/metrics")
	for _, want := range []string{
		`march_chain_reserve_seconds{room="a",tag="order"}`,
		`march_chain_issued_ids_total{room="a",tag="order"} 1`,
		`march_chain_step_ids{room="a",tag="order"} 1000`,
		`march_chains{room="a"} 1`,
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("/metrics: %d, %q, want %s", code, body, want)
		}
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
