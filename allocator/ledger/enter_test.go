package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
)

// orphans has p note the tags of which IDs may have been issued twice, and how often
// it was told to drop what it holds.
func (p *process) orphans() (tags *[]string, drops *int) {
	tags, drops = new([]string), new(int)
	p.OnOrphan(func(o ledger.Orphan) { *tags = append(*tags, fmt.Sprint(o.Tag, " ", o.Began, "-", o.Below)) })
	p.OnDrop(func(string) { *drops++ })
	return tags, drops
}

// An instance that a recover went on without leases nothing before the marks of all
// rooms lie above what it leased: whatever room it is of, and though its range is
// another room's by now. It once raised the mark of its own room only, and the other
// room went on into its IDs.
func TestOrphanRaisesAllRooms(t *testing.T) {
	for _, after := range []string{"100 a=0-50 b=50-100", "100 a=50-100 b=0-50"} {
		t.Run(after, func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			p, q := c.start("a"), c.start("b")
			p.Lease(10)
			q.Lease(10)
			backup := c.Mem.Revision()
			held := p.Lease(5_000).Last()
			c.Mem.Restore(backup, 0, ledgertest.ClusterID)
			c.mustRecover([]*process{q}, without(p.id()), margin(0), func(cfg *recovery.Config) {
				cfg.Layout, cfg.Given = recovery.LayoutGiven, ledgertest.Lay(t, after)
			})
			told, drops := p.orphans()
			p.hear()
			if seg := p.Lease(10); seg.First <= held || *drops != 1 || len(*told) != 0 {
				t.Errorf("leased %v, held up to %d; dropped %d times, told %q", seg, held, *drops, *told)
			}
			for _, room := range []allocator.Room{"a", "b"} {
				if next := c.Mark(room).Next; next <= held {
					t.Errorf("the mark of room %s is %d, %d was leased", room, next, held)
				}
			}
			q.hear()
			if seg := q.Lease(10); seg.First <= held {
				t.Errorf("the other room leased %v, held were IDs up to %d", seg, held)
			}
			c.Check()
		})
	}
}

// An instance that two recovers in a row went on without compares twice, be it that it
// leased nothing in between. The second comparison once found nothing to compare, and
// both rooms issued its IDs again.
func TestOrphanedTwice(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("u", func(*record.TagSettings) {})
	p, q := c.start("a"), c.start("b")
	p.Lease(10)
	q.Lease(10)
	backup := c.Mem.Revision()
	held := p.Lease(5_000).Last()
	for range 2 {
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		c.mustRecover([]*process{q}, without(p.id()), margin(0))
		q.hear() // so that the next recover knows of this one
		p.hear()
		if _, err := p.TryLease("u", 10); err != nil {
			t.Fatal(err)
		}
		for _, room := range []allocator.Room{"a", "b"} {
			if next := c.Mark(room).Next; next <= held {
				t.Errorf("the mark of room %s is %d, %d was leased", room, next, held)
			}
		}
	}
	if seg := q.Lease(10); seg.First <= held {
		t.Errorf("the other room leased %v, held were IDs up to %d", seg, held)
	}
	if seg := p.Lease(10); seg.First <= held {
		t.Errorf("leased %v, held were IDs up to %d", seg, held)
	}
}

// An orphaned instance that only ever read a mark under the earlier epochs goes on:
// what it read then is no evidence. It once took the mark for one that had fallen.
func TestOrphanThatLeasedNothing(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, q := c.start("a"), c.start("a")
	backup := c.Mem.Revision()
	q.Lease(5_000)
	_, err := p.TryLease("t", 0)
	ledgertest.WantKind(t, err, allocator.Invalid) // it has read the mark
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover(nil, without(p.id(), q.id()), margin(0))
	delete(c.Issued, "t")
	p.hear()
	p.Lease(10)
	if why := c.isHalted(); why != "" {
		t.Errorf("halted: %s", why)
	}
}

// Where another room has leased past what an orphaned instance holds, the alarm names
// the tag and from where. It was silent exactly there once.
func TestOrphanTellsOfIDsThatOthersLeased(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, q := c.start("a"), c.start("b")
	p.Lease(10)
	q.Lease(10)
	backup := c.Mem.Revision()
	held := p.Lease(5_000).Last()
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	delete(c.Issued, "t") // some will be issued twice, and that is what the alarm is for
	c.mustRecover([]*process{q}, without(p.id()), margin(0), func(cfg *recovery.Config) {
		cfg.Layout, cfg.Given = recovery.LayoutGiven, ledgertest.Lay(t, "100 a=50-100 b=0-50")
	})
	q.hear()
	began := q.Lease(20_000).First
	told, _ := p.orphans()
	p.hear()
	p.Lease(10)
	if want := []string{fmt.Sprintf("t %d-%d", began, held+1)}; !slices.Equal(*told, want) &&
		(len(*told) != 1 || !strings.HasSuffix((*told)[0], fmt.Sprint("-", held+1))) {
		t.Errorf("told %q, want %q", *told, want)
	}
}

