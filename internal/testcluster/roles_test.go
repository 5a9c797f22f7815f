package testcluster_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// guarded is a cluster with users in etcd. The users have the roles that `march etcd roles`
// prints, and the password "first".
type guarded struct {
	*testcluster.Cluster
	t        *testing.T
	etcd     *ledgertest.Etcd
	password atomic.Pointer[string]
	end      func() // of the questions for users
}

const keys = record.Keys("/march/default/")

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{t: t, etcd: ledgertest.StartEtcd(t)}
	first := "first"
	g.password.Store(&first)
	for _, role := range []record.Role{keys.ConsoleRole(), keys.OperatorRole(), keys.RoomRole("a", false),
		keys.RoomRole("b", false)} {
		for range 2 { // the commands may run again
			g.etcd.Etcdctl(t, first, role.Commands(true)...)
			g.etcd.Etcdctl(t, first, role.UserCommands("--interactive=false < "+role.Name+".password")...)
		}
	}
	g.end = g.etcd.RequireCredentials(t)
	g.Cluster = testcluster.Over(t, "default", func(testing.TB) store.Store { return g.store("operator") })
	return g
}

// store returns a store of a user.
func (g *guarded) store(user string) store.Store {
	return g.etcd.StoreOf(g.t, "march-default-"+user, func() (string, error) { return *g.password.Load(), nil })
}

func (g *guarded) ledger(user string) *ledger.Ledger { return g.LedgerOver(g.store(user), nil) }

// room starts an instance of a room, as the room's user.
func (g *guarded) room(in allocator.Room) *testcluster.Room {
	return g.Room(in, "one", func(cfg *room.Config) { cfg.Ledger = g.ledger("room-" + string(in)) })
}

// takes takes IDs of tags from a room, also above what it holds.
func (g *guarded) takes(r *testcluster.Room, tags ...string) {
	g.Helper()
	for _, tag := range tags {
		testcluster.Await(g, "IDs of "+tag, func() bool {
			_, err := r.NextBatch(g.Context(), &marchv1.NextBatchRequest{Tag: tag, Count: 1000})
			return err == nil
		})
	}
}

// The roles suffice for rooms, a console, a migration and a recover, and allow no room to
// write another room's keys.
func TestEtcdRolesSuffice(t *testing.T) {
	g := newGuarded(t)
	ctx := t.Context()
	c := g.Console(func(cfg *console.Config) { cfg.Ledger = g.ledger("console") })
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	layout := func(lower, upper int64) *marchv1.Layout {
		return &marchv1.Layout{Boundary: 100, Rooms: map[string]*marchv1.Range{"a": {Lower: 0, Upper: lower},
			"b": {Lower: upper, Upper: 100}}}
	}
	_, err := c.InitLayout(ctx, &marchv1.InitLayoutRequest{Layout: layout(50, 50)})
	must("init", err)
	for _, tag := range []*marchv1.Tag{{Name: "order"}, {Name: "gone"},
		{Name: "time", Time: &marchv1.TimeTag{Preset: "leaf"}}} {
		_, err := c.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: tag})
		must("create tag", err)
	}
	a, b := g.room("a"), g.room("b")
	g.takes(a, "order", "gone", "time")
	g.takes(b, "order", "time")
	for _, r := range []*testcluster.Room{a, b} {
		answer, err := marchv1.NewRoomServiceClient(r.Conn).GetInstance(ctx, &marchv1.GetInstanceRequest{})
		must("get instance", err)
		if list := answer.GetStatus().GetProblems(); len(list) > 0 {
			t.Errorf("problems of room %s: %v", r.In, list)
		}
	}
	_, err = c.SkipTag(ctx, &marchv1.SkipTagRequest{Name: "order", To: 50_000})
	must("skip", err)
	plan, err := c.PlanMigration(ctx, &marchv1.PlanMigrationRequest{Target: layout(25, 75)})
	must("plan", err)
	m, err := c.ApplyMigration(ctx, &marchv1.ApplyMigrationRequest{Plan: plan.GetPlan()})
	must("apply", err)
	testcluster.Await(t, "the migration is done", func() bool {
		r, err := c.GetMigration(ctx, &marchv1.GetMigrationRequest{Id: m.GetMigration().GetId()})
		return err == nil && r.GetMigration().GetState() == marchv1.MigrationState_MIGRATION_STATE_DONE
	})
	_, err = c.UpdateCluster(ctx,
		&marchv1.UpdateClusterRequest{Cluster: &marchv1.Cluster{Journal: marchv1.JournalMode_JOURNAL_MODE_OPTIONAL}})
	must("update cluster", err)
	_, err = c.DeleteTag(ctx, &marchv1.DeleteTagRequest{Name: "gone"})
	must("delete tag", err)

	ledgertest.WantKind(t, g.store("operator").Compact(ctx, 2), allocator.Denied) // etcd lets root alone do that

	g.writes("a", "b")
	g.writes("b", "a")
	_, err = g.store("room-a").Txn(ctx, store.Txn{Then: []store.Op{store.OpPut("/march/other/beat", []byte("x"))}})
	ledgertest.WantKind(t, err, allocator.Denied)

	b.Stop()
	_, err = g.ledger("room-a").Halt(ctx, "room a", "a test")
	must("halt", err)
	report, err := recovery.Run(ctx, g.ledger("operator"), recovery.Config{
		Actor: "ann", Apply: true, Without: []record.InstanceID{"a/one"}, Margin: new(int64(2)),
		Ask: func(context.Context, record.SeenInstance, record.Question, record.UseMarks) (record.Memory, error) {
			return record.Memory{}, errors.New("no answer")
		},
	})
	must("recover", err)
	if report.Epoch == "" || report.Margin == 0 {
		t.Errorf("recovered: %+v", report)
	}
	// Room b leased nothing since; instance a/one was left out and may not raise its marks, so
	// it halts where the margin does not cover its leases.
	g.takes(g.room("b"), "order") // workers wait: the recover went on without an instance
	_, err = c.ForgetInstance(ctx, &marchv1.ForgetInstanceRequest{Room: "b", Name: "one"})
	must("forget", err)
	c.Stop()
	a.Stop()
	g.end()
}

