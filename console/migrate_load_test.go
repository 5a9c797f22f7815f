package console_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// migrations makes TestMigrationsUnderLoad a measurement over a real etcd: it makes this many
// migrations in a row, and asserts how much they may cost callers. The tests of the costs of
// migrations take their full size with it.
var migrations = flag.Int("migrations", 0, "measure so many migrations in a row; 0: make some, and assert no figures")

// measured runs a test in a bubble, or as a measurement.
func measured(t *testing.T, test func(*testing.T)) {
	t.Helper()
	if *migrations > 0 {
		test(t)
		return
	}
	testcluster.Bubble(t, test)
}

const (
	// The load calls this many tags, with so many calls a second to all rooms together, most of
	// them Next, while so many migrations are made, where nothing is measured.
	loadTags, loadRate, loadMigrations = 20, 500, 10
	// The same of a measurement.
	measuredTags, measuredRate = 50, 21_500
	// The bounds of a measurement.
	leastNext = 20_000 // a second
	mostRatio = 1.5    // of the p99 during migrations to the p99 without them
)

// TestMigrationsUnderLoad makes random migrations in a row while all rooms are called. After
// each group of migrations comes an equally long time without, so that both are measured
// on the same machine in the same state.
func TestMigrationsUnderLoad(t *testing.T) { measured(t, migrationsUnderLoad) }

func migrationsUnderLoad(t *testing.T) {
	want, group, rate, tags, measure := loadMigrations, 3, int64(loadRate), loadTags, *migrations > 0
	if measure {
		want, rate, tags = *migrations, measuredRate, measuredTags
		defer debug.SetGCPercent(debug.SetGCPercent(400)) // the load, the rooms and etcd share one heap
	}
	seed := uint64(time.Now().UnixNano()) // always the same in a bubble
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	w := newWorld(t, halves())
	for k := range tags {
		must(w.Admin.CreateTag(bg, tagOf(k), record.DefaultTag(), "test"))(t)
	}
	n := w.node()
	w.node()
	load := newLoad(w, tags, rate)
	defer load.stop()
	rooms := []allocator.Room{"a", "b"}
	for k, r := range []allocator.Room{"a", "a", "b"} {
		load.call(r, allocator.Instance(fmt.Sprint("i", k)))
	}
	load.warm()

	began := time.Now()
	moves, kinds, made := 0, make(map[string]int), 0
	for made < want && !t.Failed() {
		start := time.Now()
		load.enter(migrating)
		for range min(group, want-made) {
			if extra := []allocator.Room{"c", "d"}; made > 0 && made%2 == 0 && len(rooms) < 4 {
				r := extra[len(rooms)-2]
				rooms = append(rooms, r)
				load.call(r, "late")
			}
			for _, m := range load.migrate(n, random, rooms) {
				moves++
				kinds[api.Word(m.GetKind())]++
			}
			made++
		}
		took := time.Since(start)
		load.enter(settling)
		time.Sleep(300 * time.Millisecond) // the instances adopt the last layout
		load.enter(quiet)
		time.Sleep(took)
	}
	took := time.Since(began)
	load.stop()
	calls := load.check()
	failed := load.mu.failed
	for _, text := range failed[:min(10, len(failed))] {
		t.Error(text)
	}
	ledgertest.CheckCluster(t, w.Open(t), w.ClusterName, nil)
	t.Logf("%d migrations of %d moves %v in %v; %d calls, %d IDs; calls that failed: %d, "+
		"%d of rooms without a range",
		made, moves, kinds, took.Round(time.Millisecond), calls.calls, calls.ids, len(failed), calls.refused)
	next := float64(calls.next) / load.elapsed.Seconds()
	ratio := float64(load.mu.took[migrating].ValueAtQuantile(99)) / float64(load.mu.took[quiet].ValueAtQuantile(99))
	t.Logf("%d tags, %.0f Next/s of %d, p99 ratio %.2f", tags, next, rate, ratio)
	t.Logf("calls without migrations %s, with %s", spread(load.mu.took[quiet]), spread(load.mu.took[migrating]))
	t.Logf("from when they were due without migrations %s, with %s", spread(load.mu.fromDue[quiet]),
		spread(load.mu.fromDue[migrating]))
	if measure && (made < want || next < leastNext || ratio > mostRatio) {
		t.Errorf("%d migrations at %.0f Next/s with a p99 of %.2f times that without; want %d, %d at least, %v at most",
			made, next, ratio, want, leastNext, mostRatio)
	}
}

func spread(h *hdrhistogram.Histogram) string {
	at := func(q float64) time.Duration {
		return time.Duration(h.ValueAtQuantile(q)).Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v p99 %v p99.9 %v of %d", at(50), at(99), at(99.9), h.TotalCount())
}

// migrate makes one random migration, and returns its moves.
func (l *load) migrate(n *node, random *rand.Rand, rooms []allocator.Room) []*marchv1.Move {
	l.Helper()
	for {
		target := randomLayout(random, rooms)
		r, err := n.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: target})
		switch status.Code(err) {
		case codes.InvalidArgument: // the current one
			continue
		case codes.FailedPrecondition:
			r, err = n.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: target, Atomic: true})
		}
		if err != nil {
			l.Fatalf("plan to %v: %v", target, err)
		}
		started, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: r.GetPlan()})
		if err != nil {
			l.Fatalf("apply: %v", err)
		}
		return l.ends(n, started.GetMigration().GetId(), "done").GetMoves()
	}
}

func tagOf(k int) allocator.Tag { return allocator.Tag(fmt.Sprintf("tag-%d", k)) }

// randomLayout returns a layout of some of rooms, in any order, with or without gaps.
func randomLayout(random *rand.Rand, rooms []allocator.Room) *marchv1.Layout {
	boundary := int64(100)
	if random.IntN(10) == 0 {
		boundary = []int64{8, 64, 997, 100_000}[random.IntN(4)]
	}
	in := slices.Clone(rooms)
	random.Shuffle(len(in), func(a, b int) { in[a], in[b] = in[b], in[a] })
	in = in[:max(1+random.IntN(len(in)), 1+random.IntN(len(in)))]
	cuts := make(map[int64]bool)
	for len(cuts) < 2*len(in) {
		cuts[random.Int64N(boundary+1)] = true
	}
	sorted := slices.Sorted(maps.Keys(cuts))
	gaps := random.IntN(2) == 0
	ranges := make(map[string][2]int64)
	for k, r := range in {
		lower := sorted[2*k]
		if !gaps {
			lower = 0
			if k > 0 {
				lower = sorted[2*k-1]
			}
		}
		ranges[string(r)] = [2]int64{lower, sorted[2*k+1]}
	}
	return layout(boundary, ranges)
}

// server starts an instance, and does not wait for it.
func (w *world) server(in allocator.Room, name allocator.Instance) marchv1.IDServiceClient {
	w.Helper()
	r := w.Launch(in, name, func(cfg *room.Config) { cfg.Ledger, cfg.CreateTags = w.ledger(w.Open(w)), true })
	return marchv1.NewIDServiceClient(testcluster.Dial(w, r.Address,
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))))
}
