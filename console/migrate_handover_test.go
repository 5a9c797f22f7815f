package console_test

import (
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// TestMigrateHandover kills the console that makes the moves, at each point of a migration.
// Another console finishes it.
func TestMigrateHandover(t *testing.T) {
	type point struct {
		what string
		nth  int32
		does verdict
	}
	bubbles(t, map[string]point{
		"before-move-1":  {"move", 1, dieBefore},
		"after-move-1":   {"move", 1, dieAfter},
		"while-waiting":  {},
		"before-move-2":  {"move", 2, dieBefore},
		"after-move-2":   {"move", 2, dieAfter},
		"before-the-end": {"finish", 1, dieBefore},
		"after-the-end":  {"finish", 1, dieAfter},
	}, func(t *testing.T, name string, point point) {
		w := newWorld(t, halves())
		p := w.puppet("a", "p", true)
		first := w.node()
		var seen atomic.Int32
		first.on(func(what string) verdict {
			if what == point.what && seen.Add(1) == point.nth {
				return point.does
			}
			return pass
		})
		second := w.node()
		second.idle(func() bool { return first.gone() == nil })
		m := w.apply(second, quarter(), time.Hour)
		if name == "while-waiting" {
			w.follow(second, m.GetId(), "waiting", func(m *marchv1.Migration) bool { return len(m.GetWaiting()) == 1 })
			first.kill()
		}
		w.follow(second, m.GetId(), "ends", func(m *marchv1.Migration) bool {
			if v := w.version(); v > 1 {
				if err := p.Serve(bg, v); err != nil {
					t.Error(err)
				}
			}
			return m.GetState() == marchv1.MigrationState_MIGRATION_STATE_DONE
		})
		if first.gone() == nil {
			t.Error("no console was killed")
		}
		w.holds(quarter(), 3)
		by := "migration " + m.GetId()
		want := map[string]int{"init test": 1, "start migration " + m.GetActor(): 1, "change layout " + by: 2,
			"end migration " + by: 1}
		if got := w.audited(second); !maps.Equal(got, want) {
			t.Errorf("audit: %v, want %v", got, want)
		}
		m = w.apply(second, halves(), time.Hour)
		w.follow(second, m.GetId(), "the next ends", func(m *marchv1.Migration) bool {
			if err := p.Serve(bg, w.version()); err != nil {
				t.Error(err)
			}
			return m.GetState() == marchv1.MigrationState_MIGRATION_STATE_DONE
		})
		w.holds(halves(), 5)
	})
}

// audited counts the audit's entries, by action and actor.
func (w *world) audited(n *node) map[string]int {
	w.Helper()
	r := must(n.ListAudit(bg, &marchv1.ListAuditRequest{}))(w)
	count := make(map[string]int)
	for _, e := range r.GetEntries() {
		count[e.GetAction()+" "+e.GetActor()]++
	}
	return count
}

// TestMigrateInDoubt loses answers to a console's transactions or the transactions
// themselves, or sends them late or twice.
func TestMigrateInDoubt(t *testing.T) {
	type strike struct {
		fate ledgertest.Fate
		at   string
	}
	strikes := make(map[string]strike)
	for _, fate := range []ledgertest.Fate{
		{Name: ledgertest.DoneAnswerLost}, {Name: ledgertest.NotDone}, {Name: ledgertest.Late, N: 1},
		{Name: ledgertest.Late, N: 6},
		{Name: ledgertest.Twice}, {Name: ledgertest.NoLeader}, {Name: ledgertest.NoSpaceButApplied},
	} {
		for _, at := range []string{"start", "move", "update", "finish"} {
			strikes[fate.String()+" "+at] = strike{fate, at}
		}
	}
	bubbles(t, strikes, func(t *testing.T, _ string, s strike) {
		fate, at := s.fate, s.at
		w := newWorld(t, halves())
		conn := w.Mem.Open()
		t.Cleanup(func() { _ = conn.Close() })
		var struck atomic.Int32
		conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if what(txn) == at && struck.Add(1) <= 2 { // both moves, start and its repetition
				return fate
			}
			return ledgertest.Fate{}
		})
		n := w.nodeOver(conn)
		made := fate.Name == ledgertest.DoneAnswerLost || fate.Name == ledgertest.NoSpaceButApplied ||
			fate.Name == ledgertest.Twice
		plan := w.plan(n, quarter())
		id := ""
		for range 5 {
			r, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: plan})
			there, active, lookErr := w.Admin.ActiveMigration(bg)
			if lookErr != nil {
				t.Fatal(lookErr)
			}
			if err == nil {
				id = r.GetMigration().GetId()
				break
			}
			if made || active && fate.Name != ledgertest.Late {
				t.Errorf("apply: %v, but migration %v is there: %v", err, there.ID, active)
			}
			if active {
				id = there.ID
				break
			}
		}
		pause := func() error {
			_, err := n.PauseMigration(bg, &marchv1.PauseMigrationRequest{Id: id})
			return err
		}
		if err := pause(); err != nil && (made || at != "update") {
			t.Errorf("pause: %v", err)
		}
		w.Mem.Arrive()
		for range 3 {
			if r, err := n.GetMigration(bg, &marchv1.GetMigrationRequest{Id: id}); err != nil {
				t.Fatal(err)
				// it goes on, or has ended since
			} else if r.GetMigration().GetState() != marchv1.MigrationState_MIGRATION_STATE_PAUSED {
				break
			}
			// If the answer was lost and a console has gone on since, the caller cannot learn whether
			// the pause happened. The state shows it, above and at the end.
			if _, err := n.ResumeMigration(bg, &marchv1.ResumeMigrationRequest{Id: id}); err != nil && at != "update" {
				t.Errorf("resume: %v", err)
			}
			w.Mem.Arrive()
		}
		w.ends(n, id, "done")
		w.holds(quarter(), 3)
		if struck.Load() == 0 {
			t.Error("no transaction was struck")
		}
	})
}