// shared are the kinds of keys without a room that rooms write, and what another room can do with
// them: it can stop leasing, and no more.
var shared = map[string]string{
	"epoch": "a halt", "beat": "every room's checks fail", "audit": "entries may go",
	"refusals": "entries may go", "oldest": "removed entries may be hidden",
	"orders": "a tag that is ordered over all rooms stops, or its order breaks",
}

// writes has a room's user of etcd try every write on every key of every kind, of another room and
// of its own. A new kind of keys needs a rule here.
func (g *guarded) writes(mine, other allocator.Room) {
	g.Helper()
	id := record.WorkerID{Bits: 10, Number: 7}
	of := func(room allocator.Room) map[string]string {
		return map[string]string{
			"marks": keys.Mark(room, "order"), "rooms": keys.Registration(room, "x"), "alive": keys.Alive(room, "x"),
			"windows": keys.Window(room, id), "clients": keys.Client(room, id),
			"holders": keys.Holder(room, "order"),
		}
	}
	etcd, seen := g.store("room-"+string(mine)), 0
	try := func(key string, may bool) {
		for name, op := range map[string]store.Op{"put": store.OpPut(key, []byte("x")), "delete": {Delete: key}} {
			_, err := etcd.Txn(g.Context(), store.Txn{If: []store.Cond{{Key: keys.Epoch(), ModRevision: 1 << 40}},
				Then: []store.Op{op}})
			if may && err != nil || !may && allocator.KindOf(err) != allocator.Denied {
				g.Errorf("room %s, %s of %s: %v", mine, name, key, err)
			}
		}
	}
	for _, known := range keys.Known() {
		kind := strings.TrimSuffix(strings.TrimPrefix(known, string(keys)), "/")
		if theirs, perRoom := of(other)[kind]; perRoom {
			try(theirs, false)
			try(of(mine)[kind], true)
			seen++
			continue
		}
		_, may := shared[kind]
		if strings.HasSuffix(known, "/") {
			known += "x"
		}
		try(known, may)
	}
	if seen != len(of(other)) {
		g.Errorf("%d kinds of keys that name a room", seen)
	}
}

