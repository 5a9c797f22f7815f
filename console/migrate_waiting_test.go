package console_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

func waits(m *marchv1.Migration) bool { return len(m.GetWaiting()) > 0 && m.GetReached() > 0 }

// TestMigrateWaiting has an instance not report. The expand does not follow its retract
// until the instance reports, is given up, or was silent for long enough.
func TestMigrateWaiting(t *testing.T) {
	type how struct {
		alive bool
		hold  time.Duration
		goOn  func(w *world, n *node, p *ledger.Instance, id string)
	}
	bubbles(t, map[string]how{
		"reports": {true, time.Hour, func(w *world, n *node, p *ledger.Instance, id string) {
			if err := p.Serve(bg, 2); err != nil {
				w.Error(err)
			}
		}},
		"leaves": {false, time.Hour, func(w *world, n *node, p *ledger.Instance, id string) {
			if err := p.Leave(bg); err != nil {
				w.Error(err)
			}
		}},
		"hold": {false, 25 * time.Second, func(*world, *node, *ledger.Instance, string) {}},
		"continue": {true, time.Hour, func(w *world, n *node, p *ledger.Instance, id string) {
			_, err := n.ContinueMigration(bg, &marchv1.ContinueMigrationRequest{Id: id})
			invalid("without", "the migration waits for a/p").check(w, "without nobody", err)
			for _, name := range []string{"a/q", "p", "", "a/p/", "b/p", "b/never-asked", "a/p "} {
				_, err := n.ContinueMigration(bg, &marchv1.ContinueMigrationRequest{Id: id,
					Without: []string{"a/p", name}})
				notFound("without", "does not wait for", "it waits for a/p").check(w, "without "+name, err)
			}
			stays(w, n, id, 1)
			r, err := n.ContinueMigration(bg, &marchv1.ContinueMigrationRequest{Id: id, Without: []string{"a/p"}})
			if err != nil || len(r.GetMigration().GetWithout()) != 1 {
				w.Errorf("continue: %v, %v", r, err)
			}
		}},
		"forget": {true, time.Hour, func(w *world, n *node, p *ledger.Instance, id string) {
			if _, err := n.ForgetInstance(bg, &marchv1.ForgetInstanceRequest{Room: "a", Name: "p"}); err != nil {
				w.Error(err)
			}
			_, err := n.ForgetInstance(bg, &marchv1.ForgetInstanceRequest{Room: "a", Name: "p"})
			notFound("a/p").check(w, "forget again", err)
			_, err = n.ForgetInstance(bg, &marchv1.ForgetInstanceRequest{Room: "A", Name: ""})
			invalid("room", "instance").check(w, "forget badly", err)
		}},
	}, func(t *testing.T, name string, how how) {
		w := newWorld(t, halves())
		before := time.Now()
		n := w.node()
		p := w.puppet("a", "p", how.alive && name != "forget")
		w.puppet("b", "never-asked", false) // room b loses nothing
		m := w.apply(n, quarter(), how.hold)
		m = w.follow(n, m.GetId(), "waiting", func(m *marchv1.Migration) bool {
			return waits(m) && (how.alive && name != "forget" || m.GetWaiting()[0].GetSilentSince() != nil)
		})
		if q := m.GetWaiting(); len(q) != 1 || q[0].GetInstance() != "a/p" || q[0].GetVersion() != 1 {
			t.Errorf("waiting: %v", q)
		} else if since := q[0].GetSilentSince(); since != nil && (how.alive && name != "forget" ||
			since.AsTime().Before(before) || since.AsTime().After(time.Now())) {
			t.Errorf("silent since %v", since.AsTime())
		}
		if m.GetReached() != 1 || w.version() != 2 {
			t.Fatalf("reached %v", m)
		}
		stays(w, n, m.GetId(), 1)
		how.goOn(w, n, p, m.GetId())
		end := w.ends(n, m.GetId(), "done")
		if gap := end.GetMoves()[1].GetMade().AsTime().Sub(end.GetMoves()[0].GetMade().AsTime()); name == "hold" &&
			gap < how.hold {
			t.Errorf("hold was %v, but the second move came after %v", how.hold, gap)
		}
		w.holds(quarter(), 3)
	})
}

