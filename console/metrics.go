package console

import (
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/serve"
)

// gauge is a metric that is read in the last snapshot.
type gauge struct {
	name, help string
	labels     []string
	read       func(now *snapshot, set func(value float64, labels ...string))
}

// one reads a gauge without labels.
func one(value func(*snapshot) float64) func(*snapshot, func(float64, ...string)) {
	return func(now *snapshot, set func(float64, ...string)) { set(value(now)) }
}

var gauges = []gauge{
	{"migrations", "Migrations under way, by state.", []string{"state"},
		func(n *snapshot, set func(float64, ...string)) {
			for _, state := range []record.MigrationState{record.Running, record.Paused} {
				set(flag(n.driving.state == state), string(state))
			}
		}},
	{"migration_moves", "The moves of the migration under way.", nil,
		one(func(n *snapshot) float64 { return float64(n.driving.moves) })},
	{"migration_moves_made", "How many of its moves were made; the next one is the current move.", nil,
		one(func(n *snapshot) float64 { return float64(n.driving.made) })},
	{"migration_waiting_instances", "Instances that the migration waits for.", nil,
		one(func(n *snapshot) float64 { return float64(n.driving.waiting) })},
	{"etcd_db_size_bytes", "How large the database of the etcd member in use is.", nil,
		one(func(n *snapshot) float64 { return float64(n.etcd.Bytes) })},
	{"etcd_db_quota_bytes", "The size at which etcd takes no more writes; 0 if etcd does not report it.", nil,
		one(func(n *snapshot) float64 { return float64(n.etcd.Quota) })},
	{"etcd_no_space", "1 while etcd has raised its alarm NOSPACE, and takes no writes.", nil,
		one(func(n *snapshot) float64 { return flag(n.etcd.NoSpace) })},
	{"etcd_members_away", "How many of etcd's members, by its own list, do not answer this console, while etcd does.",
		nil, one(func(n *snapshot) float64 { return float64(n.etcd.members.All - n.etcd.members.Answer) })},
	{"time_left_seconds", "Time until the time bits of a tag of kind time are used up, the shortest of all such " +
		"tags; +Inf if there is no such tag.", nil, one(func(n *snapshot) float64 {
		if len(n.workers.ends) == 0 {
			return math.Inf(1)
		}
		return max(time.Until(time.UnixMilli(n.workers.ends[0].end)).Seconds(), 0)
	})},
	{"worker_slice_used_ratio", "The share of the workers of a width that a room may take, and that are in use; 0 of " +
		"one worker.", []string{"room", "bits"}, func(n *snapshot, set func(float64, ...string)) {
		for _, u := range n.workers.slices {
			set(share(u), string(u.Room), strconv.Itoa(u.Bits))
		}
	}},
	{"instances", "Instances of each room that has a range, or has silent ones, by whether they are up or silent. " +
		"One of which neither is known yet counts as neither.", []string{"room", "state"}, (*snapshot).countInstances},
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// countInstances counts how many instances of each room are up. What is not known is shown as it was.
func (n *snapshot) countInstances(set func(value float64, labels ...string)) {
	type key struct{ room, state string }
	rooms, all := n.Layout.Layout.Rooms(), make(map[key]float64)
	for _, room := range rooms {
		all[key{string(room), "up"}] = 0
	}
	for _, i := range n.instances {
		switch up := n.answers.up(i); {
		case i.Unreadable != nil:
		case !i.Alive && !up:
			all[key{string(i.Room), "silent"}]++
		case up && slices.Contains(rooms, i.Room):
			all[key{string(i.Room), "up"}]++
		}
	}
	for k, count := range all {
		set(count, k.room, k.state)
	}
}

// collector is a prometheus.Collector of gauges.
type collector struct {
	last  *atomic.Pointer[snapshot]
	descs []*prometheus.Desc
}

func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

func (c collector) Collect(out chan<- prometheus.Metric) {
	now := c.last.Load()
	for k, g := range gauges {
		g.read(now, func(value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(c.descs[k], prometheus.GaugeValue, value, labels...)
		})
	}
}

// register makes the console's metrics, and registers them on m if m is set.
func (s *Server) register(m *serve.Metrics) {
	s.migrationsEnded = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "march_migrations_ended_total", Help: "Migrations that this console ended, by state.",
	}, []string{"state"})
	for _, state := range []record.MigrationState{record.Done, record.Aborted} {
		s.migrationsEnded.WithLabelValues(string(state))
	}
	c := collector{last: &s.last}
	for _, g := range gauges {
		c.descs = append(c.descs, prometheus.NewDesc("march_"+g.name, g.help, g.labels, nil))
	}
	if m != nil {
		m.Register(s.migrationsEnded, c)
	}
}
