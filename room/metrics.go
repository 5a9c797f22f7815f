package room

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
)

// MaxMetricsTags bounds Config.MetricsTags.
const MaxMetricsTags = 100_000

// otherTags is the tag label's value in the series of all tags that have none
// of their own. No tag is named so.
const otherTags = "(other)"

// metrics are the chains' states as Prometheus reads them: computed when it
// asks, so that they cost nothing per ID.
//
// At most limit tags have series of their own, the busiest first; a tag that
// has one keeps it for as long as it is in memory. The others are one series
// together: the sum of what can be added, the least reserve and time to the
// limit. Each ID is counted in one series only, once and for all: counters do
// not fall when a tag gets or loses its own.
type metrics struct {
	server  *Server
	limit   int
	results *prometheus.CounterVec
	behind  prometheus.Counter

	mu struct {
		sync.Mutex
		own  map[*counted]totals // with what was counted among the others before
		past totals              // what the own series showed of chains that are gone
	}

	chains, ready, served                  *prometheus.Desc
	held, reserve, step                    *prometheus.Desc
	asked, issued, dropped, refills, waits *prometheus.Desc
	mark, used, lasts                      *prometheus.Desc
}

func newMetrics(s *Server) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("march_"+name, help, labels, nil)
	}
	m := &metrics{
		server: s, limit: s.cfg.MetricsTags,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "march_refills_total", Help: "Segments asked of the ledger, by result: ok, or the kind of error.",
		}, []string{"result"}),
		behind: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "march_left_behind_total", Help: "Tags whose IDs may have been issued twice, as a recover did not know of what this instance held.",
		}),
		chains:  desc("chains", "Tags in memory."),
		ready:   desc("ready", "1 while this instance can issue IDs."),
		served:  desc("layout_served_version", "The layout that this instance says it serves: it issues no ID of an earlier one."),
		held:    desc("chain_held_ids", "IDs in memory.", "tag"),
		reserve: desc("chain_reserve_seconds", "How long the IDs in memory last at the recent peak rate, 7 days at most; of a strict tag no longer than hold lets it go on.", "tag"),
		step:    desc("chain_step_ids", "How many IDs the chain aims to hold.", "tag"),
		asked:   desc("chain_requests_total", "Requests for IDs, whatever became of them; each message of a stream is one.", "tag"),
		issued:  desc("chain_issued_ids_total", "IDs issued.", "tag"),
		dropped: desc("chain_dropped_ids_total", "Waste: IDs leased and never to be issued.", "tag"),
		refills: desc("chain_refills_total", "Segments leased.", "tag"),
		waits:   desc("chain_waits_total", "Callers that found too little in memory and waited.", "tag"),
		mark:    desc("tag_mark", "The room's mark, the next ID not yet leased, as of this instance's last lease.", "tag"),
		used:    desc("tag_used_ratio", "The share of the tag's IDs, start to limit, that lies below the mark.", "tag"),
		lasts:   desc("tag_limit_seconds", "When the mark reaches the tag's limit, should it rise as in the last hour; +Inf while that is not in sight.", "tag"),
	}
	m.mu.own = make(map[*counted]totals)
	m.results.WithLabelValues(resultOK)
	m.results.WithLabelValues(allocator.Unavailable.Error())
	s.cfg.Metrics.Register(m, m.results, m.behind)
	return m
}

const resultOK = "ok"

// refilled takes note of a lease's outcome.
func (m *metrics) refilled(err error) {
	result := resultOK
	if err != nil {
		result = allocator.KindOf(err).Error()
	}
	m.results.WithLabelValues(result).Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.chains, m.ready, m.served, m.held, m.reserve, m.step, m.asked, m.issued, m.dropped, m.refills, m.waits, m.mark, m.used, m.lasts,
	} {
		out <- d
	}
}

