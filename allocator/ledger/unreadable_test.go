package ledger_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// later is what a newer version of the program may have written.
const later = `{"format":99,"build":"v9.9.9","name":5}`

// oldID is the ID of a migration and of an audit entry that cannot be read.
const oldID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

// keysOf returns the keys that a list passed over, without the cluster's prefix.
func keysOf(t *testing.T, bad []record.KeyError) (keys []string) {
	t.Helper()
	for _, b := range bad {
		if strings.Count(b.Error(), b.Key) != 1 || !strings.HasPrefix(b.Error(), "key ") {
			t.Errorf("%v does not name key %s once", &b, b.Key)
		}
		keys = append(keys, strings.TrimPrefix(b.Key, prefix))
	}
	return keys
}

// One value that could not be read, or a key that is no key of the program, stopped
// every list, every plan and recover. They pass over it and name it; what needs the
// value itself fails and says so.
func TestUnreadableStopsOnlyWhatNeedsIt(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	for _, tag := range []allocator.Tag{"u", "v"} {
		c.Tag(tag, func(*record.TagSettings) {})
	}
	p, q := c.startAs("a", "one"), c.startAs("b", "two")
	for _, p := range []*process{p, q} {
		for _, tag := range []allocator.Tag{"t", "u", "v"} {
			if _, err := p.TryLease(tag, 10); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.Move("100 a=0-50 b=55-100")
	c.Move("100 a=0-50 b=50-100")
	mark := c.Value("marks/b/v")
	strays := []string{"tags/Bad Name", "rooms/Bad Room/x", "rooms/a", "alive/what", "migrations/zz",
		"audit/!", "audit/zz"}
	old := c.Value("layouts/0000000000000000001")
	for _, key := range append(strays,
		"layouts/0000000000000000001", "tags/u", "rooms/b/newer", "marks/b/v", "migrations/"+oldID, "audit/"+oldID) {
		c.Corrupt(key, []byte(later))
	}
	lists := func(what string, got []string, err error, bad []record.KeyError, want ...string) {
		t.Helper()
		keys := keysOf(t, bad)
		slices.Sort(keys)
		if slices.Sort(want); err != nil || !slices.Equal(keys, want) {
			t.Errorf("%s: %q and the keys %q, want %q; %v", what, got, keys, want, err)
		}
	}

	var names []string
	bad, err := c.Admin.EachTag(bg, func(t record.Tag, _ map[allocator.Room]record.Mark) error {
		names = append(names, string(t.Name))
		return nil
	})
	lists("each tag", names, err, bad, "tags/Bad Name", "tags/u", "marks/b/v")
	if !slices.Equal(names, []string{"t"}) {
		t.Errorf("each tag: %q", names)
	}
	for n := 1; n <= 3; n++ {
		tags, bad, err := c.Admin.Tags(bg, "", "", 0, n)
		want := []string{"tags/Bad Name"}
		if n > 1 { // it lies between the two
			want = append(want, "tags/u")
		}
		last := []allocator.Tag{"t", "v", "v"}[n-1]
		lists("tags", nil, err, bad, want...)
		if len(tags) != min(n, 2) || tags[0].Name != "t" || tags[len(tags)-1].Name != last {
			t.Errorf("%d tags: %+v", n, tags)
		}
	}
	instances, bad, err := c.Admin.Instances(bg, "")
	lists("instances", nil, err, bad, "rooms/Bad Room/x", "rooms/a", "rooms/b/newer", "alive/what")
	if len(instances) != 3 || instances[1].ID() != "b/newer" || instances[1].Version != 0 ||
		instances[1].Unreadable == nil || instances[2].Unreadable != nil {
		t.Errorf("%+v", instances)
	}
	if !strings.Contains(instances[1].Unreadable.Error(), "written by version v9.9.9") {
		t.Error(instances[1].Unreadable)
	}
	layouts, bad, err := c.Admin.Layouts(bg, 0, 10)
	if lists("layouts", nil, err, bad, "layouts/0000000000000000001"); len(layouts) != 2 {
		t.Errorf("%+v", layouts)
	}
	_, bad, err = c.Admin.Migrations(bg, "", 10)
	lists("migrations", nil, err, bad, "migrations/"+oldID, "migrations/zz")
	for _, n := range []int{1, 2, 3, 4, 10} {
		before := ""
		var all []record.AuditEntry
		var passed []record.KeyError
		for {
			page, bad, err := c.Admin.Audits(bg, before, n)
			if err != nil {
				t.Fatal(err)
			}
			if all, passed = append(all, page...), append(passed, bad...); len(page) < n {
				break
			}
			before = page[n-1].ID
		}
		if lists("audit", nil, nil, passed, "audit/!", "audit/zz", "audit/"+oldID); len(all) != 6 {
			t.Errorf("%d audit entries by %d", len(all), n)
		}
	}

	_, err = p.TryLease("u", 10)
	ledgertest.WantKind(t, err, allocator.Internal, "tags/u", "format 99", "v9.9.9")
	_, err = q.TryLease("v", 10)
	ledgertest.WantKind(t, err, allocator.Internal, "marks/b/v")
	for _, p := range []*process{p, q} {
		p.Lease(10)
	}
	_, err = ledgertest.Open(t, c.Mem.Open()).Join(bg, ledger.Registration{Room: "b", Name: "newer", Build: "test"})
	ledgertest.WantKind(t, err, allocator.Internal, "rooms/b/newer", "v9.9.9")

	// With the mark repaired recover goes on, too: an instance that cannot be asked
	// is one that did not answer.
	c.Corrupt("marks/b/v", mark)
	c.Corrupt("layouts/0000000000000000001", old)
	for _, stray := range []string{"audit/!", "audit/zz", "alive/what", "migrations/zz"} { // the check would complain
		c.Corrupt(stray, nil)
	}
	report, err := c.recover(c.Mem.Open(), []*process{p, q})
	ledgertest.WantKind(t, err, allocator.Refused, "--without b/newer")
	all := []string{"rooms/Bad Room/x", "rooms/a", "rooms/b/newer", "tags/Bad Name", "tags/u"}
	lists("recover", nil, nil, report.Unreadable, all...)
	report, err = c.recover(c.Mem.Open(), []*process{p, q}, without("b/newer"), margin(2))
	lists("recover", nil, err, report.Unreadable, all...)
	for _, p := range []*process{p, q} {
		p.Lease(10)
	}
	for _, key := range []string{
		"tags/Bad Name", "rooms/Bad Room/x", "rooms/a", "tags/u", "migrations/" + oldID, "audit/" + oldID,
	} {
		c.Corrupt(key, nil)
	}
	if instances, bad, err := c.Admin.Instances(bg, ""); err != nil || len(bad) > 0 || len(instances) != 2 {
		t.Errorf("after the recover: %+v, %v, %v", instances, bad, err)
	}
	c.Check()
}

// An instance whose registration cannot be read can be forgotten, also where it is
// not even JSON: the audit then has it as a text. It made the program panic.
func TestForgetUnreadable(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	for _, value := range []string{later, "garbage", "\xff"} {
		c.Corrupt("rooms/b/newer", []byte(value))
		if err := c.Admin.Forget(bg, "b", "newer", "ann"); err != nil {
			t.Fatal(err)
		}
	}
	entries, bad, err := c.Admin.Audits(bg, "", 3)
	if err != nil || len(bad) > 0 || string(entries[1].From) != `"garbage"` || string(entries[2].From) != later {
		t.Errorf("%+v, %v, %v", entries, bad, err)
	}
	c.Check()
}
