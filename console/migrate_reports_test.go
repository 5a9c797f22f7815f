package console_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestMigrateReports: the console shows the progress of each instance of a room that lost
// residues. It shows an instance as waited for only if the driver waits for it.
func TestMigrateReports(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		w.puppet("a", "given-up", false)
		p := w.puppet("a", "reports", true)
		w.puppet("a", "silent", false)
		w.puppet("b", "loses-nothing", false)
		reports := func(m *marchv1.Migration) string {
			var all []string
			for k, move := range m.GetMoves() {
				for _, r := range move.GetReports() {
					all = append(all, fmt.Sprintf("%d %s %s", k, r.GetInstance(), api.Word(r.GetState())))
				}
			}
			for _, i := range m.GetWaiting() {
				all = append(all, "for "+i.GetInstance())
			}
			return strings.Join(all, "\n")
		}
		is := func(m *marchv1.Migration, lines ...string) {
			t.Helper()
			if got, want := reports(m), strings.Join(lines, "\n"); got != want {
				t.Errorf("reports:\n%s\nwant\n%s", got, want)
			}
		}
		n.on(func(what string) verdict {
			if what == "move" {
				return refuse
			}
			return pass
		})
		m := w.apply(n, quarter(), time.Hour)
		is(m, "0 a/given-up later", "0 a/reports later", "0 a/silent later")
		n.on(nil)
		m = w.follow(n, m.GetId(), "waiting", func(m *marchv1.Migration) bool { return len(m.GetWaiting()) == 3 })
		is(m, "0 a/given-up waiting", "0 a/reports waiting", "0 a/silent waiting", "for a/given-up",
			"for a/reports", "for a/silent")
		if _, err := n.ContinueMigration(bg,
			&marchv1.ContinueMigrationRequest{Without: []string{"a/given-up"}}); err != nil {
			t.Fatal(err)
		}
		if err := p.Serve(bg, 2); err != nil {
			t.Fatal(err)
		}
		m = w.follow(n, m.GetId(), "waiting for one",
			func(m *marchv1.Migration) bool { return len(m.GetWaiting()) == 1 })
		is(m, "0 a/given-up without", "0 a/reports reported", "0 a/silent waiting", "for a/silent")

		// The way back gives room a the residues that it lost, so no report is needed.
		n.on(func(what string) verdict {
			if what == "move" {
				return refuse
			}
			return pass
		})
		r := must(n.AbortMigration(bg, &marchv1.AbortMigrationRequest{Id: m.GetId()}))(t)
		is(r.GetMigration(), "0 a/given-up unneeded", "0 a/reports reported", "0 a/silent unneeded")
		o := must(n.GetOverview(bg, &marchv1.GetOverviewRequest{}))(t)
		is(o.GetMigration(), "0 a/given-up unneeded", "0 a/reports reported", "0 a/silent unneeded")
		n.on(nil)
		is(w.ends(n, m.GetId(), "aborted"))
	})
}