// TestMigrateWaitsForTheRest goes on without one of two instances. The migration still
// waits for the other one, and shows that one alone.
func TestMigrateWaitsForTheRest(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		w.puppet("a", "p", false)
		q := w.puppet("a", "q", false)
		m := w.apply(n, quarter(), time.Hour)
		w.follow(n, m.GetId(), "waiting", func(m *marchv1.Migration) bool {
			return len(m.GetWaiting()) == 2 && m.GetWaiting()[1].GetSilentSince() != nil
		})
		r, err := n.ContinueMigration(bg, &marchv1.ContinueMigrationRequest{Without: []string{"a/p", "a/p"}})
		if got := r.GetMigration(); err != nil || len(got.GetWaiting()) != 1 ||
			got.GetWaiting()[0].GetInstance() != "a/q" || len(got.GetWithout()) != 1 {
			t.Errorf("continue: %v, %v", got, err)
		}
		stays(w, n, m.GetId(), 1)
		if err := q.Serve(bg, 2); err != nil {
			t.Error(err)
		}
		w.ends(n, m.GetId(), "done")
		w.holds(quarter(), 3)
	})
}

// TestMigrateStops pauses, resumes and aborts a migration at each point.
func TestMigrateStops(t *testing.T) {
	type stop struct {
		moves  int32 // are made before
		pause  bool
		resume bool
		abort  bool
	}
	cases := make(map[string]stop)
	for k, at := range []string{"before", "between", "after"} {
		cases[at+"-pause-resume"] = stop{int32(k), true, true, false}
		cases[at+"-abort"] = stop{int32(k), false, false, true}
		cases[at+"-pause-abort"] = stop{int32(k), true, false, true}
		cases[at+"-pause-resume-abort"] = stop{int32(k), true, true, true}
	}
	bubbles(t, cases, func(t *testing.T, name string, s stop) {
		w := newWorld(t, halves())
		n := w.node()
		shut := func(moves int32) {
			n.on(func(what string) verdict {
				v := int32(1)
				if r, err := w.Admin.Ledger.Refresh(bg); err == nil {
					v = int32(r.Layout.Version)
				}
				if what == "move" && v > moves || what == "finish" && moves < 100 {
					return refuse
				}
				return pass
			})
		}
		shut(s.moves)
		m := w.apply(n, quarter(), time.Hour)
		id := m.GetId()
		w.follow(n, id, "there", reached(s.moves))
		is := func(m *marchv1.Migration, err error, state string) {
			t.Helper()
			if err != nil || api.Word(m.GetState()) != state {
				t.Errorf("want %s: %v, %v", state, m, err)
			}
		}
		refused := want{codes.FailedPrecondition, "refused", []string{id}}
		if s.pause {
			r, err := n.PauseMigration(bg, &marchv1.PauseMigrationRequest{Id: id})
			is(r.GetMigration(), err, "paused")
			_, err = n.PauseMigration(bg, &marchv1.PauseMigrationRequest{Id: id})
			refused.check(t, "pause again", err)
			n.on(nil)
			stays(w, n, id, s.moves)
			shut(s.moves)
		}
		if s.resume {
			r, err := n.ResumeMigration(bg, &marchv1.ResumeMigrationRequest{Id: id})
			is(r.GetMigration(), err, "running")
			_, err = n.ResumeMigration(bg, &marchv1.ResumeMigrationRequest{Id: id})
			refused.check(t, "resume again", err)
		}
		if !s.abort {
			n.on(nil)
			w.ends(n, id, "done")
			w.holds(quarter(), 3)
			return
		}
		state := "running"
		if s.moves == 0 {
			state = "aborted" // at once, unless the driver makes a move before
			n.on(func(what string) verdict {
				if what == "move" {
					return refuse
				}
				return pass
			})
		}
		r, err := n.AbortMigration(bg, &marchv1.AbortMigrationRequest{Id: id})
		is(r.GetMigration(), err, state)
		_, err = n.AbortMigration(bg, &marchv1.AbortMigrationRequest{Id: id})
		refused.check(t, "abort again", err)
		n.on(nil)
		end := w.ends(n, id, "aborted")
		w.holds(halves(), 1+int64(end.GetReached()))
		if want := []int32{0, 2, 4}[s.moves]; end.GetReached() != want {
			t.Errorf("reached %d, want %d: %v", end.GetReached(), want, end)
		}
		// Before, a migration that ended before its first move showed 0 of 0 moves.
		if want := []int{2, 2, 4}[s.moves]; len(end.GetMoves()) != want {
			t.Errorf("%d moves, want %d: %v", len(end.GetMoves()), want, end)
		}
		for _, stop := range []func() error{
			func() error { _, err := n.PauseMigration(bg, &marchv1.PauseMigrationRequest{Id: id}); return err },
			func() error { _, err := n.ResumeMigration(bg, &marchv1.ResumeMigrationRequest{Id: id}); return err },
			func() error { _, err := n.AbortMigration(bg, &marchv1.AbortMigrationRequest{}); return err },
		} {
			err := stop()
			want{codes.FailedPrecondition, "refused", []string{id}}.check(t, "after the end", err)
		}
		m = w.apply(n, quarter(), time.Hour) // the next migration may start
		w.ends(n, m.GetId(), "done")
	})
}

