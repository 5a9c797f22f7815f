package console

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/observe"
)

// metrics tell of migrations. One console drives them, and it alone knows: the
// others show 0 for driving, and no migration.
type metrics struct {
	driving     prometheus.Gauge
	state       *prometheus.GaugeVec
	moves, made prometheus.Gauge
	waiting     prometheus.Gauge
	ended       *prometheus.CounterVec
}

// newMetrics returns the metrics, on m where that is set.
func newMetrics(m *observe.Metrics) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "march_" + name, Help: help})
	}
	n := &metrics{
		driving: gauge("migration_driving", "1 while this console drives migrations."),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "march_migrations", Help: "Migrations under way, by state, as the console that drives them sees it.",
		}, []string{"state"}),
		moves:   gauge("migration_moves", "The moves of the migration under way."),
		made:    gauge("migration_moves_made", "How many of them were made; the next is the current one."),
		waiting: gauge("migration_waiting_instances", "Instances that the migration waits for."),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "march_migrations_ended_total", Help: "Migrations that this console ended, by state.",
		}, []string{"state"}),
	}
	for _, state := range []ledger.MigrationState{ledger.Done, ledger.Aborted} {
		n.ended.WithLabelValues(string(state))
	}
	n.underWay(ledger.Migration{})
	if m != nil {
		m.Register(n.driving, n.state, n.moves, n.made, n.waiting, n.ended)
	}
	return n
}

// drives notes whether this console drives migrations.
func (n *metrics) drives(driving bool) {
	if n.driving.Set(0); driving {
		n.driving.Set(1)
		return
	}
	n.underWay(ledger.Migration{}) // another one knows
}

// underWay notes the migration under way; the zero one is none.
func (n *metrics) underWay(m ledger.Migration) {
	for _, state := range []ledger.MigrationState{ledger.Running, ledger.Paused} {
		count := 0.0
		if m.State == state {
			count = 1
		}
		n.state.WithLabelValues(string(state)).Set(count)
	}
	n.moves.Set(float64(len(m.Moves)))
	n.made.Set(float64(m.Reached))
	if m.State != ledger.Running {
		n.waiting.Set(0)
	}
}
