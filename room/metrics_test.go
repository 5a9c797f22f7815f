package room_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// metrics returns the values of /metrics, by series.
func (i *instance) metrics() map[string]string {
	i.Helper()
	code, body := i.get("/metrics")
	if code != 200 {
		i.Fatalf("/metrics: %d, %s", code, body)
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil || len(problems) > 0 {
		i.Errorf("lint: %v, %v", problems, err)
	}
	values := make(map[string]string)
	for line := range strings.Lines(body) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && line[0] != '#' {
			values[name+"}"] = value
		}
	}
	return values
}

// Prometheus can read an instance's work and its IDs. The name of every metric begins
// with march_.
func TestMetrics(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) { s.MaxStep = s.MinStep }, "order")
		c.tag(func(s *record.TagSettings) { s.Limit = 4001 }, "small")
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		a.mustNext("order")
		a.mustNext("small")
		if _, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: 5}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.next("missing"); err == nil {
			t.Fatal("an ID of a tag that does not exist")
		}
		await(t, "refills to end", func() bool {
			n := a.metrics()[`march_refills_total{result="ok",room="a"}`]
			return n == "2" || n == "3" || n == "4"
		})
		got := a.metrics()
		refills, held, mark := "1", "993", "2001" // 1 to 49, 50 of each hundred after it, and 2000
		// on a slow machine the instance checks its chains meanwhile
		if got[`march_chain_refills_total{room="a",tag="order"}`] == "2" {
			refills, held, mark = "2", "1993", "4001"
		}
		used, limit := "0.5", "+Inf"
		if got[`march_chain_refills_total{room="a",tag="small"}`] == "2" { // and leases the rest
			used, limit = "1", "0"
		}
		for series, want := range map[string]string{
			`march_chains{room="a"}`:                                                           "2",
			`march_ready{room="a"}`:                                                            "1",
			`march_layout_version{room="a"}`:                                                   "1",
			`march_layout_served_version{room="a"}`:                                            "1",
			`march_leasing_stopped{room="a"}`:                                                  "0",
			`march_regressions_total{room="a"}`:                                                "0",
			`march_etcd_away_seconds{room="a"}`:                                                "0",
			`march_chain_issued_ids_total{room="a",tag="order"}`:                               "7",
			`march_chain_requests_total{room="a",tag="order"}`:                                 "3",
			`march_chain_held_ids{room="a",tag="order"}`:                                       held,
			`march_chain_excess_ids{room="a",tag="order"}`:                                     "0",
			`march_chain_step_ids{room="a",tag="order"}`:                                       "1000",
			`march_chain_refills_total{room="a",tag="order"}`:                                  refills,
			`march_chain_waits_total{room="a",tag="order"}`:                                    "1",
			`march_chain_dropped_ids_total{room="a",tag="order"}`:                              "0",
			`march_tag_mark{room="a",tag="order"}`:                                             mark,
			`march_tag_used_ratio{room="a",tag="small"}`:                                       used,
			`march_tag_limit_seconds{room="a",tag="small"}`:                                    limit,
			`march_chain_issued_ids_total{room="a",tag="(other)"}`:                             "0",
			`march_requests_total{code="OK",method="march.v1.IDService/Next",room="a"}`:        "3",
			`march_requests_total{code="NotFound",method="march.v1.IDService/Next",room="a"}`:  "1",
			`march_requests_total{code="OK",method="march.v1.IDService/Lease",room="a"}`:       "0",
			`march_request_seconds_count{method="march.v1.IDService/Next",room="a"}`:           "4",
			`march_refills_total{result="unavailable",room="a"}`:                               "0",
			`march_etcd_failures_total{kind="unavailable",room="a"}`:                           "0",
			`march_build_info{go_version="` + runtime.Version() + `",room="a",version="test"}`: "1",
		} {
			if got[series] != want {
				t.Errorf("%s: %q, want %q", series, got[series], want)
			}
		}
		for _, series := range []string{
			`march_chain_reserve_seconds{room="a",tag="order"}`, `march_etcd_last_contact_timestamp_seconds{room="a"}`,
			`march_etcd_transaction_seconds_count{room="a"}`, `process_resident_memory_bytes{room="a"}`,
			`go_goroutines{room="a"}`, `march_go_goroutines{room="a"}`,
		} {
			if got[series] == "" || got[series] == "0" {
				t.Errorf("%s: %q", series, got[series])
			}
		}
		for series := range got {
			name, _, _ := strings.Cut(series, "_")
			if name != "march" && name != "go" && name != "process" && name != "grpc" && name != "http" {
				t.Errorf("%s has no name of March, or of the libraries of Prometheus and gRPC", series)
			}
		}
	})
}

