package ledger_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
)

const verifyPrefix = "/march/default/"

// verifyCluster returns a cluster of rooms a and b, under layout version 2 in
// which they have changed places, with the revisions of both layouts.
func verifyCluster(t *testing.T) (*ledgertest.Fake, *ledger.Ledger, [2]int64) {
	m := ledgertest.NewFake(t)
	l, err := ledger.New(m.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	low, high := allocator.Range{Lower: 0, Upper: 5}, allocator.Range{Lower: 5, Upper: 10}
	stored, err := manage(l).Init(t.Context(), allocator.Layout{Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": low, "b": high}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	revisions := [2]int64{m.Revision(), 0}
	if _, err := manage(l).ChangeLayout(t.Context(), stored, allocator.Layout{Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": high, "b": low}}, "test"); err != nil {
		t.Fatal(err)
	}
	revisions[1] = m.Revision()
	return m, l, revisions
}

func set(m *ledgertest.Fake, key, value string) {
	m.Corrupt(store.Op{Put: &store.Put{Key: verifyPrefix + key, Value: []byte(value)}})
}

func era(version, first, end int64) string {
	return fmt.Sprintf(`{"version":"%d","epoch":"e","first":"%d","end":"%d"}`, version, first, end)
}

// mark is a mark with the stamp of a layout's revision, and eras.
func mark(next, revision int64, eras ...string) string {
	return fmt.Sprintf(`{"format":2,"next":"%d","stamp":{"epoch":"e","layout_revision":"%d"},"eras":[%s]}`, next,
		revision, strings.Join(eras, ","))
}

const tagSettings = `{"format":2,"start":"1","limit":"%d","min_step":"1000","max_step":"10000000","reserve":"10m0s","max_jump":"1000000000000000","largest_step":"10000000","created":"2026-01-01T00:00:00Z","nonce":"x"}`

// putGood writes a tag with a mark of two eras in both rooms.
func putGood(m *ledgertest.Fake, name string, revisions [2]int64) {
	set(m, "tags/"+name, fmt.Sprintf(tagSettings, int64(allocator.MaxID)))
	set(m, "marks/a/"+name, mark(150, revisions[1], era(1, 1, 45), era(2, 105, 150)))
	set(m, "marks/b/"+name, mark(145, revisions[1], era(1, 5, 100), era(2, 100, 145)))
}

// twoWindows writes windows of one worker that have a second in common: of each room, under the layout in which
// the worker was in its slice. An empty epoch is the one in force.
func twoWindows(m *ledgertest.Fake, epoch string, revisions [2]int64) {
	if epoch == "" {
		value, _ := m.Value(verifyPrefix + "epoch")
		epoch = regexp.MustCompile(`[0-9a-f]{32}`).FindString(string(value))
	}
	id := record.WorkerID{Bits: 1}
	for k, room := range []allocator.Room{"a", "b"} {
		at := int64(1+k) * 1000
		w := record.Worker{Room: room, Instance: "x", Incarnation: string(room), From: at, Until: at + 2000,
			Clock: 1000, Stamp: record.Stamp{Epoch: epoch, Revision: revisions[k]}}
		m.Corrupt(store.OpPut(record.Keys(verifyPrefix).Window(room, id), w.Encode()))
	}
}

// Verify says each thing that is wrong, with pages of every size.
func TestVerifyFinds(t *testing.T) {
	a := func(next, revision int64, eras ...string) func(*ledgertest.Fake, [2]int64) {
		return func(m *ledgertest.Fake, rev [2]int64) { set(m, "marks/a/t", mark(next, rev[1]+revision, eras...)) }
	}
	for _, test := range []struct {
		name string
		do   func(m *ledgertest.Fake, rev [2]int64)
		says []string // all that it says, in parts
	}{
		{"nothing", func(*ledgertest.Fake, [2]int64) {}, nil},
		{"an ID twice", a(150, 0, era(1, 1, 105), era(2, 105, 150)),
			[]string{"tag t: room a version 1 [1, 105) and room b version 2 [100, 145) may both have leased 100"}},
		{"an ID twice, in the latest era", a(150, 0, era(1, 1, 45), era(2, 75, 150)),
			[]string{"room b version 1 [5, 100) and room a version 2 [75, 150) may both have leased 75"}},
		{"eras of a room that overlap", a(150, 0, era(1, 1, 115), era(2, 105, 150)),
			[]string{"a mark's numbers do not fit"}},
		{"eras out of order", a(150, 0, era(2, 1, 45), era(1, 105, 150)), []string{"a mark's numbers do not fit"}},
		{"a stamp of the future", a(150, 1, era(1, 1, 45), era(2, 105, 150)),
			[]string{"tag t room a: the stamp of layout version 2, revision 4, but the layout in force is version 2 " +
				"at revision 3"}},
		{"an end off the range", a(150, 0, era(1, 1, 48), era(2, 105, 150)),
			[]string{"tag t: room a version 1 [1, 48) does not begin and end with an ID of [0, 5) mod 10"}},
		{"no such layout", a(150, 0, era(1, 1, 45), era(3, 105, 150)), []string{
			"tag t: room a version 3 [105, 150): there is no such layout, or the room is not in it",
			"room b version 2 [100, 145) and room a version 3 [105, 150) may both", "the stamp of layout version 3",
		}},
		{"a mark below its era", a(149, 0, era(1, 1, 45), era(2, 105, 150)),
			[]string{"key /march/default/marks/a/t: a mark's numbers do not fit"}},
		{"a mark above the limit", func(m *ledgertest.Fake, rev [2]int64) {
			set(m, "tags/t", fmt.Sprintf(tagSettings, 120))
			a(150, 0, era(2, 105, 150))(m, rev)
		}, []string{"tag t room a: next 150 above the tag's limit 120"}},
		{"a limit that was lowered since", func(m *ledgertest.Fake, _ [2]int64) {
			set(m, "tags/t", fmt.Sprintf(tagSettings, 120))
		}, nil},
		{"a mark of an unknown format", func(m *ledgertest.Fake, _ [2]int64) { set(m, "marks/a/t", `{"format":3}`) },
			[]string{"marks/a/t: format 3; this program knows format 2"}},
		{"a mark that was raised, of a room that never was", func(m *ledgertest.Fake, _ [2]int64) {
			set(m, "marks/c/t", `{"format":2,"next":"5"}`)
		}, nil},
		{"windows of two rooms at the same time", func(m *ledgertest.Fake, rev [2]int64) {
			twoWindows(m, "", rev)
		}, []string{"worker 1/0 is leased to a/x and to b/x for the time from 2000 until 3000"}},
		{"windows of two rooms that a restore brought back", func(m *ledgertest.Fake, rev [2]int64) {
			twoWindows(m, "an earlier one", rev)
		}, nil},
		{"marks of a room that never was", func(m *ledgertest.Fake, rev [2]int64) {
			set(m, "marks/c/t", mark(5, rev[1], era(2, 1, 5)))
			set(m, "marks/c/u", mark(5, rev[1], era(2, 1, 5)))
		}, []string{"there are marks of room c, which never was, the first is /march/default/marks/c/t"}},
		{"a tag that is garbage", func(m *ledgertest.Fake, _ [2]int64) {
			set(m, "tags/t", "{}")
		}, []string{"tags/t: format 0"}},
		{"keys of no kind", func(m *ledgertest.Fake, _ [2]int64) {
			for _, key := range []string{"marks/b", "marks/a/t/x", "eras/a", "nonsense/a", "layouts/1",
				"tags/T", "rooms/a/one/x"} {
				set(m, key, "x")
			}
		}, []string{`/march/default/marks/b: not`, `marks/a/t/x: not`, `eras/a: not`, `nonsense/a: not`,
			`layouts/1: not`, `tags/T: not`, `rooms/a/one/x: not`}},
		{"an instance on no layout", func(m *ledgertest.Fake, _ [2]int64) {
			set(m, "rooms/a/one",
				`{"format":2,"incarnation":"i","address":"x","build":"b","version":"3","started":"2026-01-01T00:00:00Z","hold":"10m0s"}`)
		}, []string{"instance a/one serves layout version 3; there is no such layout"}},
		{"a history that is shorter", func(m *ledgertest.Fake, _ [2]int64) {
			m.Corrupt(store.Op{Delete: verifyPrefix + "layouts/0000000000000000001"})
		}, []string{"the layouts before version 2 are missing"}}, // the oldest goes only when there are too many
		{"a layout that is gone", func(m *ledgertest.Fake, _ [2]int64) {
			m.Corrupt(store.Op{Delete: verifyPrefix + "layout"})
		},
			[]string{"key /march/default/layout: it is missing"}},
		{"a layout that differs", func(m *ledgertest.Fake, _ [2]int64) {
			value, _ := m.Value(verifyPrefix + "layout")
			set(m, "layout", strings.NewReplacer(`"lower":"0"`, `"lower":"1"`, `"narrowest_range":"5"`,
				`"narrowest_range":"4"`).Replace(string(value)))
		}, []string{"is not the last of the history", "differs from its own history"}},
		{"a layout that differs in its nonce", func(m *ledgertest.Fake, _ [2]int64) {
			value, _ := m.Value(verifyPrefix + "layout")
			set(m, "layout", strings.Replace(string(value), `"nonce":"`, `"nonce":"0`, 1))
		}, []string{"differs from its own history"}},
		{"a room that is forgotten", func(m *ledgertest.Fake, rev [2]int64) {
			for _, key := range []string{"layouts/0000000000000000003", "layout"} {
				set(m, key,
					`{"format":3,"version":"3","boundary":"10","rooms":{"a":{"lower":"0","upper":"5"}},"ever":["a"],"time":"2026-01-01T00:00:00Z","actor":"x","nonce":"x","formats":2,"narrowest_range":"5","largest_boundary":"10"}`)
			}
		}, []string{"layout version 3: room b is not among those that ever were, [a]"}},
		{"an invalid layout", func(m *ledgertest.Fake, _ [2]int64) {
			for _, key := range []string{"layouts/0000000000000000002", "layout"} {
				value, _ := m.Value(verifyPrefix + key)
				set(m, key, strings.Replace(string(value), `"lower":"5"`, `"lower":"4"`, 1))
			}
		}, []string{"layouts/0000000000000000002: invalid layout", "/layout: invalid layout",
			"room a version 2 [105, " +
				"150): there is no such layout", "room b version 2 [100, 145): there is no such layout"}},
		{"no epoch", func(m *ledgertest.Fake, _ [2]int64) {
			m.Corrupt(store.Op{Delete: verifyPrefix + "epoch"})
		}, []string{"key /march/default/epoch: it is missing"}},
	} {
		for _, page := range []int64{1, 2, 3, 1000} {
			t.Run(fmt.Sprint(test.name, "/", page), func(t *testing.T) {
				m, l, revisions := verifyCluster(t)
				for _, name := range []string{"s-1", "t", "t-1", "t.1", "t0"} {
					putGood(m, name, revisions)
				}
				test.do(m, revisions)
				report, err := verify.Run(t.Context(), l.Cluster(), verify.Options{PageSize: page})
				if err != nil {
					t.Fatal(err)
				}
				// A layout of which something is wrong is wrong for all tags.
				got := slices.DeleteFunc(report.Problems, func(s string) bool {
					return strings.HasPrefix(s, "tag t-1") || strings.HasPrefix(s, "tag t.1") ||
						strings.HasPrefix(s, "tag t0") || strings.HasPrefix(s, "tag s-1")
				})
				for _, want := range test.says {
					if i := slices.IndexFunc(got, func(s string) bool { return strings.Contains(s, want) }); i >= 0 {
						got = slices.Delete(got, i, i+1)
					} else {
						t.Errorf("it does not say %q", want)
					}
				}
				if len(got) > 0 || report.More > 0 {
					t.Errorf("it says besides, and %d more:\n%s", report.More, strings.Join(got, "\n"))
				}
			})
		}
	}
}

// Names at every page's edge: each tag is checked, and each key is counted once.
func TestVerifyOrders(t *testing.T) {
	m, l, revisions := verifyCluster(t)
	names := []string{"a", "a-", "a--", "a-0", "a.", "a.b", "a0", "a0-", "aa", "a-a.b", "a-a", "a-a-", "b", "b-1",
		"b-2", "b-3", "b-4", "b.1", "b_", "c"}
	for _, name := range names {
		putGood(m, name, revisions)
	}
	for _, bad := range append([]string{""}, names...) {
		if bad != "" {
			set(m, "marks/a/"+bad, mark(150, revisions[1], era(1, 1, 105), era(2, 105, 150)))
		}
		for page := int64(1); page < 12; page++ {
			report, err := verify.Run(t.Context(), l.Cluster(), verify.Options{PageSize: page})
			if err != nil {
				t.Fatal(err)
			}
			n := int64(len(names))
			if report.Layouts != 2 || report.Rooms != 2 || report.Tags != n ||
				report.Marks != 2*n || report.Eras != 4*n {
				t.Errorf("page %d: counted %+v", page, report)
			}
			if bad == "" && len(report.Problems) > 0 ||
				bad != "" && (len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "tag "+bad+": ")) {
				t.Errorf("page %d: %q is bad, but it says: %q", page, bad, report.Problems)
			}
		}
		if bad != "" {
			putGood(m, bad, revisions)
		}
	}
}

// The cluster moves while it is read: layouts, rooms, eras. At every
// transaction in turn the layout changes and all rooms lease under it; nothing
// is found wrong.
func TestVerifyMoves(t *testing.T) {
	ctx := t.Context()
	for at := 0; ; at++ {
		m, l, _ := verifyCluster(t)
		names := []allocator.Tag{"a", "a-1", "a-2", "b", "b-1", "b-2", "c"}
		lease := func(rooms ...allocator.Room) {
			for _, room := range rooms {
				p, err := l.Join(ctx, ledger.Registration{Room: room, Name: "one"})
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range names {
					source, _, err := p.Source(ctx, name)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := source.Lease(ctx, 20); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		for _, name := range names {
			if _, err := manage(l).CreateTag(ctx, name, record.DefaultTag(), "test"); err != nil {
				t.Fatal(err)
			}
		}
		lease("a", "b")
		conn := m.Open()
		var mu sync.Mutex // lists are read at once
		count := 0
		conn.Fate(func(store.Txn) (fate ledgertest.Fate) {
			mu.Lock()
			defer mu.Unlock()
			if count++; count != at+1 && count != at+3 {
				return fate
			}
			stored, err := l.Refresh(ctx)
			if err != nil {
				t.Fatal(err)
			}
			third := allocator.Layout{Boundary: 12, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 8,
				Upper: 12}, "b": {Lower: 4, Upper: 8}, "new": {Lower: 0, Upper: 4}}}
			if _, err := manage(l).ChangeLayout(ctx, stored, third, "test"); err != nil {
				t.Fatal(err)
			}
			lease("new", "a", "b")
			return fate
		})
		reader, err := ledger.New(conn, ledger.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		report, err := verify.Run(ctx, reader.Cluster(), verify.Options{PageSize: 3})
		if err != nil || len(report.Problems) > 0 {
			t.Errorf("moved at %d: %v %q", at, err, report.Problems)
		}
		if count <= at {
			if at < 9 {
				t.Errorf("only %d transactions", count)
			}
			return
		}
	}
}

// No cluster, etcd away and the caller's context end Verify early.
func TestVerifyErrors(t *testing.T) {
	m := ledgertest.NewFake(t)
	l, err := ledger.New(m.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify.Run(t.Context(), l.Cluster(), verify.Options{}); allocator.KindOf(err) != allocator.Refused {
		t.Errorf("without a cluster: %v", err)
	}
	m, l, revisions := verifyCluster(t)
	for i := range 20 {
		putGood(m, fmt.Sprintf("t%d", i), revisions)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	report, err := verify.Run(ctx, l.Cluster(), verify.Options{PageSize: 2, Progress: func(p verify.Progress) {
		if p.Tags > 4 {
			cancel()
		}
	}})
	if err == nil || ctx.Err() == nil || report.Tags == 0 || report.Tags == 20 {
		t.Errorf("canceled: %v %+v", err, report)
	}
}

// A history from which layouts were deleted is not whole, be it the first one.
func TestVerifyFindsMissingLayouts(t *testing.T) {
	for version, want := range map[int]string{
		1: "the layouts before version 2 are missing from the history, though it has 4 of 1000",
		2: "the layouts between version 1 and version 3 are missing from the history",
	} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a := c.start("a")
		a.Lease(10)
		for upper := int64(49); upper > 46; upper-- {
			c.Move(fmt.Sprintf("100 a=0-%d b=50-100", upper))
		}
		a.Lease(10)
		verified(t, c)
		c.mustRecover([]*process{a}) // which skips versions
		verified(t, c)
		c.Corrupt(fmt.Sprintf("layouts/%019d", version), nil)
		report, err := verify.Run(bg, ledgertest.Open(t, c.Mem.Open()).Cluster(), verify.Options{})
		if err != nil || len(report.Problems) == 0 ||
			!slices.ContainsFunc(report.Problems, func(p string) bool { return strings.Contains(p, want) }) {
			t.Errorf("without version %d: %q, %v", version, report.Problems, err)
		}
	}
}
