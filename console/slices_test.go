package console_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// timed makes a tag one of time-ordered IDs, of a layout with the preset's epoch.
func timed(l timeid.Layout) func(*record.TagSettings) {
	l.Unit, l.Epoch = time.Millisecond, timeid.EpochCosId
	t := record.NewTimeTag(l)
	return func(s *record.TagSettings) { s.Time = &t }
}

var (
	small = timeid.Layout{TimeBits: 41, WorkerBits: 2, SequenceBits: 12}
	usual = timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12}
	last  = timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Order: timeid.WorkerLast}
)

func refused(says ...string) want { return want{codes.FailedPrecondition, "refused", says} }

// A migration that takes the range of a home is refused without force, too, and a home that a migration, or its abort,
// takes the range of. The tag is made after the plan.
func TestMigrationsThatTakeHomes(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, halves())
		n := w.node()
		settings := record.DefaultTag()
		settings.StrictOrder, settings.TenureHold, settings.Home = record.OrderCluster, record.DefaultTenureHold, "b"
		drained := layout(100, map[string][2]int64{"a": {0, 100}})
		planned := w.plan(n, drained)
		if _, err := w.Admin.CreateTag(bg, "o", settings, "test"); err != nil {
			t.Fatal(err)
		}
		_, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: planned})
		refused("room b has no range", "[o]", "`march tag update o --home ROOM`").check(t, "apply", err)
		home := func(room allocator.Room) error {
			change := func(s *record.TagSettings) error { s.Home = room; return nil }
			_, err := w.Admin.UpdateTag(bg, "o", change, "test")
			return err
		}
		if err := home("a"); err != nil {
			t.Fatal(err)
		}
		w.puppet("b", "p", true) // it does not report
		m := w.apply(n, layout(100, map[string][2]int64{"a": {0, 50}, "c": {50, 100}}), time.Hour)
		err = home("b")
		refused("migration "+m.GetId()+" is under way: room b has no range in layout version ").check(t, "home b",
			api.ToStatus(err))
		w.follow(n, m.GetId(), "it waits", func(m *marchv1.Migration) bool { return len(m.GetWaiting()) > 0 })
	})
}

// While a migration waits that has given rooms residues, a room that it gave a range is no home, as an abort takes that
// away. A tag of time-ordered IDs may be made that only the wider ranges have workers for: there is then no way back.
func TestTagsInAMigrationThatWidens(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		w := newWorld(t, layout(100, map[string][2]int64{"a": {0, 30}, "b": {60, 70}}))
		n := w.node()
		w.puppet("a", "p", true) // it does not report
		m := w.apply(n, layout(100, map[string][2]int64{"a": {0, 26}, "b": {45, 70}, "c": {70, 100}}), time.Hour)
		m = w.follow(n, m.GetId(), "it waits", func(m *marchv1.Migration) bool { return len(m.GetWaiting()) > 0 })
		w.Tag(timed(small), "test", "event")
		settings := record.DefaultTag()
		settings.StrictOrder, settings.TenureHold, settings.Home = record.OrderCluster, record.DefaultTenureHold, "c"
		_, err := w.Admin.CreateTag(bg, "o", settings, "test")
		refused("migration "+m.GetId()+" is under way: room c has no range in layout version 1").check(t, "home c",
			api.ToStatus(err))
	})
}

