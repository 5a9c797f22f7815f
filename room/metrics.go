package room

import (
	"strconv"
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
}

func newMetrics(s *Server) *metrics {
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
	}
	s.tags.scan.own = &own{limit: s.cfg.MetricsTags, chains: make(map[*counter]totals)}
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

// series has the values of one series, of a tag or of several.
type series struct {
	totals
	state
}

// state has the values of a series besides its totals. For several chains these are
// sums or the worst values.
type state struct {
	held, excess, step   int64
	reserve, used, lasts float64
}

// seriesMetrics are the metrics that have a series for each tag.
var seriesMetrics = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(series) float64
}{
	{tagDesc("chain_held_ids", "IDs in memory."), prometheus.GaugeValue,
		func(s series) float64 { return float64(s.held) }},
	{tagDesc("chain_excess_ids", "IDs in memory beyond twice the reserve at the peak rate of the last lease, and "+
		"beyond two least steps."), prometheus.GaugeValue, func(s series) float64 { return float64(s.excess) }},
	{tagDesc("chain_reserve_seconds", "How long the IDs in memory last at the recent peak rate, 7 days at most; "+
		"for a strict tag no longer than hold."), prometheus.GaugeValue,
		func(s series) float64 { return s.reserve }},
	{tagDesc("chain_step_ids", "How many IDs the chain aims to hold."), prometheus.GaugeValue,
		func(s series) float64 { return float64(s.step) }},
	{tagDesc("chain_requests_total", "Requests for IDs, failed ones included; each message of a stream is one."),
		prometheus.CounterValue, func(s series) float64 { return float64(s.asked) }},
	{tagDesc("chain_issued_ids_total", "IDs issued."), prometheus.CounterValue,
		func(s series) float64 { return float64(s.issued) }},
	{tagDesc("chain_dropped_ids_total", "Waste: IDs that were leased and will never be issued."),
		prometheus.CounterValue, func(s series) float64 { return float64(s.dropped) }},
	{tagDesc("chain_refills_total", "Segments leased."), prometheus.CounterValue,
		func(s series) float64 { return float64(s.refills) }},
	{tagDesc("chain_waits_total", "Callers that found too few IDs to issue in memory and waited."),
		prometheus.CounterValue, func(s series) float64 { return float64(s.waits) }},
	{tagDesc("tag_used_ratio", "The share of the tag's IDs, start to limit, that lies below the mark."),
		prometheus.GaugeValue, func(s series) float64 { return s.used }},
	{tagDesc("tag_limit_seconds", "Seconds until the mark reaches the tag's limit, if it rises as in the last hour; "+
		"+Inf if it does not rise."), prometheus.GaugeValue, func(s series) float64 { return s.lasts }},
}

var markMetric = tagDesc("tag_mark", "The room's mark, the next ID not yet leased, as of this instance's last lease.")

func tagDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("march_"+name, help, []string{"tag"}, nil)
}

// seen is a counter as a scrape sees it.
type seen struct {
	chain  *counter
	status allocator.Status
	totals totals
}

// Describe implements prometheus.Collector. Without a description the registry checks what Collect sends when it does.
func (*metrics) Describe(chan<- *prometheus.Desc) {}

func (m *metrics) Collect(out chan<- prometheus.Metric) {
	s := m.server
	counters, timed := s.tags.memory.size()
	gauge(out, "chains", "Tags in memory.", float64(counters))
	checks := s.health.checks()
	gauge(out, "ready", "1 while this instance can issue IDs.", oneIfNil(serve.Failed(checks)))
	for family, err := range families(checks) {
		gauge(out, "family_ready", "1 while this instance can issue the IDs of a family: counters, "+
			"or time-ordered IDs, which also count as ready with the instance while no caller asks for them.",
			oneIfNil(err), "family", family)
	}
	if s.instance != nil {
		gauge(out, "layout_served_version", "The layout that this instance reports: it issues only IDs of segments "+
			"that this layout keeps, or of newer segments.", float64(s.instance.Version()))
	}
	own, others, rest := s.tags.scrape()
	now := time.Now()
	for _, t := range own {
		tag := string(t.chain.Tag())
		sendSeries(out, tag, series{t.totals, state{
			held: t.status.Held, excess: t.status.Excess, step: t.status.Target, reserve: t.status.Lasts.Seconds(),
			used: t.chain.used(t.status), lasts: t.chain.lasts(t.status, now),
		}})
		out <- prometheus.MustNewConstMetric(markMetric, prometheus.GaugeValue, float64(t.status.Last+1), tag)
	}
	sendSeries(out, otherTags, series{rest, others})
	if s.windows != nil { // the instance has joined
		m.collectTimeOrdered(out, timed)
	}
}

