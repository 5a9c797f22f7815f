package admin_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

func TestTagSettingsSurvive(t *testing.T) {
	c := memcluster.New(t, "10 a=0-5 b=5-10")
	want := record.TagSettings{
		Start: allocator.MaxID - 2, Limit: allocator.MaxID - 1, MaxJump: 1<<53 + 1, MaxSkew: 1<<62 + 1,
		MinStep: 1<<39 + 1, MaxStep: 1 << 40, Reserve: record.DurationOf(90*time.Minute + time.Millisecond),
		Prescale:      1<<39 + 3,
		PrescaleUntil: time.Date(2026, 11, 27, 0, 0, 0, 1, time.FixedZone("", 3600)),
		Skips:         map[allocator.Room]int64{"a": 1<<53 + 1, "b": allocator.MaxID},
	}
	if _, err := c.Admin.CreateTag(bg, "big", want, "me"); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*admin.Admin{c.Admin, manage(ledgertest.Open(t, c.Mem.Open()))} {
		got, err := l.Tag(bg, "big")
		if diff := cmp.Diff(want, got.TagSettings); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
	}
	rev := c.Mem.Revision()
	c.Update("big", func(*record.TagSettings) {})
	if c.Mem.Revision() != rev {
		t.Error("an update that changes nothing wrote something")
	}
	c.Check()
}

func TestTagsByPage(t *testing.T) {
	c := memcluster.New(t, "10 a=0-5 b=5-10")
	for _, name := range []allocator.Tag{"t.1", "t.2", "t-1", "u", "t0"} {
		c.Tag(name, func(*record.TagSettings) {})
	}
	page := func(prefix string, after allocator.Tag, n int) (names []string) {
		for shared := range len(after) + 2 { // it makes no difference
			tags, _, err := c.Admin.Tags(bg, prefix, after, shared, n)
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, tag := range tags {
				found = append(found, string(tag.Name))
			}
			if shared > 0 && !slices.Equal(found, names) {
				t.Errorf("up to %d after %s with prefix %q, %d bytes shared: %q, want %q", n, after,
					prefix, shared, found, names)
			}
			names = found
		}
		return names
	}
	for _, test := range []struct {
		got  []string
		want string
	}{
		{page("", "", 10), "[t t-1 t.1 t.2 t0 u]"},
		{page("", "", 2), "[t t-1]"},
		{page("", "t-1", 2), "[t.1 t.2]"},
		{page("t.", "", 10), "[t.1 t.2]"},
		{page("t.", "t.1", 10), "[t.2]"},
		{page("t.", "u", 10), "[]"},
		{page("t.", "a", 10), "[t.1 t.2]"},
		{page("x", "", 10), "[]"},
		{page("\xff", "", 10), "[]"},
		{page("\x7f", "", 10), "[]"},
	} {
		if got := fmt.Sprint(test.got); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}

func TestTagUnknownOutcome(t *testing.T) {
	for _, fate := range ledgertest.Unknown {
		t.Run(fate.String(), func(t *testing.T) {
			c := memcluster.New(t, "10 a=0-5 b=5-10")
			p := c.Start("a")
			once := func() { p.Conn.Next(ledgertest.Fate{Name: fate, N: 1000}, 1, ledgertest.PutsUnder("tags/new")) }
			outcome := func(what string, err error) {
				t.Helper()
				if fate.Happened() && err != nil {
					t.Errorf("%s happened, and its error is %v", what, err)
				} else if !fate.Happened() {
					ledgertest.WantKind(t, err, allocator.Unavailable)
				}
			}
			once()
			_, err := manage(p.Ledger).CreateTag(bg, "new", record.DefaultTag(), "me")
			outcome("create", err)
			if !fate.Happened() {
				if _, err := manage(p.Ledger).CreateTag(bg, "new", record.DefaultTag(), "me"); err != nil {
					t.Fatalf("create again: %v", err)
				}
			}
			once()
			raise := func(s *record.TagSettings) error { s.MaxSkew += 10; return nil }
			_, err = manage(p.Ledger).UpdateTag(bg, "new", raise, "me")
			outcome("update", err)
			if tag, err := manage(p.Ledger).Tag(bg, "new"); err != nil || fate.Happened() && tag.MaxSkew != 10 {
				t.Errorf("after an update by 10: %+v, %v", tag, err)
			}
			p.Conn.Next(ledgertest.Fate{Name: fate, N: 1000}, 1, func(txn store.Txn) bool {
				return len(txn.Then) > 0 && txn.Then[0].Delete != ""
			})
			outcome("delete", manage(p.Ledger).DeleteTag(bg, "new", "me"))
			c.Check()
		})
	}
}