// A plan that leaves a room without a worker, takes a pinned number, or changes the
// boundary under a tag with the worker last is refused as a plan, and when it is applied,
// with force too; so is a layout that is set by hand.
func TestPlansThatTakeWorkers(t *testing.T) {
	for name, c := range map[string]struct {
		tag    timeid.Layout
		pin    *worker.Pin
		target *marchv1.Layout
		says   []string
	}{
		"no worker": {tag: small, target: layout(100, map[string][2]int64{"a": {0, 76}, "b": {76, 100}}),
			says: []string{"room b", "2 bits", "tag event", "25 residues"}},
		"pinned": {tag: usual, pin: new(worker.PinTo(7)), target: layout(100, map[string][2]int64{"a": {0, 60},
			"b": {60, 100}}), says: []string{"b/b1", "pinned worker 7", "number 519", "10 bits",
			"tag event", "begins at 512"}},
		"worker last": {tag: last, target: layout(200, map[string][2]int64{"a": {0, 100}, "b": {100, 200}}),
			says: []string{"boundary: 200; allowed: 100", "tag event"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := startHalves(t)
			if c.pin != nil {
				s.Room("b", "b1", func(cfg *room.Config) { cfg.Worker = *c.pin })
			}
			before, err := s.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: c.target, Force: true})
			if err != nil {
				t.Fatal(err)
			}
			s.Tag(timed(c.tag), "test", "event")

			testcluster.Await(t, "a plan sees the tag", func() bool {
				_, err = s.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: c.target, Force: true})
				return err != nil
			})
			refused(c.says...).check(t, "plan", err)
			_, err = s.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: before.GetPlan(), Force: true})
			refused(c.says...).check(t, "apply", err)
			_, err = s.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: unforced(before.GetPlan())})
			refused(c.says...).check(t, "apply without force", err)
			answer, err := s.CountPlanCost(bg, &marchv1.CountPlanCostRequest{Plan: before.GetPlan(),
				Wait: durationpb.New(longest)})
			if err != nil || answer.GetRefused() == "" || answer.GetCost().GetTags() != 1 ||
				len(answer.GetCost().GetWorst()) > 0 {
				t.Errorf("costs: %v, %v", answer, err)
			}
			from := must(s.Admin.Ledger.Refresh(bg))(t)
			to := allocator.Layout{Boundary: c.target.GetBoundary(), Ranges: make(map[allocator.Room]allocator.Range)}
			for name, r := range c.target.GetRooms() {
				to.Ranges[allocator.Room(name)] = allocator.Range{Lower: r.GetLower(), Upper: r.GetUpper()}
			}
			if _, err := s.Admin.ChangeLayout(bg, from, to, "test"); allocator.KindOf(err) != allocator.Refused {
				t.Errorf("a layout by hand: %v", err)
			}
			if err := s.Admin.DeleteTag(bg, "event", "test"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: c.target}); err != nil {
				t.Errorf("without the tag: %v", err)
			}
		})
	}
}

// A plan finds moves that leave each room a worker where the shortest would not: rooms a and
// b, which have one each, do not halve their ranges to change places; c lends a part of its.
// A plan looks at the first tags only. It knows of the others once costs were counted, or a plan
// was applied with force, and a tag that it does not see refuses none.
func TestPlansLeaveWorkers(t *testing.T) {
	for name, force := range map[string]bool{"costs counted": false, "with force": true} {
		inBubble(t, name, func(t *testing.T) {
			plansLeaveWorkers(t, force)
		})
	}
}

func plansLeaveWorkers(t *testing.T, force bool) {
	c := testcluster.New(t)
	c.Init(allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 25},
		"b": {Lower: 25, Upper: 50}, "c": {Lower: 50, Upper: 100}}}, "test")
	s := startOver(c)
	target := &marchv1.PlanMigrationRequest{Target: layout(100,
		map[string][2]int64{"a": {25, 50}, "b": {0, 25}, "c": {50, 100}})}
	before, err := s.PlanMigration(bg, target)
	if err != nil {
		t.Fatal(err)
	}
	for i := range slicesTags {
		s.Tag(nil, "test", allocator.Tag(fmt.Sprint("counter-", i)))
	}
	s.Tag(timed(small), "test", "event")
	apply := &marchv1.ApplyMigrationRequest{Plan: unforced(before.GetPlan()), Force: force}
	_, err = s.ApplyMigration(bg, apply)
	refused("has no worker of 2 bits", "tag event").check(t, "apply the plan from before the tag", err)
	planned := must(s.PlanMigration(bg, target))(t)
	for _, m := range planned.GetPlan().GetMoves() {
		for name, r := range m.GetLayout().GetRooms() {
			if timeid.Slice(allocator.Range{Lower: r.GetLower(), Upper: r.GetUpper()}, 100, 2).Width() < 1 {
				t.Errorf("room %s has no worker in layout %v", name, m.GetLayout())
			}
		}
	}
	unused := &marchv1.PlanMigrationRequest{Target: layout(100,
		map[string][2]int64{"a": {0, 10}, "b": {10, 20}, "c": {20, 100}})}
	if _, err := s.PlanMigration(bg, unused); err != nil {
		t.Errorf("a plan is refused for a tag that it does not see: %v", err)
	}
	if _, err := s.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: unforced(planned.GetPlan())}); err != nil {
		t.Error(err)
	}
}

// slicesTags are more tags than a plan looks at.
const slicesTags = 1001

// unforced returns a plan that no operator agreed to.
func unforced(p *marchv1.Plan) *marchv1.Plan {
	p = proto.CloneOf(p)
	p.Force = false
	return p
}