// collectTimeOrdered sends the metrics of time-ordered IDs, all tags together, and of their workers.
func (m *metrics) collectTimeOrdered(out chan<- prometheus.Metric, tags int) {
	t, ahead := m.server.tags.scan.timeOrdered()
	w := m.server.windows.status()
	gauge(out, "time_tags", "Tags of time-ordered IDs in memory.", float64(tags))
	total(out, "time_requests_total", "Requests for time-ordered IDs, failed ones included.", float64(t.asked))
	total(out, "time_issued_ids_total", "Time-ordered IDs issued.", float64(t.issued))
	total(out, "time_overflows_total", "Callers that found a tick's sequence full, and waited for a later tick.",
		float64(t.overflows))
	total(out, "time_overflow_wait_seconds_total", "How long these callers waited in total.", t.overflowed.Seconds())
	total(out, "time_rollbacks_total", "How often the clock was behind the last ID.", float64(t.rollbacks))
	gauge(out, "time_ahead_seconds",
		"How far IDs are ahead of the clock now, for tags that go on ahead of a clock that went back.", ahead.Seconds())
	total(out, "worker_exchanges_total",
		"Workers that were exchanged because a layout took them away or another process had them.",
		float64(w.exchanges))
	total(out, "worker_conflicts_total",
		"Workers that another process was found to have, and that were exchanged for that.", float64(w.conflicts))
	gauge(out, "worker_clock_ahead_seconds", "How far the clock was ahead of the median of the instances', at "+
		"least, when a window was last taken or renewed; negative where it was behind.", w.clockAhead.Seconds())
	for bits, remaining := range w.remaining {
		gauge(out, "worker_window_seconds",
			"How long the window of the instance's worker lasts, by the worker's bits; 0 if IDs cannot be issued.",
			remaining.Seconds(), "bits", strconv.Itoa(bits))
	}
	for bits, n := range w.lent {
		gauge(out, "worker_clients", "Workers that clients' processes have, by the worker's bits.", float64(n),
			"bits", strconv.Itoa(bits))
	}
}

func sendSeries(out chan<- prometheus.Metric, tag string, s series) {
	for _, m := range seriesMetrics {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(s), tag)
	}
}

// gauge sends a metric with a label, or none: its name and its value.
func gauge(out chan<- prometheus.Metric, name, help string, value float64, label ...string) {
	send(out, prometheus.GaugeValue, name, help, value, label)
}

// total sends a counter.
func total(out chan<- prometheus.Metric, name, help string, value float64) {
	send(out, prometheus.CounterValue, name, help, value, nil)
}

func send(out chan<- prometheus.Metric, kind prometheus.ValueType, name, help string, value float64, label []string) {
	half := len(label) / 2
	desc := prometheus.NewDesc("march_"+name, help, label[:half], nil)
	out <- prometheus.MustNewConstMetric(desc, kind, value, label[half:]...)
}

func oneIfNil(err error) float64 {
	if err != nil {
		return 0
	}
	return 1
}

// own is the set of chains with series of their own. It is guarded by the scan; nil
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

// give gives free series to the busiest chains of a round that are still in memory.
func (o *own) give(r *round, in *tags) {
	if o == nil || len(r.rising) == 0 {
		return
	}
	r.cut(o.free())
	for _, s := range r.rising {
		if _, has := o.chains[s.chain]; has || in.counter(string(s.chain.Tag())) != s.chain { // another round gave it
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

// remove notes the last totals of a chain that is gone.
func (o *own) remove(c *counter, last totals) {
	if o == nil {
		return
	}
	if before, has := o.chains[c]; has {
		o.past.add(last.minus(before))
		delete(o.chains, c)
	}
}

// scrape returns the chains with series of their own and their totals, and the
// state and the totals of the shared series. The shared totals are those of all
// chains less all that own series have or had. So each ID is counted in one series,
// and no counter falls when a tag gets or loses its own.
func (m *tags) scrape() (list []seen, others state, rest totals) {
	t := &m.scan
	last := m.currentRound()
	if last.gave {
		last = m.currentRound() // without the chains that have just got series of their own
	}
	others = last.others
	t.Lock()
	defer t.Unlock()
	for c, before := range t.own.chains {
		status := m.gates.statusOf(c)
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