// seen is a chain as a scrape sees it.
type seen struct {
	tagged
	status allocator.Status
	totals totals
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	list, gone := m.server.chains.counts()
	gauge := func(desc *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(m.chains, float64(len(list)))
	ready := 0.0
	if m.server.Ready() == nil {
		ready = 1
	}
	gauge(m.ready, ready)
	if m.server.instance != nil {
		gauge(m.served, float64(m.server.instance.Version()))
	}

	all := make([]seen, len(list))
	for i, t := range list {
		s := m.server.statusOf(t.chain.Chain)
		all[i] = seen{t, s, t.chain.totals(s)}
	}
	own, others, rest := m.split(all, gone)
	now := time.Now()
	for _, t := range own {
		m.send(out, string(t.tag), t.totals, state{
			held: t.status.Held, step: t.status.Target, reserve: t.status.Lasts.Seconds(),
			used: t.chain.used(t.status), lasts: t.chain.lasts(t.status, now),
		})
		out <- prometheus.MustNewConstMetric(m.mark, prometheus.GaugeValue, float64(t.status.Last+1), string(t.tag))
	}
	m.send(out, otherTags, rest, together(others, now))
}

// state is what a series shows beside its totals.
type state struct {
	held, step           int64
	reserve, used, lasts float64
}

// together returns the state of several chains: sums, and otherwise the worst.
// One that never held an ID has no reserve that could be low.
func together(list []seen, now time.Time) state {
	all := state{reserve: allocator.LongestReserve.Seconds(), lasts: math.Inf(1)}
	for _, t := range list {
		all.held += t.status.Held
		all.step += t.status.Target
		if t.status.Refills > 0 {
			all.reserve = min(all.reserve, t.status.Lasts.Seconds())
		}
		all.used = max(all.used, t.chain.used(t.status))
		all.lasts = min(all.lasts, t.chain.lasts(t.status, now))
	}
	return all
}

// split returns the chains with series of their own, with what is counted in
// these, the others, and what is counted in the others' series: all that was
// ever counted less what is or was counted in others' own.
func (m *metrics) split(all []seen, gone totals) (own, others []seen, rest totals) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c, before := range m.mu.own {
		if final := c.final.Load(); final != nil {
			m.mu.past.add(final.minus(before))
			delete(m.mu.own, c)
		}
	}
	rest = gone.minus(m.mu.past)
	for _, t := range all {
		if _, has := m.mu.own[t.chain]; has {
			own = append(own, t)
		} else {
			others = append(others, t)
		}
	}
	if free := min(m.limit-len(own), len(others)); free > 0 {
		if free < len(others) {
			slices.SortFunc(others, func(a, b seen) int { return cmp.Compare(b.status.Peak, a.status.Peak) })
		}
		kept := others[:0]
		for _, t := range others {
			if free == 0 || t.chain.final.Load() != nil { // removed just now
				kept = append(kept, t)
				continue
			}
			free--
			var before totals
			if t.chain.other {
				before = t.totals
			}
			m.mu.own[t.chain] = before
			own = append(own, t)
		}
		others = kept
	}
	for i, t := range own {
		before := m.mu.own[t.chain]
		rest.add(before)
		own[i].totals = t.totals.minus(before)
	}
	for _, t := range others {
		t.chain.other = true
		rest.add(t.totals)
	}
	return own, others, rest
}

// send sends a series of everything that all have.
func (m *metrics) send(out chan<- prometheus.Metric, tag string, t totals, s state) {
	for _, v := range []struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value float64
	}{
		{m.held, prometheus.GaugeValue, float64(s.held)},
		{m.step, prometheus.GaugeValue, float64(s.step)},
		{m.reserve, prometheus.GaugeValue, s.reserve},
		{m.used, prometheus.GaugeValue, s.used},
		{m.lasts, prometheus.GaugeValue, s.lasts},
		{m.asked, prometheus.CounterValue, float64(t.asked)},
		{m.issued, prometheus.CounterValue, float64(t.issued)},
		{m.dropped, prometheus.CounterValue, float64(t.dropped)},
		{m.refills, prometheus.CounterValue, float64(t.refills)},
		{m.waits, prometheus.CounterValue, float64(t.waits)},
	} {
		out <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value, tag)
	}
}
