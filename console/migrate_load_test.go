package console_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/room"
)

// issue is a run of IDs that a call answered, and what had been confirmed when
// the call began: the version that the last migration ended with, and the
// layout that its successor had reached.
type issue struct {
	first, count, ended, reached int64
}

// caller asks one room for one tag's IDs, again and again.
type caller struct {
	room   allocator.Room
	tag    allocator.Tag
	issued []issue
	calls  int
}

var noRange = regexp.MustCompile(`room ([a-z]) has no range in layout version (\d+)`)

// TestMigrateUnderLoad makes random migrations in a row while all rooms are
// called.
func TestMigrateUnderLoad(t *testing.T) {
	const tags = 20
	migrations, within := 25, 30*time.Second
	if testing.Short() {
		migrations = 5
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	etcd := ledgertest.StartEtcd(t)
	w := newWorld(t, etcd.Store, "default", halves())
	for k := range tags {
		if _, err := w.admin.CreateTag(bg, tagOf(k), ledger.DefaultTag(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	n := w.node()
	w.node()
	rooms := []allocator.Room{"a", "b"}
	var instances []marchv1.IDServiceClient
	of := []allocator.Room{"a", "a", "b"}
	for k, r := range of {
		instances = append(instances, w.server(r, allocator.Instance(fmt.Sprint("i", k))))
	}

	var ended, at atomic.Int64 // versions, as in issue
	ended.Store(1)
	at.Store(1)
	var work sync.WaitGroup
	var mu sync.Mutex
	var callers []*caller
	var failed []string // calls that failed because their room had no range
	done := make(chan struct{})
	call := func(ids marchv1.IDServiceClient, in allocator.Room) {
		for k := range tags {
			c := &caller{room: in, tag: tagOf(k)}
			callers = append(callers, c)
			work.Go(func() {
				ctx, cancel := context.WithTimeout(bg, 2*time.Minute)
				defer cancel()
				for turn := 0; ; turn++ {
					select {
					case <-done:
						return
					case <-time.After(time.Millisecond):
					}
					i := issue{ended: ended.Load(), reached: at.Load()}
					var runs []*marchv1.Run
					var err error
					if (turn+k)%4 == 0 {
						var r *marchv1.NextBatchResponse
						r, err = ids.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(c.tag), Count: 1 + int64(turn)%60})
						runs = r.GetRuns()
					} else {
						var r *marchv1.NextResponse
						r, err = ids.Next(ctx, &marchv1.NextRequest{Tag: string(c.tag)})
						runs = []*marchv1.Run{{First: r.GetId(), Count: 1}}
					}
					if err != nil {
						mu.Lock()
						if s := status.Convert(err); s.Code() == codes.FailedPrecondition && noRange.MatchString(s.Message()) {
							failed = append(failed, s.Message())
						} else {
							t.Errorf("room %s tag %s: %v", in, c.tag, err)
						}
						mu.Unlock()
						continue
					}
					c.calls++
					for _, r := range runs {
						i.first, i.count = r.GetFirst(), r.GetCount()
						c.issued = append(c.issued, i)
					}
				}
			})
		}
	}
	for k, ids := range instances {
		call(ids, of[k])
	}

	began := time.Now()
	made, moves, kinds := 0, 0, make(map[string]int)
	for made < migrations && time.Since(began) < within && !t.Failed() {
		if extra := []allocator.Room{"c", "d"}; made > 0 && made%2 == 0 && len(rooms) < 4 {
			r := extra[len(rooms)-2]
			rooms = append(rooms, r)
			call(w.server(r, "late"), r)
		}
		target := randomLayout(random, rooms)
		r, err := n.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: target})
		switch status.Code(err) {
		case codes.InvalidArgument: // the current one
			continue
		case codes.FailedPrecondition:
			r, err = n.PlanMigration(bg, &marchv1.PlanMigrationRequest{Target: target, Atomic: true})
		}
		if err != nil {
			t.Fatalf("plan to %v: %v", target, err)
		}
		started, err := n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: r.GetPlan()})
		if err != nil {
			t.Fatalf("apply: %v", err)
		}
		switched := false
		end := w.follow(n, started.GetMigration().GetId(), "done", func(m *marchv1.Migration) bool {
			if k := m.GetReached(); k > 0 {
				last := m.GetMoves()[k-1]
				switched = switched || last.GetKind() == "switch"
				if !switched {
					at.Store(last.GetLayout().GetVersion())
				}
			}
			return m.GetState() == "done"
		})
		last := end.GetMoves()[len(end.GetMoves())-1].GetLayout().GetVersion()
		at.Store(last)
		ended.Store(last)
		made++
		for _, m := range end.GetMoves() {
			moves++
			kinds[m.GetKind()]++
		}
	}
	took := time.Since(began)
	time.Sleep(100 * time.Millisecond)
	close(done)
	work.Wait()

	dump, err := w.admin.Dump(bg)
	if err != nil {
		t.Fatal(err)
	}
	layouts := make(map[int64]allocator.Layout)
	for _, r := range dump.History {
		layouts[r.Layout.Version] = r.Layout
	}
	for _, text := range failed {
		part := noRange.FindStringSubmatch(text)
		version, _ := strconv.ParseInt(part[2], 10, 64)
		if _, has := layouts[version].Ranges[allocator.Room(part[1])]; has || layouts[version].Version == 0 {
			t.Errorf("%s, but it has one", text)
		}
	}
	calls, total := 0, int64(0)
	all := make(map[allocator.Tag][]issue)
	for _, c := range callers {
		calls += c.calls
		all[c.tag] = append(all[c.tag], c.issued...)
		eras := slices.Concat(dump.Eras[c.tag][c.room], []ledger.Era{dump.Marks[c.tag][c.room].Era})
		for _, i := range c.issued {
			total += i.count
			for id := i.first; id < i.first+i.count; id++ {
				if problem := wrong(layouts, eras, c.room, i, id); problem != "" {
					t.Fatalf("room %s tag %s ID %d of %+v: %s; eras %v", c.room, c.tag, id, i, problem, eras)
				}
			}
		}
	}
	for tag, list := range all {
		slices.SortFunc(list, func(a, b issue) int { return int(min(max(a.first-b.first, -1), 1)) })
		for k := 1; k < len(list); k++ {
			if before := list[k-1]; list[k].first < before.first+before.count {
				t.Fatalf("tag %s: twice: %+v and %+v", tag, before, list[k])
			}
		}
	}
	ledgertest.CheckCluster(t, w.open(t), w.name, nil)
	t.Logf("%d migrations of %d moves %v in %v; %d calls (%.0f/s), %d IDs, %d calls of drained rooms",
		made, moves, kinds, took.Round(time.Millisecond), calls, float64(calls)/took.Seconds(), total, len(failed))
	if made < 5 {
		t.Errorf("only %d migrations in %v", made, took)
	}
}

