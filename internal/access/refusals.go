package access

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/throttle"
)

const (
	// maxRefusals bounds the refusals that wait to be told, each with how often it came.
	maxRefusals = 16
	// tellEvery is how often they are told.
	tellEvery = 10 * time.Second
)

// Refusal is an attempt that was refused.
type Refusal struct {
	Subject, Address, Call, Tag string
	Why                         allocator.Kind
	// Times is how often it came since it was last told.
	Times int
}

// refusals gathers what was refused, so that no caller can fill the log or the audit.
type refusals struct {
	mu struct {
		sync.Mutex
		by   map[Refusal]int // with Times 0
		more int             // those of others
		told time.Time
	}
	line throttle.Log
}

// refused counts a refused attempt. Refusals because of a quota are only counted: the audit
// is about rights.
func (g *Gate) refused(ctx context.Context, subject string, call *policy.Call, tag string, err error) {
	kind := allocator.KindOf(err)
	g.metrics.refused(kind)
	if kind != allocator.Denied && kind != allocator.Unauthenticated {
		return
	}
	r := Refusal{Subject: bounded(subject), Tag: bounded(tag), Why: kind, Address: addressOf(ctx)}
	if call != nil {
		r.Call = call.Name()
	}
	l := &g.refusals
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.by == nil {
		l.mu.by = make(map[Refusal]int)
	}
	if _, known := l.mu.by[r]; known || len(l.mu.by) < maxRefusals {
		l.mu.by[r]++
		return
	}
	l.mu.more++
}

func bounded(s string) string { return s[:min(len(s), 128)] }

// take empties the list if it is time to tell it again. It returns what the list had.
func (l *refusals) take(now time.Time) (by map[Refusal]int, more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.mu.told) < tellEvery || len(l.mu.by) == 0 {
		return nil, 0
	}
	by, more = l.mu.by, l.mu.more
	l.mu.by, l.mu.more, l.mu.told = nil, 0, now
	return by, more
}

// drain tells what was refused.
func (l *refusals) drain(ctx context.Context, now time.Time, log hclog.Logger,
	audit func(context.Context, Refusal) error) {
	by, more := l.take(now)
	for r, times := range by {
		r.Times = times
		log.Warn("refused", "subject", r.Subject, "from", r.Address, "call", r.Call, "tag", r.Tag, "why",
			r.Why.Error(), "times", r.Times)
		if audit == nil {
			continue
		}
		if err := audit(ctx, r); err != nil && ctx.Err() == nil {
			l.line.Log(now, log.Warn, "refused attempt not in the audit", "error", err)
		}
	}
	if more > 0 {
		log.Warn("refused others, too", "times", more)
	}
}

// metrics are the gate's metrics; nil for none.
type metrics struct {
	refusals *prometheus.CounterVec
	bad      prometheus.Gauge
	at       prometheus.Gauge
}

// ShowMetrics adds the metrics of a server without a policy, so that alerts can rest on them.
func ShowMetrics(m *observe.Metrics) { newMetrics(m) }

func newMetrics(m *observe.Metrics) *metrics {
	if m == nil {
		return nil
	}
	g := &metrics{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "march_access_refused_total",
			Help: "Calls that were refused for want of an identity, a right or a quota, by reason.",
		}, []string{"reason"}),
		bad: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "march_access_broken", Help: "1 if the policy, or another file of rights, is broken, " +
				"so that the last good one is in force.",
		}),
		at: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "march_access_loaded_timestamp_seconds",
			Help: "When the policy and the other files of rights in force were read.",
		}),
	}
	for _, kind := range []allocator.Kind{allocator.Denied, allocator.Unauthenticated, allocator.TooMany} {
		g.refusals.WithLabelValues(kind.Error())
	}
	m.Register(g.refusals, g.bad, g.at)
	return g
}

func (m *metrics) refused(kind allocator.Kind) {
	if m != nil {
		m.refusals.WithLabelValues(kind.Error()).Inc()
	}
}

func (m *metrics) loaded(at time.Time) {
	if m != nil {
		m.at.Set(float64(at.Unix()))
	}
}

func (m *metrics) broken(is bool) {
	if m == nil {
		return
	}
	m.bad.Set(0)
	if is {
		m.bad.Set(1)
	}
}