// Only a limited number of tags have series of their own. Every ID is counted in one series, and
// no counter falls when a tag gets or loses its own series.
func TestMetricsTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const limit, tags = 2, 6
		c := newCluster(t, testcluster.Halves())
		names := make([]allocator.Tag, tags)
		for i := range names {
			names[i] = allocator.Tag(fmt.Sprintf("t%d", i))
		}
		c.tag(nil, names...)
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.MetricsTags = limit })
		off := c.start("b", "b1", func(cfg *room.Config) { cfg.MetricsTags = 0 })
		issued := func(i *instance) (own map[string]int64, other int64) {
			own = make(map[string]int64)
			for series, value := range i.metrics() {
				if rest, ok := strings.CutPrefix(series, "march_chain_issued_ids_total"); ok {
					var n int64
					if _, err := fmt.Sscan(value, &n); err != nil {
						t.Fatal(err)
					}
					if strings.Contains(rest, `tag="(other)"`) {
						other = n
					} else {
						own[rest] = n
					}
				}
			}
			return own, other
		}
		var taken, least int64
		check := func() {
			t.Helper()
			own, other := issued(a)
			if len(own) > limit {
				t.Errorf("%d tags have series of their own: %v", len(own), own)
			}
			if other < least {
				t.Errorf("the others' counter fell from %d to %d", least, other)
			}
			least = other
		}
		sum := func() (all int64) {
			own, other := issued(a)
			for _, n := range own {
				all += n
			}
			return all + other
		}
		for _, name := range names {
			for range 3 {
				a.mustNext(string(name))
				taken++
			}
			off.mustNext(string(name))
			check()
		}
		if got := sum(); got != taken {
			t.Errorf("%d IDs in all series, %d were issued", got, taken)
		}
		if own, other := issued(off); len(own) != 0 || other != tags {
			t.Errorf("switched off: %v, others %d", own, other)
		}
		// A tag with a series of its own is deleted along with its count. Another tag takes its
		// place, from 0. The IDs of that tag that were counted before stay with the others.
		before, _ := issued(a)
		if err := c.Admin.DeleteTag(bg, "t0", "test"); err != nil {
			t.Fatal(err)
		}
		await(t, "the tag's chain to go", func() bool { return a.chain("t0") == nil })
		check()
		now, _ := issued(a)
		if len(before) != limit || len(now) != limit || now[`{room="a",tag="t0"}`] != 0 {
			t.Errorf("own series before %v, now %v", before, now)
		}
		for series, n := range now {
			if was, had := before[series]; !had && n != 0 || had && n != was {
				t.Errorf("%s: %d, before %d", series, n, was)
			}
		}
		for _, name := range names[1:] {
			a.mustNext(string(name))
			check()
		}
		if got := sum(); got != taken-3+tags-1 {
			t.Errorf("%d IDs in all series, want %d", got, taken-3+tags-1)
		}
	})
}

// The share that is used of a tag with a period is of the period that is now.
func TestUsedOfAPeriod(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) {
			s.Period = period.Period{Unit: period.Day, Digits: 4, Zone: "UTC"}
		}, "small")
		now, _, tomorrow := c.midnight(6 * time.Second)
		a := c.start("a", "a1", nil)
		if _, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "small", Count: 3000}); err != nil {
			t.Fatal(err)
		}
		used := func() float64 {
			text := a.metrics()[`march_tag_used_ratio{room="a",tag="small"}`]
			share, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatalf("used ratio %q: %v", text, err)
			}
			return share
		}
		before := used() // 3,000 IDs of half of 10,000
		if before < 0.55 || before > 1 {
			t.Errorf("before midnight %v of the period are used; want more than half", before)
		}
		for now().Before(tomorrow.Begins.Add(2 * time.Second)) {
			time.Sleep(10 * time.Millisecond)
		}
		a.mustNext("small")
		if after := used(); after <= 0 || after >= before {
			t.Errorf("after midnight %v of the period are used; want less than the %v of the day before", after, before)
		}
	})
}