// TestMigrateAbortsWithout aborts a migration while it waits for a silent instance. The
// abort gives the room back the residues that the instance may still issue, so the
// migration no longer waits.
func TestMigrateAbortsWithout(t *testing.T) {
	bubbles(t, map[string]*marchv1.Layout{
		"retract":  quarter(),
		"drain":    layout(100, map[string][2]int64{"b": {50, 100}}),
		"boundary": layout(200, map[string][2]int64{"a": {100, 200}, "b": {0, 100}}),
	}, func(t *testing.T, name string, target *marchv1.Layout) {
		w := newWorld(t, halves())
		n := w.node()
		w.puppet("a", "silent", false)
		m := w.apply(n, target, time.Hour)
		w.follow(n, m.GetId(), "waiting", waits)
		stays(w, n, m.GetId(), 1)
		if _, err := n.AbortMigration(bg, &marchv1.AbortMigrationRequest{Id: m.GetId()}); err != nil {
			t.Error(err)
		}
		if name == "boundary" {
			// The layout moves back at once here, too. But the instance may have leased IDs
			// under the other boundary, so the migration waits for its report.
			w.follow(n, m.GetId(), "back", func(m *marchv1.Migration) bool {
				return m.GetReached() == 2 && len(m.GetWaiting()) == 1
			})
			stays(w, n, m.GetId(), 2)
			if _, err := n.ContinueMigration(bg,
				&marchv1.ContinueMigrationRequest{Without: []string{"a/silent"}}); err != nil {
				t.Error(err)
			}
		}
		w.ends(n, m.GetId(), "aborted")
		w.holds(halves(), 3)
	})
}

