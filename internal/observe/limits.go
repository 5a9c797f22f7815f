package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
)

// Limit is a bound on what callers may take of a server. Each bound of the
// program is one, so each has a metric and an error of the same form.
type Limit struct {
	name    string // as the flag has it, without --max-
	most    int64
	refused prometheus.Counter // nil where nothing is measured
}

// Limit returns a limit, and shows it and what it refuses. m may be nil.
func (m *Metrics) Limit(name string, most int64) *Limit {
	l := &Limit{name: name, most: most}
	if m != nil {
		m.limits.WithLabelValues(name).Set(float64(most))
		l.refused = m.refused.WithLabelValues(name)
	}
	return l
}

// Most returns the bound.
func (l *Limit) Most() int64 { return l.most }

// Count counts a refusal.
func (l *Limit) Count() {
	if l.refused != nil {
		l.refused.Inc()
	}
}

// Refuse counts a refusal and returns the caller's error, which is TooMany. what
// says of which there are too many.
func (l *Limit) Refuse(what string) error {
	l.Count()
	return allocator.OverLimit(what, l.most, l.name)
}

func newLimits() (limits *prometheus.GaugeVec, refused *prometheus.CounterVec) {
	limits = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "march_limit", Help: "The limits on what callers may take, by the name of the flag that sets each (--max-NAME).",
	}, []string{"limit"})
	refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "march_limit_refused_total", Help: "What was refused because a limit was reached, by limit.",
	}, []string{"limit"})
	return limits, refused
}
