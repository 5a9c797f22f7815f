package access

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/throttle"
	"github.com/march-id/march/internal/words"
)

const (
	// tellEvery is how often refusals are written to the log and to the audit.
	tellEvery = 10 * time.Second
	// maxSources bounds the proven subjects with refusals of their own; all further ones are one source.
	maxSources = 256
	// maxKinds bounds the different refusals of one source that wait; further ones are counted together.
	maxKinds = 8
	// A source has burst entries at once, and then one in each pace.
	burst, pace = 8, time.Minute
	// maxShown bounds a text of a caller in a refusal, in bytes.
	maxShown = 128
)

// Several stands for the addresses of refusals that were counted together.
const Several = "several addresses"

// The subjects of a caller with a proof that was refused, and of those beyond maxSources.
const unknown, otherSubjects = "unknown", "other subjects"

// Refusal is what was refused of one caller, for one reason.
type Refusal struct {
	// Subject is the proven subject, or anonymous or unknown.
	Subject string
	// Address is the caller's, of IPv6 its network of 64 bits, or Several.
	Address string
	// Call and Tag are what was asked for; empty if it was not one call, or one tag. A caller's text that is no
	// tag is in quotes, and cut.
	Call, Tag string
	Why       allocator.Kind
	// Times is how often it came since it was last told.
	Times int
}

// source has the refusals of one proven subject, or of all callers that proved nothing.
type source struct {
	budget *rate.Limiter
	waits  []*Refusal // the oldest first
}

// refusals gathers what was refused, so that no caller can fill the log or the audit, or hide the refusals of
// another one.
type refusals struct {
	mu struct {
		sync.Mutex
		by    map[string]*source // by subject; empty for callers that proved nothing
		taken time.Time          // when they were last taken
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
	r := Refusal{Subject: words.Plain(subject, maxShown), Address: network(addressOf(ctx)),
		Tag: words.Plain(tag, maxShown), Why: kind, Times: 1}
	if call != nil {
		r.Call = call.Name()
	}
	l := &g.refusals
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(r)
}

// Network returns the address for which a caller is counted: an IPv4 address, or of IPv6 the network of 64 bits, as
// one machine has all addresses of it.
func Network(at netip.Addr) netip.Addr {
	at = at.Unmap().WithZone("")
	if within, err := at.Prefix(64); err == nil && at.Is6() {
		return within.Addr()
	}
	return at
}

// network is Network of a text.
func network(address string) string {
	if at, err := netip.ParseAddr(address); err == nil {
		return Network(at).String()
	}
	return address
}

// add counts a refusal, perhaps with others. The lock is held.
func (l *refusals) add(r Refusal) {
	name := r.Subject
	switch {
	case name == unknown || name == policy.Anonymous:
		name = ""
	case l.mu.by[name] == nil && len(l.mu.by) >= maxSources:
		name, r.Subject = otherSubjects, otherSubjects
	}
	if l.mu.by == nil {
		l.mu.by = make(map[string]*source)
	}
	s := l.mu.by[name]
	if s == nil {
		s = &source{budget: rate.NewLimiter(rate.Every(pace), burst)}
		l.mu.by[name] = s
	}
	if s.count(&r, name == "") {
		return
	}
	if len(s.waits) >= maxKinds {
		r.Address, r.Call, r.Tag = Several, "", ""
		if s.count(&r, false) {
			return
		}
	}
	s.waits = append(s.waits, &r)
}

// count adds a refusal to one that waits and differs in nothing but what the caller chose, and reports whether there
// is one. Of a caller that proved nothing that is the call, too.
func (s *source) count(r *Refusal, anyCall bool) bool {
	for _, w := range s.waits {
		if w.Subject != r.Subject || w.Address != r.Address || w.Why != r.Why || w.Call != r.Call && !anyCall {
			continue
		}
		if w.Times += r.Times; w.Call != r.Call {
			w.Call = ""
		}
		if w.Tag != r.Tag {
			w.Tag = ""
		}
		return true
	}
	return false
}

// take returns the refusals that it is time to tell, those of proven subjects first.
func (l *refusals) take(now time.Time) (list []Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.mu.taken) < tellEvery {
		return nil
	}
	l.mu.taken = now
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(l.mu.by))) { // the empty one last
		s := l.mu.by[name]
		for len(s.waits) > 0 && s.budget.AllowN(now, 1) {
			list, s.waits = append(list, *s.waits[0]), s.waits[1:]
		}
		if len(s.waits) == 0 && s.budget.TokensAt(now) >= burst {
			delete(l.mu.by, name)
		}
	}
	return list
}

// drain tells what was refused. Refusals that audit does not take wait for the next time.
func (g *Gate) drain(ctx context.Context, now time.Time, audit func(context.Context, Refusal) error) {
	l := &g.refusals
	list := l.take(now)
	for k, r := range list {
		if err := audit(ctx, r); err != nil && ctx.Err() == nil {
			l.line.Log(now, g.log.Warn, "refused attempt not in the audit", "error", err)
			l.again(list[k:])
			return
		}
		g.log.Warn("refused", "subject", r.Subject, "from", r.Address, "call", r.Call,
			"tag", r.Tag, "why", r.Why.Error(), "times", r.Times)
	}
}

// again has refusals wait once more.
func (l *refusals) again(list []Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range list {
		l.add(r)
	}
}

// metrics are the gate's metrics.
type metrics struct {
	refusals *prometheus.CounterVec
	bad, at  prometheus.Gauge
}

// ShowMetrics shows the metrics of a server without a policy, so that alerts can rest on them.
func ShowMetrics(register func(...prometheus.Collector)) { newMetrics(register) }

func newMetrics(register func(...prometheus.Collector)) *metrics {
	m := &metrics{
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
		m.refusals.WithLabelValues(kind.Error())
	}
	if register != nil {
		register(m.refusals, m.bad, m.at)
	}
	return m
}

func (m *metrics) refused(kind allocator.Kind) { m.refusals.WithLabelValues(kind.Error()).Inc() }

func (m *metrics) loaded(at time.Time) { m.at.Set(float64(at.Unix())) }