// The alarm is raised too where another instance of the orphan's own room went on into
// its IDs. It once was silent there: the room's mark was above what the orphan leased.
func TestOrphanTellsOfIDsThatItsRoomLeased(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, q := c.start("a"), c.start("a")
	p.Lease(10)
	q.Lease(10)
	backup := c.Mem.Revision()
	held := p.Lease(5_000).Last()
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	delete(c.Issued, "t") // some will be issued twice, and that is what the alarm is for
	c.mustRecover([]*process{q}, without(p.id()), margin(0))
	q.hear()
	began := q.Lease(20_000).First
	if began > held {
		t.Fatalf("the room began at %d, above %d", began, held)
	}
	told, _ := p.orphans()
	p.hear()
	p.Lease(10)
	if want := []string{fmt.Sprintf("t %d-%d", began, held+1)}; !slices.Equal(*told, want) {
		t.Errorf("told %q, want %q", *told, want)
	}
}

// With a margin that covers what an orphaned instance leased, no process raises its
// marks, and there is no alarm.
func TestMarginCoversAnOrphan(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Update("t", func(s *record.TagSettings) { s.MinStep, s.MaxStep = 10, 1000 })
	p, q := c.start("a"), c.start("b")
	p.Lease(10)
	q.Lease(10)
	backup := c.Mem.Revision()
	held := p.Lease(1_000).Last()
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{q}, without(p.id()), margin(1))
	q.hear()
	if seg := q.Lease(10); seg.First <= held {
		t.Errorf("leased %v, held were IDs up to %d", seg, held)
	}
	told, drops := p.orphans()
	before := c.Mark("a").Next
	p.hear()
	p.Lease(10)
	if *drops != 1 || len(*told) != 0 || before > held {
		t.Errorf("dropped %d times, told %q, the mark was %d", *drops, *told, before)
	}
	c.Check()
}

// What counts is the floor as it was when the epoch began. Another room may have read its floor then,
// and an instance of the orphan's room may have raised that room's mark since: the present floor is
// above what the orphan leased, and the other room would lease it again.
func TestOrphanIsNotCoveredByThePresentFloor(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, mate, q := c.start("a"), c.start("a"), c.start("b")
	p.Lease(10)
	mate.Lease(10)
	q.Lease(10)
	backup := c.Mem.Revision()
	held := p.Lease(5_000).Last()
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{mate, q}, without(p.id()), margin(0), func(cfg *recovery.Config) {
		cfg.Layout, cfg.Given = recovery.LayoutGiven, ledgertest.Lay(t, "100 a=50-100 b=0-50")
	})
	mate.hear()
	q.hear()
	source, _, err := q.Source(bg, "t") // it has read the floor
	if err != nil {
		t.Fatal(err)
	}
	if seg := mate.Lease(20_000); seg.Last() <= held {
		t.Fatalf("the orphan's room went on to %v, held were IDs up to %d", seg, held)
	}
	p.hear()
	p.Lease(10)
	if seg, err := source.Lease(bg, 10); err != nil || seg.First <= held {
		t.Errorf("the other room leased %v, %v; held were IDs up to %d", seg, err, held)
	}
}

// A room without a mark counts a tag with the margin total that the tag was made with:
// margins of recovers before that cover nothing of what an orphaned instance leased.
func TestOrphanRaisesMarksThatWereLost(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Began(1_000)
	settings := record.DefaultTag()
	steps(10)(&settings)
	if made, err := c.Admin.CreateFreshTag(bg, "new", settings, "test"); err != nil || made.BaseTotal != 1_000 {
		t.Fatalf("%+v, %v", made, err)
	}
	p, q := c.start("a"), c.start("b")
	backup := c.Mem.Revision()
	var held int64
	for range 60 { // further than a margin of 1 covers, and not as far as one of 1,001
		seg, err := p.TryLease("new", 10)
		if err != nil {
			t.Fatal(err)
		}
		held = seg.Last()
	}
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{q}, without(p.id()), margin(1))
	p.hear()
	p.Lease(10)
	q.hear()
	if seg, err := q.TryLease("new", 10); err != nil || seg.First <= held {
		t.Errorf("leased %v, %v; held were IDs up to %d", seg, err, held)
	}
}