// TestMigrateRefuses makes all calls that must be refused. None of them changes anything.
func TestMigrateRefuses(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		w := &world{Cluster: c.Cluster}
		n := w.node()
		_, err := n.GetMigration(bg, &marchv1.GetMigrationRequest{})
		notFound("no migration").check(t, "get none", err)
		w.puppet("a", "silent", false)
		good := w.plan(n, quarter())
		apply := func(p *marchv1.Plan, hold *durationpb.Duration) error {
			_, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: p, Hold: hold})
			return err
		}
		tamper := func(change func(*marchv1.Plan)) *marchv1.Plan {
			p := proto.Clone(good).(*marchv1.Plan)
			change(p)
			return p
		}
		for what, p := range map[string]*marchv1.Plan{
			"none":            nil,
			"no moves":        tamper(func(p *marchv1.Plan) { p.Moves = nil }),
			"a move less":     tamper(func(p *marchv1.Plan) { p.Moves = p.Moves[1:] }),
			"a move twice":    tamper(func(p *marchv1.Plan) { p.Moves = append(p.Moves, p.Moves[1]) }),
			"another kind":    tamper(func(p *marchv1.Plan) { p.Moves[0].Kind = marchv1.MoveKind_MOVE_KIND_EXPAND }),
			"another range":   tamper(func(p *marchv1.Plan) { p.Moves[0].Layout.Rooms["a"].Upper = 26 }),
			"another target":  tamper(func(p *marchv1.Plan) { p.Target.Rooms["a"].Upper = 24 }),
			"no target":       tamper(func(p *marchv1.Plan) { p.Target = nil }),
			"overlap":         tamper(func(p *marchv1.Plan) { p.Target.Rooms["a"].Upper = 60 }),
			"a version":       tamper(func(p *marchv1.Plan) { p.Moves[0].Layout.Version = 9 }),
			"another from":    tamper(func(p *marchv1.Plan) { p.From.Rooms["a"].Upper = 26 }),
			"target is from":  tamper(func(p *marchv1.Plan) { p.Target = p.From }),
			"another cluster": tamper(func(p *marchv1.Plan) { p.Cluster = "00000000-0000-4000-8000-000000000000" }),
			"no cluster":      tamper(func(p *marchv1.Plan) { p.Cluster = "" }),
			"atomic":          tamper(func(p *marchv1.Plan) { p.Atomic = true }),
		} {
			invalid().check(t, what, apply(p, nil))
			_, err := n.CountPlanCost(bg, &marchv1.CountPlanCostRequest{Plan: p})
			invalid().check(t, "cost of "+what, err)
		}
		for _, wait := range []*durationpb.Duration{durationpb.New(-1),
			durationpb.New(5*time.Second + 1), {Seconds: 1 << 60}} {
			_, err := n.CountPlanCost(bg, &marchv1.CountPlanCostRequest{Plan: good, Wait: wait})
			invalid("wait").check(t, "wait", err)
		}
		for _, hold := range []*durationpb.Duration{
			durationpb.New(-1), durationpb.New(7*24*time.Hour + 1), {Seconds: 1 << 60},
			{Seconds: -1 << 60}, {Nanos: 2_000_000_000},
		} {
			invalid("hold").check(t, "hold", apply(good, hold))
		}
		for what, r := range map[string]*marchv1.PlanMigrationRequest{
			"equal":           {Target: halves()},
			"nothing":         {},
			"both":            {Target: quarter(), Boundary: 200},
			"overlap":         {Target: layout(100, map[string][2]int64{"a": {0, 51}, "b": {50, 100}})},
			"unknown room":    {Move: []string{"x:0-1=b"}},
			"drain unknown":   {Drain: []string{"x"}},
			"drain all":       {Drain: []string{"a", "b"}},
			"past int64":      {Move: []string{"a:25-9223372036854775808=b"}},
			"small boundary":  {Boundary: 1},
			"bad boundary":    {Boundary: -1},
			"does not scale":  {Boundary: 101},
			"whole range":     {Move: []string{"a:0-50=b"}},
			"not adjacent":    {Move: []string{"a:0-10=b"}},
			"room's bad name": {AddRoom: []string{"A=0-10"}},
		} {
			_, err := n.PlanMigration(bg, r)
			invalid().check(t, "plan "+what, err)
		}
		stale := tamper(func(p *marchv1.Plan) { p.From.Version = 7 })
		want{codes.Aborted, "conflict", []string{"version 7", "version 1"}}.check(t, "stale", apply(stale, nil))
		for _, id := range []string{"x", "../layout", strings.Repeat("0", 27), "01ARZ3NDEKTSV4RRFFQ69G5FA!"} {
			_, err := n.GetMigration(bg, &marchv1.GetMigrationRequest{Id: id})
			invalid("migration").check(t, "get "+id, err)
			_, err = n.PauseMigration(bg, &marchv1.PauseMigrationRequest{Id: id})
			invalid("migration").check(t, "pause "+id, err)
			_, err = n.AbortMigration(bg, &marchv1.AbortMigrationRequest{Id: id})
			invalid("migration").check(t, "abort "+id, err)
			_, err = n.ListMigrations(bg, &marchv1.ListMigrationsRequest{PageToken: id})
			invalid().check(t, "list "+id, err)
		}
		_, err = n.GetMigration(bg, &marchv1.GetMigrationRequest{Id: "01ARZ3NDEKTSV4RRFFQ69G5FAV"})
		notFound("01ARZ3NDEKTSV4RRFFQ69G5FAV").check(t, "get unknown", err)
		w.holds(halves(), 1)

		m := w.apply(n, quarter(), time.Hour)
		w.follow(n, m.GetId(), "waiting", waits)
		want{codes.Aborted, "conflict", []string{"version 1", "version 2"}}.check(t, "stale now", apply(good, nil))
		want{codes.AlreadyExists, "exists", []string{m.GetId()}}.check(t, "a second on its way",
			apply(w.plan(n, halves()), nil))
		if _, err := n.AbortMigration(bg, &marchv1.AbortMigrationRequest{}); err != nil {
			t.Error(err)
		}
		w.ends(n, m.GetId(), "aborted")
		w.holds(halves(), 3)
	})
}