// Over etcd's users: no other room ends the window of a worker, neither in the key of its room nor with
// a claim of its own. The room's own user does, by mistake or by an attack: from then on the instance
// issues no ID of that number. Without the key, etcd may have gone back in time, and the instance halts
// leasing. Its clock moves by 1 ms for each ID only, so that no window ends by itself or is renewed.
func TestEtcdWindowEndsWithItsKey(t *testing.T) {
	g := newGuarded(t)
	g.Init(testcluster.Halves(), "ann")
	preset, err := timeid.PresetNamed("leaf")
	if err != nil {
		t.Fatal(err)
	}
	timed := record.NewTimeTag(preset.Layout)
	g.Tag(func(s *record.TagSettings) { s.Time = &timed }, "ann", "time")
	began, passed := time.Date(2026, time.November, 26, 0, 0, 0, 0, time.UTC), atomic.Int64{}
	now := func() time.Time { return began.Add(time.Duration(passed.Load()) * time.Millisecond) }
	a := g.Room("a", "one", func(cfg *room.Config) {
		cfg.Ledger = g.LedgerOver(g.store("room-a"), func(l *ledger.Config) { l.Now = now })
	})
	ids, over := make(map[int64]bool), make(map[int64]bool)
	next := func() (number int64, err error) { // takes an ID, and returns its worker's number
		passed.Add(1)
		r, err := a.Next(t.Context(), &marchv1.NextRequest{Tag: "time"})
		if err != nil {
			return 0, err
		}
		parts, err := preset.Layout.Decompose(r.GetId())
		if ids[r.GetId()] || over[parts.Worker] {
			t.Errorf("ID %d of worker %d came twice, or after the worker's window", r.GetId(), parts.Worker)
		}
		ids[r.GetId()] = true
		return parts.Worker, err
	}
	number := int64(-1)
	another := func(what string) { // waits until the instance has another worker, or has halted leasing
		t.Helper()
		testcluster.Await(t, "an ID of another worker, "+what, func() bool {
			is, err := next()
			if err == nil && is == number || err != nil && !strings.Contains(err.Error(), "leasing is halted") {
				return false
			}
			over[number] = true
			if err == nil {
				number = is
			}
			return true
		})
	}
	another("the first one")
	claim := func(in allocator.Room) []byte {
		w := record.Worker{Room: in, Instance: "x", Incarnation: "x", From: began.UnixMilli(),
			Until: began.Add(time.Minute).UnixMilli(), Stamp: record.Stamp{Epoch: "e", Revision: 1}}
		return w.Encode()
	}
	write := func(user string, kind allocator.Kind, ops ...store.Op) {
		t.Helper()
		for _, op := range ops {
			_, err := g.store(user).Txn(t.Context(), store.Txn{Then: []store.Op{op}})
			if allocator.KindOf(err) != kind {
				t.Errorf("%s: %v", user, err)
			}
		}
	}
	for _, end := range []func(key string) store.Op{
		func(key string) store.Op { return store.OpPut(key, claim("a")) },
		func(key string) store.Op { return store.OpPut(key, []byte("x")) },
		func(key string) store.Op { return store.Op{Delete: key} },
	} {
		id := record.WorkerID{Bits: preset.Layout.WorkerBits, Number: number}
		own := keys.Window("a", id)
		write("room-b", allocator.Denied, store.Op{Delete: own}, store.OpPut(own, claim("b")),
			store.OpPut(keys.Worker(id), claim("b")))
		write("room-b", 0, store.OpPut(keys.Window("b", id), claim("b")))
		write("operator", 0, store.OpPut(keys.Worker(id), claim("b"))) // as rooms could before formats 2
		for range 20 {
			if is, err := next(); err != nil || is != number {
				t.Errorf("worker %d after what room b wrote, it was %d: %v", is, number, err)
			}
		}
		write("room-a", 0, end(own))
		another("as the room's user wrote " + own)
		for range 20 {
			_, _ = next() // of no number whose window is over
		}
	}
	if !over[number] {
		t.Errorf("worker %d, whose key was deleted, has a window", number)
	}
}

// An instance that a recover went on without, with leases that etcd has lost and no margin covers, halts
// leasing if it may not raise the mark of the other room over them. A recover that asks it ends the halt.
func TestEtcdOrphanHalts(t *testing.T) {
	g := newGuarded(t)
	ctx := t.Context()
	g.Init(testcluster.Halves(), "ann")
	g.Tag(nil, "ann", "order")
	a, b := g.room("a"), g.room("b")
	g.takes(b, "order")
	g.takes(a, "order")
	mark := keys.Mark("a", "order")
	before, err := g.store("operator").Txn(ctx, store.Txn{Then: []store.Op{store.OpGet(mark)}})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // above all that room b's mark reaches
		g.takes(a, "order")
	}
	b.Stop()
	if _, err := g.ledger("operator").Halt(ctx, "ann", "a test"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.store("operator").Txn(ctx, store.Txn{Then: []store.Op{ // as a restore does
		store.OpPut(mark, before.Got[0][0].Value)}}); err != nil {
		t.Fatal(err)
	}
	none := int64(0)
	if _, err := recovery.Run(ctx, g.ledger("operator"), recovery.Config{
		Actor: "ann", Apply: true, Without: []record.InstanceID{"a/one"}, Margin: &none,
		Ask: func(context.Context, record.SeenInstance, record.Question, record.UseMarks) (record.Memory, error) {
			return record.Memory{}, errors.New("no answer")
		},
	}); err != nil {
		t.Fatal(err)
	}
	const why = "a recover went on without this instance, and it may not raise the marks of tag order"
	testcluster.Await(t, "room a halts leasing", func() bool {
		answer, err := g.store("operator").Txn(ctx,
			store.Txn{Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: keys.Epoch()}}}}})
		return err == nil && strings.Contains(string(answer.Got[0][0].Value), why) &&
			strings.Contains(string(answer.Got[0][0].Value), "a/one")
	})
	testcluster.Await(t, "room a says why", func() bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := a.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: "order", Count: 100_000})
		return err != nil && strings.Contains(err.Error(), "may not write "+keys.Mark("b", "order"))
	})
	if report, err := recovery.Run(ctx, g.ledger("operator"), recovery.Config{Actor: "ann", Apply: true,
		Ask: func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			return room.AskMarks(ctx, testcluster.Dial(t, s.Address), q, use)
		}}); err != nil {
		t.Fatalf("recover: %+v, %v", report, err)
	}
	g.takes(a, "order")
	g.takes(g.room("b"), "order")
}

