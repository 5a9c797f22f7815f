package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/allocator/plan"
)

// Eras were a key for each tag, room and move, and grew for ever, as layouts,
// migrations and the audit did.
func TestKeysAreBounded(t *testing.T) {
	const layouts, migrations, audits, moves = 5, 3, 40, 60
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Admin.Ledger.Keep(layouts, migrations, audits)
	c.Tag("idle", func(*record.TagSettings) {})
	a := c.start("a")
	if _, err := a.TryLease("idle", 10); err != nil {
		t.Fatal(err)
	}
	var versions []string
	for i := range moves {
		if i%2 == 0 {
			c.Move(fmt.Sprintf("100 a=0-%d b=50-100", 40+i%7))
		} else {
			migrate(t, c, fmt.Sprintf("100 a=0-50 b=%d-100", 50+i%7))
		}
		versions = append(versions, c.Mem.Keys(prefix + "layouts/")[len(c.Mem.Keys(prefix+"layouts/"))-1])
		a.Lease(10)
		for kind, most := range map[string]int{"layouts/": layouts, "migrations/": migrations,
			"audit/": audits, "eras/": 0} {
			if keys := c.Mem.Keys(prefix + kind); len(keys) > most {
				t.Fatalf("after %d moves: %d keys %s, at most %d are kept", i+1, len(keys), kind, most)
			}
		}
	}
	if kept := c.Mem.Keys(prefix + "layouts/"); !slices.Equal(kept, versions[len(versions)-layouts:]) {
		t.Errorf("the layouts %v are kept, want the last of %v", kept, versions)
	}
	if got := len(c.Mem.Keys(prefix + "audit/")); got < audits/4 {
		t.Errorf("%d audit entries are kept, want up to %d", got, audits)
	}
	if eras := c.Mark("a").Eras; len(eras) != record.MaxEras {
		t.Errorf("%d eras are kept, want %d", len(eras), record.MaxEras)
	}
	// Entries that left the history do no harm: neither to an idle tag, nor to a
	// process that knows nothing.
	if _, err := c.start("b").TryLease("idle", 10); err != nil {
		t.Error(err)
	}
	// Verify knows the product's bound only, so it takes this shorter history for damaged, and
	// finds nothing else.
	short := fmt.Sprintf("the layouts before version %d are missing from the history, though it has %d of %d,",
		1+moves-layouts+1, layouts, record.MaxLayouts)
	l := ledgertest.Open(t, c.Mem.Open())
	report, err := verify.Run(bg, l.Cluster(), verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if problems := report.Problems; len(problems) != 1 || !strings.HasPrefix(problems[0], short) {
		t.Errorf("problems %q, want only that %s", problems, short)
	}
	if bad, err := ledgertest.Uncovered(bg, c.Mem.Open(), "default", c.Issued); err != nil || len(bad) > 0 {
		t.Errorf("%q, %v", bad, err)
	}
}

// migrate makes a migration of one move, and ends it.
func migrate(t *testing.T, c *cluster, to string) {
	t.Helper()
	from, err := c.Admin.Ledger.Refresh(bg)
	if err != nil {
		t.Fatal(err)
	}
	target := ledgertest.Lay(t, to)
	target.Version = from.Layout.Version + 1
	m, err := c.Admin.StartMigration(bg, from, record.Migration{
		From: from.Layout, Target: target, Moves: record.MovesOf(plan.Move{Kind: plan.Switch, Layout: target}),
	}, "test")
	if err == nil {
		m, err = c.Admin.MakeMove(bg, m, nil)
	}
	if err == nil {
		_, err = c.Admin.UpdateMigration(bg, m, "end migration", "test", func(m *record.Migration) error {
			m.State = record.Done
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Where the oldest keys cannot be counted, a halt is written all the same.
func TestHaltDoesNotWaitForTheBound(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	conn := c.Mem.Open()
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if len(txn.Then) == 1 && txn.Then[0].Get != nil && txn.Then[0].Get.KeysOnly {
			return ledgertest.Fate{Name: ledgertest.NotDone}
		}
		return ledgertest.Fate{}
	})
	if _, err := ledgertest.Open(t, conn).Halt(bg, "ann", "a test"); err != nil {
		t.Fatal(err)
	}
	if c.isHalted() == "" {
		t.Error("leasing is not halted")
	}
}

// counting is a store that counts the keys of the intervals that are read: etcd
// visits each of them, whatever the limit is.
type counting struct {
	store.Store
	visited int64
}

func (s *counting) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	for _, n := range answer.Counts {
		s.visited += n
	}
	return answer, err
}

// A look read the history in descending order, which etcd answers by reading all.
func TestLookReadsFewLayouts(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	for i := range 50 {
		c.Move(fmt.Sprintf("100 a=0-%d b=50-100", 40+i%7))
	}
	etcd := &counting{Store: c.Mem.Open()}
	l := ledgertest.Open(t, etcd)
	look := func() int64 {
		t.Helper()
		before := etcd.visited
		stored, err := l.Refresh(bg)
		if now, _ := c.Admin.Ledger.Layout(); err != nil || stored.Layout.Version != now.Layout.Version {
			t.Fatalf("version %d, %v; want %d", stored.Layout.Version, err, now.Layout.Version)
		}
		return etcd.visited - before
	}
	first := look() // it knows no version yet
	const most = 8  // epoch, identity, beat, settings, layout, and of the history a few
	if n := look(); n > most {
		t.Errorf("a look visits %d keys, want at most %d; the first one visited %d", n, most, first)
	}
	c.Move("100 a=0-50 b=50-100")
	if n := look(); n > most+1 {
		t.Errorf("after a move a look visits %d keys, want at most %d", n, most+1)
	}
	for range 3 {
		c.Move("100 a=0-50 b=50-100")
	}
	if n := look(); n > 2*most+4 {
		t.Errorf("after three moves a look visits %d keys, want at most %d", n, 2*most+4)
	}
	// It still sees that the history goes on, and that a version is gone.
	now := c.Value("layout")
	c.Corrupt("layouts/0000000000000000099", now)
	_, err := l.Refresh(bg)
	ledgertest.WantKind(t, err, allocator.Refused, "the history goes on to")
	c.Corrupt("layouts/0000000000000000099", nil)
	look()
	own := c.Mem.Keys(prefix + "layouts/")
	c.Corrupt(own[len(own)-1][len(prefix):], nil)
	_, err = l.Refresh(bg)
	ledgertest.WantKind(t, err, allocator.Refused, "there is no key")
}

// EachTag visits each tag and mark a few times, whatever names look like.
func TestEachTagIsLinear(t *testing.T) {
	const n = 4_000
	for what, name := range names() {
		m, _, revisions := verifyCluster(t)
		want := make(map[string]bool, n)
		for i := range n {
			want[name(i)] = true
		}
		for name := range want {
			putGood(m, name, revisions)
		}
		etcd := &counting{Store: m.Open()}
		seen := 0
		last := allocator.Tag("")
		each := func(tag record.Tag, marks map[allocator.Room]record.Mark) error {
			if seen++; tag.Name <= last || len(marks) != 2 {
				t.Errorf("%s: tag %s after %s, with %d marks", what, tag.Name, last, len(marks))
			}
			last = tag.Name
			return nil
		}
		l := ledgertest.Open(t, etcd)
		walk := record.Walk{Keys: l.Cluster().Keys, Gets: l.Gets, Page: 20}
		if _, err := walk.EachTag(t.Context(), []allocator.Room{"a", "b"}, each); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d keys visited for %d tags", what, etcd.visited, seen)
		if seen != len(want) || etcd.visited > 8*3*n {
			t.Errorf("%s: %d of %d tags, %d keys visited", what, seen, len(want), etcd.visited)
		}
	}
}

// What goes because a ring is full is noted before, and refusals push out no change.
func TestRingsAreBoundedApart(t *testing.T) {
	const audits = 40
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Admin.Ledger.Keep(5, 3, audits)
	changes := len(c.Mem.Keys(prefix + "audit/"))
	for range 5 * audits {
		if err := c.Admin.Record(bg, "bob", "refused Next", "tags/order"); err != nil {
			t.Fatal(err)
		}
	}
	refusals := c.Mem.Keys(prefix + "refusals/")
	if n := len(refusals); n > audits || n < audits/4 {
		t.Errorf("%d refusals are kept, at most %d", n, audits)
	}
	if n := len(c.Mem.Keys(prefix + "audit/")); n != changes {
		t.Errorf("%d changes are kept, there were %d", n, changes)
	}
	value, there := c.Mem.Value(prefix + "oldest/refusals")
	if !there {
		t.Fatal("it is not noted from where on refusals are kept")
	}
	var note record.Oldest
	if err := record.Decode(store.KV{Key: "oldest", Value: value}, &note); err != nil {
		t.Fatal(err)
	}
	oldest, _ := c.Mem.Value(refusals[0])
	if prefix+"refusals/"+note.ID != refusals[0] || note.Hash != record.HashOf(oldest) || note.Removed >= note.ID {
		t.Errorf("%+v, and the oldest is %s", note, refusals[0])
	}
	// The check knows the product's bound only, and finds nothing else.
	report, err := verify.Audit(bg, c.Admin.Ledger.Cluster(), nil, verify.Options{})
	if err != nil || len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "because the ring was full") {
		t.Errorf("%v, %q", err, report.Problems)
	}
}
