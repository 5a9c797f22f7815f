package console

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/observe"
)

// metrics tell of the migration under way, as each console sees it.
type metrics struct {
	state       *prometheus.GaugeVec
	moves, made prometheus.Gauge
	waiting     prometheus.Gauge
	bytes       prometheus.Gauge
	quota       prometheus.Gauge
	timeLeft    prometheus.Gauge
	workersUsed prometheus.Gauge
	ended       *prometheus.CounterVec
}

// newMetrics returns the metrics, on m where that is set.
func newMetrics(m *observe.Metrics) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "march_" + name, Help: help})
	}
	n := &metrics{
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "march_migrations", Help: "Migrations under way, by state.",
		}, []string{"state"}),
		moves:       gauge("migration_moves", "The moves of the migration under way."),
		made:        gauge("migration_moves_made", "How many of them were made; the next is the current one."),
		bytes:       gauge("etcd_db_size_bytes", "How large the database of the etcd member in use is."),
		quota:       gauge("etcd_db_quota_bytes", "The size at which etcd takes no more writes; 0 where it does not say."),
		timeLeft:    gauge("time_left_seconds", "How long it is until the time bits of a tag of kind time are used up, of the first tag of which they are; +Inf where there is no such tag."),
		workersUsed: gauge("worker_slice_used_ratio", "The share of the workers of a room's slice that are in use, in the slice where it is the largest; slices of one worker do not count."),
		waiting:     gauge("migration_waiting_instances", "Instances that the migration waits for."),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "march_migrations_ended_total", Help: "Migrations that this console ended, by state.",
		}, []string{"state"}),
	}
	for _, state := range []record.MigrationState{record.Done, record.Aborted} {
		n.ended.WithLabelValues(string(state))
	}
	n.underWay(record.Migration{})
	n.timeLeft.Set(math.Inf(1))
	if m != nil {
		m.Register(n.state, n.moves, n.made, n.waiting, n.ended, n.bytes, n.quota, n.timeLeft, n.workersUsed)
	}
	return n
}

// underWay notes the migration under way; the zero one is none.
func (n *metrics) underWay(m record.Migration) {
	for _, state := range []record.MigrationState{record.Running, record.Paused} {
		count := 0.0
		if m.State == state {
			count = 1
		}
		n.state.WithLabelValues(string(state)).Set(count)
	}
	n.moves.Set(float64(len(m.Moves)))
	n.made.Set(float64(m.Reached))
	if m.State != record.Running {
		n.waiting.Set(0)
	}
}