// Each right that a room lacks is named, in its problems too.
func TestEtcdRightsMissing(t *testing.T) {
	g := newGuarded(t)
	g.Init(testcluster.Halves(), "ann")
	g.Tag(nil, "ann", "order")
	role := keys.RoomRole("a", false)
	l := g.ledger("room-a")
	if _, err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if missing, more, err := l.WrongRights(t.Context(), role); err != nil || len(missing) > 0 || len(more) > 0 {
		t.Fatalf("missing %v, too many %v: %v", missing, more, err)
	}
	for _, right := range []string{"--prefix " + keys.All(record.Workers), "--prefix " + keys.In("b", record.Windows),
		keys.Mark("b", "order")} {
		g.etcd.Etcdctl(t, "", "etcdctl role grant-permission "+role.Name+" write "+right)
		if missing, more, err := l.WrongRights(t.Context(), role); err != nil || len(missing) > 0 || len(more) != 1 {
			t.Errorf("with %s: missing %v, too many %v: %v", right, missing, more, err)
		}
		g.etcd.Etcdctl(t, "", "etcdctl role revoke-permission "+role.Name+" "+right)
	}
	for k, right := range role.Rights {
		grant := role.Commands(true)[k+1]
		words := slices.DeleteFunc(strings.Fields(grant), func(w string) bool { return w == "read" || w == "write" })
		g.etcd.Etcdctl(t, "", strings.Replace(strings.Join(words, " "), "grant", "revoke", 1))
		missing, _, err := l.WrongRights(t.Context(), role)
		if err != nil || len(missing) != 1 || missing[0] != right {
			t.Errorf("without %v: missing %v: %v", right, missing, err)
		}
		g.etcd.Etcdctl(t, "", grant)
	}
	// The right that other rights cover is not missing, and half of one does not do.
	g.etcd.Etcdctl(t, "", "etcdctl role revoke-permission "+role.Name+" "+keys.Beat(),
		"etcdctl role revoke-permission "+role.Name+" "+keys.All(record.Audits)+" --prefix")
	r := g.room("a")
	rooms := marchv1.NewRoomServiceClient(r.Conn)
	var told []string
	testcluster.Await(t, "the problem", func() bool {
		answer, err := rooms.GetInstance(t.Context(), &marchv1.GetInstanceRequest{})
		if err != nil {
			return false
		}
		told = nil
		for _, p := range answer.GetStatus().GetProblems() {
			if p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_RIGHTS {
				told = append(told, p.GetWhat()+" "+p.GetCommand())
			}
		}
		return len(told) > 0
	})
	want := "instance a/one lacks rights in etcd: its user may not write /march/default/beat, " +
		"nor write /march/default/audit/* march etcd roles a"
	if told[0] != want {
		t.Errorf("told %q, want %q", told[0], want)
	}
	g.takes(r, "order") // none of them is needed for that
}

// A room whose user's password is changed leases on, with the password that its file has then.
func TestEtcdPasswordChanged(t *testing.T) {
	g := newGuarded(t)
	g.Init(testcluster.Halves(), "ann")
	g.Tag(nil, "ann", "order")
	r := g.room("a")
	g.takes(r, "order")
	g.etcd.Etcdctl(t, "second", "etcdctl user passwd march-default-room-a --interactive=false")
	var refused error
	testcluster.Await(t, "a lease is refused", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, refused = r.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: "order", Count: 100_000})
		return refused != nil
	})
	second := "second"
	g.password.Store(&second)
	g.takes(r, "order")
	if strings.Contains(refused.Error(), "first") {
		t.Errorf("the error has the password: %v", refused)
	}
}
