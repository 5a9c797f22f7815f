package room

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/serve"
)

// otherTags is the tag label's value in the series of all tags that have none
// of their own. No tag can have this name.
const otherTags = "(other)"

// metrics are the chains' states as Prometheus reads them: computed when it
// asks, so that they cost nothing per ID.
//
// At most limit tags have series of their own, the busiest first. A tag keeps its
// series for as long as it is in memory. The other tags share one series: the sums
// of their counters, and the least reserve and time to the limit. Each ID is
// counted in one series only and stays there: counters do not fall when a tag gets
// or loses its own series.
type metrics struct {
	server  *Server
	results *prometheus.CounterVec
	orphans prometheus.Counter
	skipped prometheus.Counter

	chains, ready, families, served        *prometheus.Desc
	held, reserve, step                    *prometheus.Desc
	asked, issued, dropped, refills, waits *prometheus.Desc
	mark, used, lasts                      *prometheus.Desc
	timed                                  *timeMetrics
}

func newMetrics(s *Server) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("march_"+name, help, labels, nil)
	}
	m := &metrics{
		server: s,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "march_refills_total", Help: "Segments asked of the ledger, by result: ok, or the kind of error.",
		}, []string{"result"}),
		orphans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "march_orphaned_tags_total",
			Help: "Tags whose IDs may have been issued twice, because a recover went on without this instance.",
		}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "march_contiguous_skipped_ids_total", Help: "IDs that were skipped so that others come in one run; " +
				"they are in march_chain_dropped_ids_total, too.",
		}),
		chains: desc("chains", "Tags in memory."),
		ready:  desc("ready", "1 while this instance can issue IDs."),
		families: desc("family_ready", "1 while this instance can issue the IDs of a family: counters, "+
			"or time-ordered IDs, which also count as ready with the instance while no caller asks for them.",
			"family"),
		served: desc("layout_served_version",
			"The layout that this instance reports: it issues only IDs of segments that this layout keeps, "+
				"or of newer segments."),
		held: desc("chain_held_ids", "IDs in memory.", "tag"),
		reserve: desc("chain_reserve_seconds",
			"How long the IDs in memory last at the recent peak rate, 7 days at most; "+
				"for a strict tag no longer than hold.", "tag"),
		step: desc("chain_step_ids", "How many IDs the chain aims to hold.", "tag"),
		asked: desc("chain_requests_total",
			"Requests for IDs, failed ones included; each message of a stream is one.", "tag"),
		issued:  desc("chain_issued_ids_total", "IDs issued.", "tag"),
		dropped: desc("chain_dropped_ids_total", "Waste: IDs that were leased and will never be issued.", "tag"),
		refills: desc("chain_refills_total", "Segments leased.", "tag"),
		waits:   desc("chain_waits_total", "Callers that found too few IDs in memory and waited.", "tag"),
		mark: desc("tag_mark",
			"The room's mark, the next ID not yet leased, as of this instance's last lease.", "tag"),
		used: desc("tag_used_ratio", "The share of the tag's IDs, start to limit, that lies below the mark.", "tag"),
		lasts: desc("tag_limit_seconds",
			"Seconds until the mark reaches the tag's limit, if it rises as in the last hour; "+
				"+Inf if it does not rise.", "tag"),
		timed: newTimeMetrics(),
	}
	s.tags.tour.own = &own{limit: s.cfg.MetricsTags, chains: make(map[*counter]totals)}
	m.results.WithLabelValues(resultOK)
	m.results.WithLabelValues(allocator.Unavailable.Error())
	s.cfg.Metrics.Register(m, m.results, m.orphans, m.skipped)
	return m
}

const resultOK = "ok"

// refilled counts a lease by its outcome.
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
		m.chains, m.ready, m.families, m.served, m.held, m.reserve, m.step, m.asked, m.issued, m.dropped, m.refills,
		m.waits, m.mark, m.used, m.lasts,
	} {
		out <- d
	}
	m.timed.describe(out)
}

