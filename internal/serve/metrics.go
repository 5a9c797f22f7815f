package serve

import (
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// Metrics is the registry of one server's metrics. Nothing is registered outside it, so a process may run several
// servers. Names begin with march_, but for what the libraries of Prometheus and of the gRPC ecosystem name: Go's
// runtime, the process, and calls. A time that was measured in a sampled trace has that trace as its exemplar. Every
// label's values come from a closed set: the methods and codes of the API, the Kinds of errors, the routes, and as many
// tags as an operator allows (package room).
type Metrics struct {
	registry *prometheus.Registry
	labelled prometheus.Registerer // puts the server's own labels on everything

	etcdSeconds  prometheus.Histogram
	etcdFailures *prometheus.CounterVec
	limits       *prometheus.GaugeVec
	refused      *prometheus.CounterVec
	auditFailed  *prometheus.CounterVec
}

// buckets are those of all histograms in seconds: a call that is answered from
// memory takes microseconds, a call that has to ask etcd milliseconds, and a call that
// waits for an absent etcd seconds.
var buckets = []float64{
	50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10,
}

// seconds returns the options of a histogram of times. It has the buckets above, and
// native ones for servers that scrape native histograms.
func seconds(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// NewMetrics returns the metrics of one server, with those that all servers have: of the
// program's build, its process and Go's runtime. Every metric has labels.
func NewMetrics(build string, labels prometheus.Labels) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.labelled = prometheus.WrapRegistererWith(labels, m.registry)
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "march_build_info", Help: "1; the labels have the version of the program.",
		ConstLabels: prometheus.Labels{"version": build, "go_version": runtime.Version()},
	})
	info.Set(1)
	m.etcdSeconds = prometheus.NewHistogram(seconds("march_etcd_transaction_seconds",
		"How long etcd took to answer a transaction, or to fail."))
	m.etcdFailures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "march_etcd_failures_total", Help: "Transactions that failed, by the kind of error.",
	}, []string{"kind"})
	m.etcdFailures.WithLabelValues(allocator.Unavailable.Error())
	m.limits = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "march_limit", Help: "The limits on how much callers may use, by the name of the flag that sets each " +
			"(--max-NAME).",
	}, []string{"limit"})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "march_limit_refused_total", Help: "Refusals because a limit was reached, by limit.",
	}, []string{"limit"})
	m.auditFailed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "march_audit_failed_total",
		Help: "Entries of the audit that could not be written, by where to: refusals to etcd, all to the log.",
	}, []string{"to"})
	m.auditFailed.WithLabelValues("etcd")
	m.auditFailed.WithLabelValues("log")
	m.Register(info, m.etcdSeconds, m.etcdFailures, m.limits, m.refused, m.auditFailed,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Register adds collectors. It panics where two have metrics of one name: a
// mistake in the program. m may be nil.
func (m *Metrics) Register(list ...prometheus.Collector) {
	if m != nil {
		m.labelled.MustRegister(list...)
	}
}

// Gatherer returns the metrics for reading.
func (m *Metrics) Gatherer() prometheus.Gatherer { return prometheus.GathererFunc(m.gather) }

// gather also shows the metrics that this version renamed under the names of the version before, which go with the next
// one.
func (m *Metrics) gather() ([]*dto.MetricFamily, error) {
	families, err := m.registry.Gather()
	for _, f := range families {
		name := formerly[f.GetName()]
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			name = "march_" + f.GetName()
		}
		if name == "" {
			continue
		}
		former := &dto.MetricFamily{Name: &name, Help: f.Help, Type: f.Type} //nolint:protogetter // pointers
		known := make(map[string]*dto.Counter)
		for _, m := range f.GetMetric() {
			m, _ = proto.Clone(m).(*dto.Metric)
			m.Label = formerLabels(m.GetLabel())
			labels := (&dto.Metric{Label: m.GetLabel()}).String()
			if c := known[labels]; c != nil { // of another status of the class
				*c.Value += m.GetCounter().GetValue()
				continue
			}
			known[labels] = m.GetCounter()
			former.Metric = append(former.Metric, m)
		}
		families = append(families, former)
	}
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, err
}

var formerly = map[string]string{
	"grpc_server_handled_total": "march_requests_total", "grpc_server_handling_seconds": "march_request_seconds",
	"http_requests_total": "march_http_requests_total", "http_request_duration_seconds": "march_http_request_seconds",
}

// formerLabels changes labels, which are in the order of their names, into those of the version before.
func formerLabels(labels []*dto.LabelPair) []*dto.LabelPair {
	method := ""
	labels = slices.DeleteFunc(labels, func(l *dto.LabelPair) bool {
		switch l.GetName() {
		case "grpc_code":
			*l.Name = "code"
		case "grpc_method":
			method = l.GetValue()
			return true
		case "grpc_service":
			*l.Name, *l.Value = "method", l.GetValue()+"/"+method
		case "grpc_type":
			return true
		case "handler":
			*l.Name = "route"
		case "code":
			*l.Name, *l.Value = "class", l.GetValue()[:1]+"xx"
		}
		return false
	})
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	return labels
}

// Transaction counts a transaction with etcd; it fits ledger.Config.Observe.
func (m *Metrics) Transaction(took time.Duration, err error) {
	m.etcdSeconds.Observe(took.Seconds())
	if err != nil {
		m.etcdFailures.WithLabelValues(allocator.KindOf(err).Error()).Inc()
	}
}

// AuditFailed counts an entry of the audit that could not be written to etcd or to the log. m may be nil.
func (m *Metrics) AuditFailed(to string) {
	if m != nil {
		m.auditFailed.WithLabelValues(to).Inc()
	}
}

// gauge is a metric that read returns.
func gauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
}

// Ledger adds the state of a ledger.
func (m *Metrics) Ledger(l *ledger.Ledger) {
	m.Register(
		gauge("march_etcd_last_contact_timestamp_seconds", "When etcd last answered; 0 before the first answer.",
			func() float64 {
				last := l.Contact().Last
				if last.IsZero() {
					return 0
				}
				return float64(last.UnixMilli()) / 1000
			}),
		gauge("march_etcd_away_seconds", "How long etcd has not answered; 0 while it does.", func() float64 {
			away := l.Contact().Away
			if away.IsZero() {
				return 0
			}
			return time.Since(away).Seconds()
		}),
		gauge("march_leasing_stopped", "1 while nothing may be leased: halted, or the layout in etcd is invalid.",
			func() float64 {
				if err := l.Leasable(); err == nil || allocator.KindOf(err) == allocator.Unavailable { // not read yet
					return 0
				}
				return 1
			}),
		gauge("march_layout_version", "The current layout's version, as this process knows it.", func() float64 {
			stored, _ := l.Layout()
			return float64(stored.Layout.Version)
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "march_regressions_total",
			Help: "How often this process saw etcd go back in time, or leasing halted."},
			func() float64 { return float64(l.Regressions()) }),
	)
}
