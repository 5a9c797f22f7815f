package console

import (
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/observe"
)

// metrics are those of the migration under way, as this console sees it.
type metrics struct {
	state       *prometheus.GaugeVec
	moves, made prometheus.Gauge
	waiting     prometheus.Gauge
	bytes       prometheus.Gauge
	quota       prometheus.Gauge
	noSpace     prometheus.Gauge
	lost        prometheus.Gauge
	timeLeft    prometheus.Gauge
	workersUsed *prometheus.GaugeVec
	ended       *prometheus.CounterVec
	instances   *prometheus.GaugeVec
}

// newMetrics returns the metrics, registered on m if m is set.
func newMetrics(m *observe.Metrics) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "march_" + name, Help: help})
	}
	n := &metrics{
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "march_migrations", Help: "Migrations under way, by state.",
		}, []string{"state"}),
		moves: gauge("migration_moves", "The moves of the migration under way."),
		made: gauge("migration_moves_made",
			"How many of its moves were made; the next one is the current move."),
		bytes: gauge("etcd_db_size_bytes", "How large the database of the etcd member in use is."),
		quota: gauge("etcd_db_quota_bytes",
			"The size at which etcd takes no more writes; 0 if etcd does not report it."),
		noSpace: gauge("etcd_no_space", "1 while etcd has raised its alarm NOSPACE, and takes no writes."),
		lost: gauge("etcd_members_away",
			"How many of etcd's members, by its own list, do not answer this console, while etcd does."),
		timeLeft: gauge("time_left_seconds",
			"Time until the time bits of a tag of kind time are used up, the shortest of all such tags; "+
				"+Inf if there is no such tag."),
		workersUsed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "march_worker_slice_used_ratio",
			Help: "The share of the workers of a width that a room may take, and that are in use; 0 of one worker.",
		}, []string{"room", "bits"}),
		waiting: gauge("migration_waiting_instances", "Instances that the migration waits for."),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "march_migrations_ended_total", Help: "Migrations that this console ended, by state.",
		}, []string{"state"}),
	}
	n.instances = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "march_instances",
		Help: "Instances of each room that has a range, or has silent ones, by whether they are up or silent. One of " +
			"which neither is known yet counts as neither.",
	}, []string{"room", "state"})
	for _, state := range []record.MigrationState{record.Done, record.Aborted} {
		n.ended.WithLabelValues(string(state))
	}
	n.underWay(record.Migration{})
	n.timeLeft.Set(math.Inf(1))
	if m != nil {
		m.Register(n.state, n.moves, n.made, n.waiting, n.ended, n.bytes, n.quota, n.noSpace, n.lost, n.timeLeft,
			n.workersUsed, n.instances)
	}
	return n
}

// up sets how many instances of each room are up. What is not known is shown as it was.
func (n *metrics) up(f findings) {
	n.instances.Reset()
	for _, room := range f.rooms {
		n.instances.WithLabelValues(string(room), "up").Set(0)
	}
	for _, i := range f.instances {
		switch {
		case i.Unreadable != nil:
		case !i.Alive && !f.up(i):
			n.instances.WithLabelValues(string(i.Room), "silent").Inc()
		case f.up(i) && slices.Contains(f.rooms, i.Room):
			n.instances.WithLabelValues(string(i.Room), "up").Inc()
		}
	}
}

// underWay sets the metrics of the migration under way; the zero migration is none.
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