const longest = 5 * time.Second

// A tag that a migration under way leaves without a worker is not created.
func TestTagsDuringAMigration(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(testcluster.Halves(), "test")
		from := must(c.Admin.Ledger.Refresh(bg))(t)
		planned := must(plan.New(from.Layout, allocator.Layout{Boundary: 100,
			Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 76}, "b": {Lower: 76, Upper: 100}}},
			false))(t)
		// No console makes its moves.
		m, err := c.Admin.StartMigration(bg, from, record.Migration{From: planned.From, Target: planned.Target,
			Moves: record.MovesOf(planned.Moves...)}, "test")
		if err != nil {
			t.Fatal(err)
		}
		tag := record.DefaultTag()
		timed(small)(&tag)
		_, err = c.Admin.CreateTag(bg, "event", tag, "test")
		if allocator.KindOf(err) != allocator.Refused || !strings.Contains(err.Error(), m.ID+" is under way") ||
			!strings.Contains(err.Error(), "room b") {
			t.Errorf("the tag was created: %v", err)
		}
		c.Tag(timed(usual), "test", "event")
	})
}

// A room reports a layout only when it uses none of the workers that the layout took from
// it. Its callers notice nothing, and the room that gets the slice can use it.
func TestAMoveWaitsForWorkers(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		s := startHalves(t)
		s.Tag(timed(usual), "test", "event")
		a, b := s.room("a", "a1"), s.room("b", "b1")

		ctx, cancel := context.WithCancel(bg)
		var callers sync.WaitGroup
		defer callers.Wait()
		defer cancel()
		for _, r := range []*testcluster.Room{a, b} {
			must(r.Next(bg, &marchv1.NextRequest{Tag: "event"}))(t)
			callers.Go(func() {
				for ctx.Err() == nil {
					if _, err := r.Next(ctx, &marchv1.NextRequest{Tag: "event"}); err != nil && ctx.Err() == nil {
						t.Errorf("a call failed: %v", err)
						return
					}
					time.Sleep(time.Millisecond)
				}
			})
		}

		etcd, keys := s.Open(t), record.Keys("/march/default/")
		// look reads the workers and room b's report in one snapshot.
		look := func() (reported int64, used []int64) {
			answer := must(etcd.Txn(bg, store.Txn{Then: []store.Op{store.OpGetPrefix(keys.All(record.Windows)),
				store.OpGet(keys.Registration("b", "b1"))}}))(t)
			now := time.Now().UnixMilli()
			for _, kv := range answer.Got[0] {
				id, w, err := keys.DecodeWorker(kv)
				if err != nil {
					t.Fatal(err)
				}
				if w.Room == "b" && w.Until > now+1 { // the tick that was used last ends then
					used = append(used, id.Number)
				}
			}
			i := must(record.ReadAs[record.Instance](keys, answer.Got[1][0]))(t)
			return i.Version, used
		}
		if version, used := look(); version != 1 || len(used) != 1 || used[0] < 512 || used[0] >= 922 {
			t.Fatalf("room b reports version %d, and has workers %v", version, used)
		}

		planned := must(s.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: layout(100,
			map[string][2]int64{"a": {0, 90}, "b": {90, 100}})}))(t)
		m := must(s.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: planned.GetPlan()}))(t)
		looks := 0
		testcluster.Await(t, "the end of the migration", func() bool {
			for range 20 {
				if version, used := look(); version > 1 {
					looks++
					if slices.ContainsFunc(used, func(n int64) bool { return n < 922 }) || len(used) != 1 {
						t.Errorf("room b reports version %d, and has workers %v", version, used)
					}
				}
			}
			answer, err := s.GetMigration(bg, &marchv1.GetMigrationRequest{Id: m.GetMigration().GetId()})
			return err == nil && answer.GetMigration().GetState() == marchv1.MigrationState_MIGRATION_STATE_DONE
		})
		if looks == 0 {
			t.Error("room b never reported")
		}
		// Room a may use all of it now, and b's old worker is free.
		pinned := s.Room("a", "a2", func(cfg *room.Config) { cfg.Worker = worker.PinTo(921) })
		answer := must(pinned.Next(bg, &marchv1.NextRequest{Tag: "event"}))(t)
		if n := answer.GetId() >> 12 & 1023; n != 921 {
			t.Errorf("room a issues with worker %d", n)
		}
	})
}