// seen is a counter as a scrape sees it.
type seen struct {
	chain  *counter
	status allocator.Status
	totals totals
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	counters, timed := m.server.tags.size()
	gauge(m.chains, float64(counters))
	one := func(err error) float64 {
		if err != nil {
			return 0
		}
		return 1
	}
	checks := m.server.health.checks()
	gauge(m.ready, one(serve.Failed(checks)))
	for family, err := range families(checks) {
		out <- prometheus.MustNewConstMetric(m.families, prometheus.GaugeValue, one(err), family)
	}
	if m.server.instance != nil {
		gauge(m.served, float64(m.server.instance.Version()))
	}

	own, others, rest := m.server.tags.scrape()
	now := time.Now()
	for _, t := range own {
		m.send(out, string(t.chain.Tag()), t.totals, state{
			held: t.status.Held, step: t.status.Target, reserve: t.status.Lasts.Seconds(),
			used: t.chain.used(t.status), lasts: t.chain.lasts(t.status, now),
		})
		out <- prometheus.MustNewConstMetric(m.mark, prometheus.GaugeValue, float64(t.status.Last+1),
			string(t.chain.Tag()))
	}
	m.send(out, otherTags, rest, others)
	if m.server.windows != nil { // the instance has joined
		issued, ahead := m.server.tags.tour.timeOrdered()
		m.timed.send(out, timed, issued, ahead, m.server.windows.status())
	}
}

// state has the values of a series besides its totals. For several chains these are
// sums or the worst values.
type state struct {
	held, step           int64
	reserve, used, lasts float64
}

// send sends the metrics of one series.
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

// own is the set of chains with series of their own. It is guarded by the tour; nil
// without metrics.
type own struct {
	limit   int
	chains  map[*counter]totals // what was counted in the shared series before
	past    totals              // the last totals of own series, of chains that are gone
	scrapes uint32
}

// has reports whether a chain has a series of its own, and notes when it was
// first asked.
func (o *own) has(c *counter) bool {
	if o == nil {
		return false
	}
	if c.shown == 0 {
		c.shown = o.scrapes + 1
	}
	_, has := o.chains[c]
	return has
}

// free returns how many more chains may have series of their own.
func (o *own) free() int {
	if o == nil {
		return 0
	}
	return max(o.limit-len(o.chains), 0)
}

// give gives free series to the busiest chains of a round.
func (o *own) give(r *round) {
	if o == nil || len(r.rising) == 0 {
		return
	}
	r.cut(o.free())
	for _, s := range r.rising {
		if _, has := o.chains[s.chain]; has || s.chain.final.Load() != nil { // another round gave it, or it was removed
			continue
		}
		before := totals{}
		if s.chain.shown <= o.scrapes { // a scrape has shown the chain in the shared series
			before = s.chain.seen
		}
		o.chains[s.chain] = before
		r.gave = true
	}
	r.rising = nil
}

// scrape returns the chains with series of their own and their totals, and the
// state and the totals of the shared series. The shared totals are those of all
// chains less all that own series have or had. So each ID is counted in one series,
// and no counter falls when a tag gets or loses its own.
func (m *tags) scrape() (list []seen, others state, rest totals) {
	t := &m.tour
	last := m.look()
	if last.gave {
		last = m.look() // without the chains that have just got series of their own
	}
	others = last.others
	t.Lock()
	defer t.Unlock()
	for c, before := range t.own.chains {
		final := c.final.Load()
		if final != nil {
			t.own.past.add(final.minus(before))
			delete(t.own.chains, c)
			continue
		}
		status := m.statusOf(c.Chain)
		found := seen{c, status, t.see(c, c.totalsOf(status)).minus(before)}
		list = append(list, found)
	}
	rest = t.sum.minus(t.own.past)
	for _, found := range list {
		rest = rest.minus(found.totals)
	}
	t.own.scrapes++
	return list, others, rest
}
