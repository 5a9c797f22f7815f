package room

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// timeMetrics are the metrics of time-ordered IDs, all tags together, and of their workers.
type timeMetrics struct {
	tags, asked, issued, overflows, waited, rollbacks, ahead *prometheus.Desc
	window, exchanges, conflicts, lent, clock                *prometheus.Desc
}

func newTimeMetrics() *timeMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("march_"+name, help, labels, nil)
	}
	return &timeMetrics{
		tags:   desc("time_tags", "Tags of time-ordered IDs in memory."),
		asked:  desc("time_requests_total", "Requests for time-ordered IDs, failed ones included."),
		issued: desc("time_issued_ids_total", "Time-ordered IDs issued."),
		overflows: desc("time_overflows_total",
			"Callers that found a tick's sequence full, and waited for a later tick."),
		waited:    desc("time_overflow_wait_seconds_total", "How long these callers waited in total."),
		rollbacks: desc("time_rollbacks_total", "How often the clock was behind the last ID."),
		ahead: desc("time_ahead_seconds",
			"How far IDs are ahead of the clock now, for tags that go on ahead of a clock that went back."),
		window: desc("worker_window_seconds",
			"How long the window of the instance's worker lasts, by the worker's bits; 0 if IDs cannot be issued.",
			"bits"),
		exchanges: desc("worker_exchanges_total",
			"Workers that were exchanged because a layout took them away or another process had them."),
		conflicts: desc("worker_conflicts_total",
			"Workers that another process was found to have, and that were exchanged for that."),
		clock: desc("worker_clock_ahead_seconds", "How far the clock was ahead of the median of the instances', at "+
			"least, when a window was last taken or renewed; negative where it was behind."),
		lent: desc("worker_clients", "Workers that clients' processes have, by the worker's bits.", "bits"),
	}
}

func (m *timeMetrics) describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.tags, m.asked, m.issued, m.overflows, m.waited, m.rollbacks, m.ahead,
		m.window, m.exchanges, m.conflicts, m.clock, m.lent} {
		out <- d
	}
}

// send sends the metrics of some tags, and of the workers.
func (m *timeMetrics) send(out chan<- prometheus.Metric, tags int, t totals, ahead time.Duration, w workersStatus) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	}
	send(m.tags, prometheus.GaugeValue, float64(tags))
	send(m.asked, prometheus.CounterValue, float64(t.asked))
	send(m.issued, prometheus.CounterValue, float64(t.issued))
	send(m.overflows, prometheus.CounterValue, float64(t.overflows))
	send(m.waited, prometheus.CounterValue, t.overflowed.Seconds())
	send(m.rollbacks, prometheus.CounterValue, float64(t.rollbacks))
	send(m.ahead, prometheus.GaugeValue, ahead.Seconds())
	send(m.exchanges, prometheus.CounterValue, float64(w.exchanges))
	send(m.conflicts, prometheus.CounterValue, float64(w.conflicts))
	send(m.clock, prometheus.GaugeValue, w.clockAhead.Seconds())
	for bits, remaining := range w.remaining {
		send(m.window, prometheus.GaugeValue, remaining.Seconds(), strconv.Itoa(bits))
	}
	for bits, n := range w.lent {
		send(m.lent, prometheus.GaugeValue, float64(n), strconv.Itoa(bits))
	}
}