// TestMakeMoveInDoubt calls the ledger directly: it does not report a move as failed that
// was made, and does not make it again.
func TestMakeMoveInDoubt(t *testing.T) {
	for _, fate := range []ledgertest.FateName{
		ledgertest.Done, ledgertest.DoneAnswerLost, ledgertest.NotDone, ledgertest.Late, ledgertest.Twice,
		ledgertest.NoLeader, ledgertest.NoSpaceButApplied,
	} {
		inBubble(t, fate.String(), func(t *testing.T) {
			w := newWorld(t, halves())
			from := must(w.Admin.Ledger.Refresh(bg))(t)
			to := from.Layout
			to.Boundary = 200
			m := must(w.Admin.StartMigration(bg, from, record.Migration{
				From: from.Layout, Target: to, Moves: record.MovesOf(plan.Move{Kind: plan.Switch, Layout: to}),
			}, "test"))(t)
			for _, step := range []string{"move", "update"} {
				conn := w.Mem.Open()
				struck := false
				conn.Fate(func(txn store.Txn) ledgertest.Fate {
					if what(txn) == step && !struck {
						struck = true
						return ledgertest.Fate{Name: fate, N: 100}
					}
					return ledgertest.Fate{}
				})
				l := w.ledger(conn)
				do := func() (record.Migration, error) {
					if step == "move" {
						return admin.New(l, admin.DefaultConfig()).MakeMove(bg, m, nil)
					}
					return admin.New(l, admin.DefaultConfig()).UpdateMigration(bg, m, "", "",
						func(m *record.Migration) error {
							m.Note("", "noted")
							return nil
						})
				}
				next, err := do()
				switch fate {
				case ledgertest.NotDone, ledgertest.NoLeader:
					if err == nil {
						t.Errorf("%s: done, it says: %v", step, next)
					}
					next, err = do()
				case ledgertest.Late:
					if err == nil {
						t.Errorf("%s: done, it says: %v", step, next)
					}
					w.Mem.Arrive()
					if again, err := do(); err == nil {
						t.Errorf("%s: done a second time: %v", step, again)
					}
					next, err = w.Admin.Migration(bg, m.ID)
				}
				if err != nil || next.Reached != 1 || w.version() != 2 {
					t.Fatalf("%s: %v, %v, version %d", step, next, err, w.version())
				}
				m = next
			}
			if n := len(m.Log); n != 3 {
				t.Errorf("log: %v", m.Log)
			}
		})
	}
}