// An instance that answered goes on with what it holds, and compares nothing.
func TestAnsweredInstanceKeepsWhatItHolds(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.Lease(10)
	backup := c.Mem.Revision()
	p.Lease(10)
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{p})
	told, drops := p.orphans()
	p.hear()
	p.Lease(10)
	if *drops != 0 || len(*told) != 0 {
		t.Errorf("dropped %d times, told %q", *drops, *told)
	}
	c.Check()
}

// A process that ends between seeing an epoch and raising the marks starts over with
// its journal: it raises them before it leases.
func TestOrphanCrashesBeforeItRaises(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	dir := t.TempDir()
	p, q := c.mustStartWith(t, "a", "one", dir), c.start("b")
	p.Lease(10)
	q.Lease(10)
	backup := c.Mem.Revision()
	held := p.Lease(5_000).Last()
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.mustRecover([]*process{q}, without("a/one"), margin(0))
	p.Conn.Next(ledgertest.Fate{Name: ledgertest.NotDone}, ledgertest.PutsUnder("marks/"))
	p.hear()
	if _, err := p.TryLease("t", 10); err == nil {
		t.Fatal("leased though the marks could not be raised")
	}
	_ = p.Close()
	p = c.mustStartWith(t, "a", "one", dir)
	if seg := p.Lease(10); seg.First <= held || c.Mark("b").Next <= held {
		t.Errorf("leased %v, the mark of room b is %d; held were IDs up to %d", seg, c.Mark("b").Next, held)
	}
	c.Check()
}

// An instance that answered a recover which was broken off, and then not the next one,
// is left out of that: what it answered first does not count.
func TestAnsweredOnlyABrokenOffRecover(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, q := c.start("a"), c.start("b")
	p.Lease(10)
	q.Lease(10)
	backup := c.Mem.Revision()
	held := p.Lease(5_000).Last()
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	conn := c.Mem.Open()
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if ledgertest.PutsUnder("marks/")(txn) || ledgertest.PutsUnder("layouts/")(txn) {
			return ledgertest.Fate{Name: ledgertest.NotDone}
		}
		return ledgertest.Fate{}
	})
	if _, err := c.recover(conn, []*process{p, q}); err == nil {
		t.Fatal("it was not broken off")
	}
	if b, is := p.Barred(); !is || b.By != "ann" {
		t.Errorf("barred: %+v, %v", b, is)
	}
	c.mustRecover([]*process{q}, without(p.id()), margin(0))
	_, drops := p.orphans()
	p.hear()
	if seg := p.Lease(10); seg.First <= held || *drops != 1 {
		t.Errorf("leased %v, held were IDs up to %d; dropped %d times", seg, held, *drops)
	}
	c.Check()
}

