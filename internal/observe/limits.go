package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
)

// Limit is a limit on how much of a server callers may use. All limits of the
// program use this type, so each has a metric and an error of the same form.
type Limit struct {
	name    string // the flag's name without --max-
	most    int64
	refused prometheus.Counter // nil without metrics
}

// Limit returns a limit, and adds metrics of it and of its refusals. m may be nil.
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
// names the objects that are too many.
func (l *Limit) Refuse(what string) error {
	l.Count()
	return allocator.OverLimit(what, l.most, l.name)
}

func newLimits() (limits *prometheus.GaugeVec, refused *prometheus.CounterVec) {
	limits = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "march_limit", Help: "The limits on how much callers may use, by the name of the flag that sets each " +
			"(--max-NAME).",
	}, []string{"limit"})
	refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "march_limit_refused_total", Help: "Refusals because a limit was reached, by limit.",
	}, []string{"limit"})
	return limits, refused
}
