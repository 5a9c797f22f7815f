// Package clientprom shows a client's metrics to Prometheus.
package clientprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/api/client"
)

type collector struct {
	client  *client.Client
	metrics []client.Metric
	descs   []*prometheus.Desc // in the order of metrics
}

// New returns a collector of a client's metrics, with the label tag: registry.MustRegister(clientprom.New(ids)). For
// several clients in one registry, give each a label: prometheus.WrapRegistererWith.
func New(c *client.Client) prometheus.Collector {
	all := &collector{client: c, metrics: client.Metrics()}
	for _, m := range all.metrics {
		all.descs = append(all.descs, prometheus.NewDesc(m.Name, m.Help, []string{"tag"}, nil))
	}
	return all
}

func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		descs <- d
	}
}

func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	for _, s := range c.client.Status() {
		for i, m := range c.metrics {
			kind := prometheus.GaugeValue
			if m.Counter {
				kind = prometheus.CounterValue
			}
			metrics <- prometheus.MustNewConstMetric(c.descs[i], kind, m.Of(s), string(s.Tag))
		}
	}
}