// Over an etcd with the users of `march etcd roles`: two recovers and a restart halt nothing, nor does
// an instance that a recover left out, where etcd has all its leases. If etcd's history is compacted, that
// instance halts leasing, as it may not raise the other room's mark; the recover that the halt names ends
// the halt for good.
func TestRecoversOverEtcdWithRoles(t *testing.T) {
	const password = "secret"
	keys, etcd := record.Keys(prefix), ledgertest.StartEtcd(t)
	for _, role := range []record.Role{keys.OperatorRole(), keys.RoomRole("a", false), keys.RoomRole("b", false)} {
		etcd.Etcdctl(t, password, role.Commands(true)...)
		etcd.Etcdctl(t, password, "etcdctl user add "+role.Name, "etcdctl user grant-role "+role.Name+" "+role.Name)
	}
	defer etcd.RequireCredentials(t)()
	read := func() (string, error) { return password, nil }
	as := func(user string) *ledger.Ledger {
		return ledgertest.Open(t, etcd.StoreOf(t, "march-default-"+user, read))
	}
	operator := manage(as("operator"))
	if _, err := operator.Init(bg, ledgertest.Lay(t, "100 a=0-50 b=50-100"), "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.CreateTag(bg, "t", record.DefaultTag(), "test"); err != nil {
		t.Fatal(err)
	}
	dir, live := t.TempDir(), map[allocator.Room]*ledger.Instance{}
	start := func(room allocator.Room) {
		if was := live[room]; was != nil {
			_ = was.Close()
		}
		i, err := as("room-"+string(room)).Join(bg, ledger.Registration{Room: room, Name: "one", Address: string(room),
			Journal: dir})
		if err != nil {
			t.Fatal(err)
		}
		live[room] = i
	}
	defer func() {
		for _, i := range live {
			_ = i.Close()
		}
	}()
	lease := func(room allocator.Room, n int64) error {
		source, _, err := live[room].Source(bg, "t")
		if err == nil {
			_, err = source.Lease(bg, n)
		}
		return err
	}
	recovers := func(change ...func(*recovery.Config)) {
		t.Helper()
		cfg := recovery.Config{Actor: "ann", Apply: true, Ask: func(ctx context.Context, s record.SeenInstance,
			q record.Question, use record.UseMarks) (record.Memory, error) {
			m := live[s.Room].Memory(ctx, q)
			return m, use(m.Room, m.Marks)
		}}
		for _, f := range change {
			f(&cfg)
		}
		if r, err := recovery.Run(bg, as("operator"), cfg); err != nil {
			t.Fatalf("recover: %+v, %v", r, err)
		}
	}
	start("a")
	start("b")
	if err := errors.Join(lease("b", 10), lease("a", 1000)); err != nil {
		t.Fatal(err)
	}
	recovers()
	start("a") // it meets the first epoch, and leases nothing under it
	recovers()
	start("a")
	if err := errors.Join(lease("a", 10), lease("b", 10), lease("a", 1000)); err != nil {
		t.Fatalf("after two recovers and restarts: %v", err)
	}

	leavesOut := func() {
		recovers(without("a/one", "b/one"), margin(0), func(cfg *recovery.Config) { cfg.Ask = asking(nil) })
	}
	leavesOut()
	start("a")
	start("b")
	if err := errors.Join(lease("b", 10), lease("a", 1000)); err != nil {
		t.Fatalf("after a recover that left them out, of a store that has all their leases: %v", err)
	}
	leavesOut()
	start("b")
	root := etcd.StoreOf(t, "root", func() (string, error) { return "root", nil })
	etcd.Compact(t, root) // so that nobody knows any more how far the marks were then
	start("a")
	err := lease("a", 10)
	ledgertest.WantKind(t, err, allocator.WentBack, "may not write /march/default/marks/b/t",
		"the way out: `march recover` while this process runs")
	recovers()
	start("a")
	start("b")
	if err := errors.Join(lease("b", 10), lease("a", 10)); err != nil {
		t.Fatalf("after the recover that the halt names: %v", err)
	}
}

// An epoch that a process never saw, with a layout version that is not above the one
// that it knows, is an old one that came back, not one to turn to: data directories
// that were copied back from before the recover which the process joined under. Its
// IDs were once leased again.
func TestMissedEpochHalts(t *testing.T) {
	for _, journal := range []bool{false, true} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		first := c.start("a")
		first.Lease(10)
		backup := c.Mem.Revision()
		c.mustRecover([]*process{first})
		dir := ""
		if journal {
			dir = t.TempDir()
		}
		p := c.mustStartWith(t, "a", "two", dir)
		q := c.start("a")
		p.Lease(10)
		q.Lease(5_000)
		c.Mem.RollBack(backup, 0)
		if journal {
			_ = p.Close()
			p = c.mustStartWith(t, "a", "two", dir)
		} else {
			p.Ledger.Uncheck()
		}
		seg, err := p.TryLease("t", 10)
		ledgertest.WantKind(t, err, allocator.WentBack, "it is an old one")
		if c.isHalted() == "" || seg.Count > 0 {
			t.Errorf("journal %v: not halted, leased %v", journal, seg)
		}
	}
}

// A recover in another etcd cluster that no instance answered can give its layout a
// version that another recover had, of which the backup does not know. An instance
// that saw that one goes over to the new cluster nevertheless, and halts leasing
// there: told of a wrong endpoint for ever, an operator would have nothing to recover.
func TestMissedEpochInAnotherClusterHalts(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	c.mustRecover([]*process{p})
	p.Lease(10)
	backup := c.Mem.Revision()
	c.mustRecover([]*process{p}) // by less than 1,000 s after the first: 1,000 versions on
	p.Lease(10)
	c.Mem.Restore(backup, 0, ledgertest.ClusterID+2)
	c.mustRecover(nil, without("a/i1"), margin(1_000))
	p.hear()
	seg, err := p.TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.WentBack, "it is an old one")
	if c.isHalted() == "" || seg.Count > 0 {
		t.Errorf("not halted, leased %v", seg)
	}
	c.mustRecover([]*process{p})
	p.hear()
	p.Lease(10)
	c.Check()
}
