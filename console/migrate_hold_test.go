package console_test

import (
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// join registers an instance with a hold. It never sends a heartbeat.
func (w *world) join(in allocator.Room, name allocator.Instance, hold time.Duration) *ledger.Instance {
	w.Helper()
	i, err := w.Admin.Ledger.Join(bg, ledger.Registration{Room: in, Name: name, Address: "127.0.0.1:1", Hold: hold})
	if err != nil {
		w.Fatal(err)
	}
	return i
}

// TestMigrateOwnHold: a migration waits for a silent instance for the hold that the instance
// registered, if the migration's hold is shorter. Then the log names the instance.
func TestMigrateOwnHold(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		const hold = 25 * time.Second
		w.join("a", "p", hold)
		m, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: w.plan(n, quarter())})
		if err != nil || m.GetMigration().GetHold().AsDuration() != 0 {
			t.Fatalf("apply: %v, %v", m, err)
		}
		end := w.ends(n, m.GetMigration().GetId(), "done")
		if gap := end.GetMoves()[1].GetMade().AsTime().Sub(end.GetMoves()[0].GetMade().AsTime()); gap < hold {
			t.Errorf("the instance's hold is %v, but the second move came after %v", hold, gap)
		}
		said := false
		var kinds []string
		for _, line := range end.GetLog() {
			said = said || strings.Contains(line.GetText(), "goes on without a/p, silent for at least")
			kinds = append(kinds, api.Word(line.GetKind()))
		}
		if got := strings.Join(kinds, " "); got != "started moved continued moved continued ended" {
			t.Errorf("the events of the log are %s", got)
		}
		if !said {
			t.Errorf("the log does not name the missing instance: %v", end.GetLog())
		}
		w.holds(quarter(), 3)
	})
}

// TestMigrateClientsOfTheGone: clients may still hold segments of an instance that stopped
// before the migration.
func TestMigrateClientsOfTheGone(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		if err := w.join("a", "gone", 10*time.Minute).Leave(bg); err != nil {
			t.Fatal(err)
		}
		m := w.apply(n, quarter(), 0)
		move := w.ends(n, m.GetId(), "done").GetMoves()[0]
		if got := move.GetClientsUntil().AsTime().Sub(move.GetMade().AsTime()); got < 10*time.Minute {
			t.Errorf("clients are said to have IDs for %v; the instance's hold was 10 minutes", got)
		}
	})
}

// TestMigrateClientsOfTheLeaving: clients may also hold segments of an instance that stops
// after the migration has begun and before the move by which its room loses residues.
func TestMigrateClientsOfTheLeaving(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		leaving := w.join("a", "leaving", 5*time.Hour)
		n.on(func(what string) verdict {
			if what == "move" {
				return refuse
			}
			return pass
		})
		m := w.apply(n, quarter(), 0)
		if err := leaving.Leave(bg); err != nil {
			t.Fatal(err)
		}
		n.on(nil)
		move := w.ends(n, m.GetId(), "done").GetMoves()[0]
		if got := move.GetClientsUntil().AsTime().Sub(move.GetMade().AsTime()); got < 5*time.Hour ||
			got > 5*time.Hour+time.Minute {
			t.Errorf("clients are said to have IDs for %v; the instance's hold was 5 hours", got)
		}
	})
}

// TestMigrateClientsUntil: a move says until when clients may use IDs that instances leased
// to them before these reported.
func TestMigrateClientsUntil(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		p, q := w.join("a", "p", time.Hour), w.join("a", "q", 2*time.Hour)
		w.join("b", "loses-nothing", 7*time.Hour)
		m := w.apply(n, quarter(), 0)
		w.follow(n, m.GetId(), "waits", func(m *marchv1.Migration) bool { return len(m.GetWaiting()) == 2 })
		if err := p.Serve(bg, 2); err != nil {
			t.Fatal(err)
		}
		m = w.follow(n, m.GetId(), "waits for one", func(m *marchv1.Migration) bool { return len(m.GetWaiting()) == 1 })
		if until := m.GetMoves()[0].GetClientsUntil(); until != nil {
			t.Errorf("until %v, before all reported", until.AsTime())
		}
		reported := time.Now()
		if err := q.Serve(bg, 2); err != nil {
			t.Fatal(err)
		}
		end := w.ends(n, m.GetId(), "done")
		until := end.GetMoves()[0].GetClientsUntil().AsTime()
		if from := reported.Add(2*time.Hour - time.Second); until.Before(from) ||
			until.After(time.Now().Add(2*time.Hour)) {
			t.Errorf("until %v, want the longer hold, 2 h, after the report at %v", until, reported)
		}
		if expand := end.GetMoves()[1]; expand.GetClientsUntil() != nil {
			t.Errorf("the expand, by which no room lost a residue, says %v", expand)
		}
	})
}