// wrong says what is wrong with an ID, empty for nothing.
func wrong(layouts map[int64]allocator.Layout, eras []ledger.Era, in allocator.Room, i issue, id int64) string {
	k := slices.IndexFunc(eras, func(e ledger.Era) bool { return e.First <= id && id < e.End })
	if k < 0 {
		return "never leased"
	}
	version := eras[k].Version
	if l := layouts[version]; !l.Ranges[in].Contains(id % l.Boundary) {
		return fmt.Sprintf("not in its room's range of version %d", version)
	}
	if l := layouts[i.ended]; version < i.ended && !l.Ranges[in].Contains(id%l.Boundary) {
		return fmt.Sprintf("of version %d, retracted: the migration to version %d had ended before", version, i.ended)
	}
	if l := layouts[i.reached]; version < i.reached && l.Boundary == layouts[version].Boundary {
		for other, r := range l.Ranges {
			if other != in && r.Contains(id%l.Boundary) {
				return fmt.Sprintf("of version %d, retracted: room %s has it in version %d, which was made before", version, other, i.reached)
			}
		}
	}
	return ""
}

func tagOf(k int) allocator.Tag { return allocator.Tag(fmt.Sprintf("tag-%d", k)) }

// randomLayout returns a layout of some of rooms, in any order, with gaps or
// without.
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
	var sorted []int64
	for c := range cuts {
		sorted = append(sorted, c)
	}
	slices.Sort(sorted)
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
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC = in, name, w.ledger(w.open(w)), listen(w)
	cfg.CreateTags = true
	server, err := room.New(cfg)
	if err != nil {
		w.Fatal(err)
	}
	run(w, server.Run)
	conn, err := grpc.NewClient(cfg.GRPC.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = conn.Close() })
	return marchv1.NewIDServiceClient(conn)
}
