package console_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/plan"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// tags creates n tags, eight at a time.
func (w *world) tags(n int) {
	w.Helper()
	var work sync.WaitGroup
	for part := range 8 {
		work.Go(func() {
			for k := part; k < n; k += 8 {
				if _, err := w.Admin.CreateTag(bg, tagOf(k), record.DefaultTag(), "test"); err != nil {
					w.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
}

// TestMigrateCostsTheSame counts a console's own writes for a migration. They do not grow
// with the number of tags.
func TestMigrateCostsTheSame(t *testing.T) { measured(t, migrateCostsTheSame) }

func migrateCostsTheSame(t *testing.T) {
	many := 2000
	if *migrations > 0 {
		many = 10_000
	}
	writes := make(map[int]int64)
	for _, tags := range []int{10, many} {
		w := newWorld(t, halves())
		w.tags(tags)
		n := w.node()
		planned := w.plan(n, quarter())
		if cost := w.cost(n, planned).GetCost(); cost.GetTags() != int64(tags) {
			t.Errorf("cost: %v", cost)
		}
		before := n.writes.Load()
		r := must(n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: planned}))(t)
		w.ends(n, r.GetMigration().GetId(), "done")
		writes[tags] = n.writes.Load() - before
		w.holds(quarter(), 3)
	}
	t.Logf("transactions that write: %v", writes)
	if writes[10] != writes[many] || writes[10] != 4 { // start, two moves, end
		t.Errorf("transactions that write, by tags: %v", writes)
	}
}

// TestMigrateManyActiveTags has an instance with many active tags adopt a layout, and logs
// how long that took. As a measurement it has 10,000 tags and allows 10 s.
func TestMigrateManyActiveTags(t *testing.T) { measured(t, migrateManyActiveTags) }

func migrateManyActiveTags(t *testing.T) {
	tags := 500
	if *migrations > 0 {
		tags = 10_000
	}
	w := newWorld(t, halves())
	n := w.node()
	ids := w.server("a", "one")
	var work sync.WaitGroup
	for part := range 16 {
		work.Go(func() {
			for k := part; k < tags; k += 16 {
				if _, err := ids.Next(bg, &marchv1.NextRequest{Tag: string(tagOf(k))}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	m := w.apply(n, quarter(), time.Hour)
	m = w.ends(n, m.GetId(), "done")
	moves := m.GetMoves()
	took := moves[1].GetMade().AsTime().Sub(moves[0].GetMade().AsTime())
	t.Logf("%d active tags moved and reported in %v; all of it %v", tags, took,
		m.GetUpdated().AsTime().Sub(m.GetCreated().AsTime()))
	if *migrations > 0 && took > 10*time.Second {
		t.Errorf("%d active tags took %v, want 10 s at most", tags, took)
	}
	for k := range tags {
		r, err := ids.Next(bg, &marchv1.NextRequest{Tag: string(tagOf(k))})
		if err != nil || r.GetId()%100 >= 25 {
			t.Fatalf("tag %d: %v, %v", k, r, err)
		}
	}
	w.holds(quarter(), 3)
}

// TestMigrateLargest stores, sends and shows the longest known plan of the largest cluster.
func TestMigrateLargest(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		from := allocator.Layout{Version: 1, Boundary: allocator.MaxID,
			Ranges: make(map[allocator.Room]allocator.Range)}
		to := allocator.Layout{Boundary: allocator.MaxID, Ranges: make(map[allocator.Room]allocator.Range)}
		share := int64(allocator.MaxID / allocator.MaxRooms)
		for k := range int64(allocator.MaxRooms) {
			name := allocator.Room(fmt.Sprintf("%063d", k))
			last := allocator.MaxRooms - 1 - k
			from.Ranges[name] = allocator.Range{Lower: k * share, Upper: (k + 1) * share}
			to.Ranges[name] = allocator.Range{Lower: last * share, Upper: (last + 1) * share}
		}
		p := must(plan.New(from, to, false))(t)
		w := newWorld(t, toProto(from))
		n := w.node()
		planned := w.plan(n, toProto(to))
		t.Logf("%d moves, %d bytes", len(p.Moves), proto.Size(planned))
		r := must(n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: planned}))(t)
		w.ends(n, r.GetMigration().GetId(), "done")
		w.holds(toProto(to), 1+int64(len(p.Moves)))
	})
}

// TestMigrateLongest reverses as many rooms as a layout may have, each with a single
// residue, with one gap to park in: the longest known plan.
func TestMigrateLongest(t *testing.T) {
	t.Parallel()
	for _, width := range []int{2, 63} {
		inBubble(t, fmt.Sprint(width), func(t *testing.T) {
			from := allocator.Layout{Version: 1, Boundary: allocator.MaxRooms + 1,
				Ranges: make(map[allocator.Room]allocator.Range)}
			to := allocator.Layout{Boundary: from.Boundary, Ranges: make(map[allocator.Room]allocator.Range)}
			for k := range int64(allocator.MaxRooms) {
				name := allocator.Room(fmt.Sprintf("%0*d", width, k))
				last := allocator.MaxRooms - 1 - k
				from.Ranges[name] = allocator.Range{Lower: k, Upper: k + 1}
				to.Ranges[name] = allocator.Range{Lower: last, Upper: last + 1}
			}
			w := newWorld(t, toProto(from))
			n := w.node()
			planned := w.plan(n, toProto(to))
			t.Logf("%d moves, %d bytes", len(planned.GetMoves()), proto.Size(planned))
			r, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: planned})
			if width == 63 { // more than etcd could take back in one transaction
				invalid("96 moves of 64 rooms", "bytes", "--atomic").check(t, "apply", err)
				w.holds(toProto(from), 1)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			id := r.GetMigration().GetId()
			w.follow(n, id, "on its way", reached(4))
			must(n.PauseMigration(bg, &marchv1.PauseMigrationRequest{Id: id}))(t)
			must(n.AbortMigration(bg, &marchv1.AbortMigrationRequest{Id: id}))(t)
			end := w.ends(n, id, "aborted")
			w.holds(toProto(from), 1+int64(end.GetReached()))
		})
	}
}

func toProto(l allocator.Layout) *marchv1.Layout {
	ranges := make(map[string][2]int64)
	for room, r := range l.Ranges {
		ranges[string(room)] = [2]int64{r.Lower, r.Upper}
	}
	return layout(l.Boundary, ranges)
}
