package room

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
)

// maxTagSeries is how many tags have metrics of their own: the busiest, so
// that a room with a million tags does not make a million series.
const maxTagSeries = 1000

// metrics are the chains' states as Prometheus reads them: computed when it
// asks, so that they cost nothing per ID.
type metrics struct {
	chains  *chains
	held    *prometheus.Desc
	reserve *prometheus.Desc
	step    *prometheus.Desc
	issued  *prometheus.Desc
	dropped *prometheus.Desc
	refills *prometheus.Desc
	waits   *prometheus.Desc
	count   *prometheus.Desc
}

func newMetrics(room allocator.Room, c *chains) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("march_"+name, help, labels, prometheus.Labels{"room": string(room)})
	}
	return &metrics{
		chains:  c,
		held:    desc("chain_held_ids", "IDs in memory, of the busiest tags.", "tag"),
		reserve: desc("chain_reserve_seconds", "How long the IDs in memory last at the recent peak rate, 7 days at most.", "tag"),
		step:    desc("chain_step_ids", "How many IDs the chain aims to hold.", "tag"),
		issued:  desc("chain_issued_ids_total", "IDs issued since the chain was made.", "tag"),
		dropped: desc("chain_dropped_ids_total", "IDs leased and never to be issued.", "tag"),
		refills: desc("chain_refills_total", "Segments leased.", "tag"),
		waits:   desc("chain_waits_total", "Callers that found nothing in memory and waited.", "tag"),
		count:   desc("chains", "Tags in memory."),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, out) }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	list := m.chains.byPeak()
	out <- prometheus.MustNewConstMetric(m.count, prometheus.GaugeValue, float64(len(list)))
	for _, t := range list[:min(len(list), maxTagSeries)] {
		s := t.chain.Status()
		for _, v := range []struct {
			desc  *prometheus.Desc
			kind  prometheus.ValueType
			value float64
		}{
			{m.held, prometheus.GaugeValue, float64(s.Held)},
			{m.reserve, prometheus.GaugeValue, s.Lasts.Seconds()},
			{m.step, prometheus.GaugeValue, float64(s.Target)},
			{m.issued, prometheus.CounterValue, float64(s.Issued)},
			{m.dropped, prometheus.CounterValue, float64(s.Dropped)},
			{m.refills, prometheus.CounterValue, float64(s.Refills)},
			{m.waits, prometheus.CounterValue, float64(s.Waits)},
		} {
			out <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value, string(t.tag))
		}
	}
}
