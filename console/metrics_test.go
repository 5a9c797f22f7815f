package console_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// value returns the value of a metric, or -1 if there is none. state is its label, or empty
// for a metric without labels.
func (n *node) value(name, state string) float64 {
	families, err := n.metrics.Gatherer().Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (state == "" || m.GetLabel()[0].GetValue() == state) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// The metrics of a console follow the migration under way.
func TestMetrics(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		wants := func(what string, running, paused, moves, made, waiting, done float64) {
			t.Helper()
			testcluster.Await(t, what, func() bool {
				return n.value("march_migrations", "running") == running &&
					n.value("march_migrations", "paused") == paused &&
					n.value("march_migration_moves", "") == moves && n.value("march_migration_moves_made",
					"") == made &&
					n.value("march_migration_waiting_instances", "") == waiting &&
					n.value("march_migrations_ended_total", "done") == done &&
					n.value("march_migrations_ended_total", "aborted") == 0
			})
		}
		wants("nothing under way", 0, 0, 0, 0, 0, 0)
		p := w.puppet("a", "p", true)
		m := w.apply(n, quarter(), time.Hour)
		wants("it waits for an instance", 1, 0, 2, 1, 1, 0)
		must(n.PauseMigration(bg, &marchv1.PauseMigrationRequest{Id: m.GetId()}))(t)
		wants("it is paused", 0, 1, 2, 1, 0, 0)
		must(n.ResumeMigration(bg, &marchv1.ResumeMigrationRequest{Id: m.GetId()}))(t)
		wants("it waits again", 1, 0, 2, 1, 1, 0)
		if err := p.Serve(bg, 2); err != nil {
			t.Fatal(err)
		}
		w.ends(n, m.GetId(), "done")
		wants("it is done", 0, 0, 0, 0, 0, 1)
		for _, line := range [][]string{
			{"migration started"}, {"migration changed", `change="pause migration"`, "by=", "state=paused"},
			{"migration changed", `change="resume migration"`, "by=", "state=running"},
			{"migration moved", `move="1 of 2"`, "kind=retract"}, {"migration moved", `move="2 of 2"`, "kind=expand"},
			{"migration ended", "state=done"},
		} {
			if got := n.log.count(append(line, "[INFO]", "migration="+m.GetId())...); got != 1 {
				t.Errorf("%d lines of the log have %q, want 1", got, line)
			}
		}
		if problems, err := testutil.GatherAndLint(n.metrics.Gatherer()); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
	})
}

// A migration that is aborted before its first move ends with that call. The console that
// gets the call counts and logs it.
func TestMetricsOfAnEarlyAbort(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		n.on(func(what string) verdict {
			if what == "move" {
				return refuse
			}
			return pass
		})
		m := w.apply(n, quarter(), time.Hour)
		if r, err := n.AbortMigration(bg, &marchv1.AbortMigrationRequest{Id: m.GetId()}); err != nil ||
			r.GetMigration().GetState() != marchv1.MigrationState_MIGRATION_STATE_ABORTED {
			t.Fatalf("abort: %v, %v", r, err)
		}
		if got := n.value("march_migrations_ended_total", "aborted"); got != 1 {
			t.Errorf("%v aborted migrations counted, want 1", got)
		}
		if got := n.log.count("migration ended", "state=aborted", m.GetId()); got != 1 {
			t.Errorf("%d lines say that it ended, want 1", got)
		}
	})
}
