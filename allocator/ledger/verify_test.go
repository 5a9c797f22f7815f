package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

const verifyPrefix = "/march/default/"

// verifyCluster returns a cluster of rooms a and b, under layout version 2 in
// which they have changed places, with the revisions of both layouts.
func verifyCluster(t *testing.T) (*ledgertest.Memory, *ledger.Ledger, [2]int64) {
	m := ledgertest.NewMemory(t)
	l, err := ledger.New(m.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	low, high := allocator.Range{Lower: 0, Upper: 5}, allocator.Range{Lower: 5, Upper: 10}
	record, err := l.Init(t.Context(), allocator.Layout{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{"a": low, "b": high}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	revisions := [2]int64{m.Revision(), 0}
	if _, err := l.ChangeLayout(t.Context(), record, allocator.Layout{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{"a": high, "b": low}}, "test"); err != nil {
		t.Fatal(err)
	}
	revisions[1] = m.Revision()
	return m, l, revisions
}

func set(m *ledgertest.Memory, key, value string) {
	m.Corrupt(ledger.Op{Put: &ledger.Put{Key: verifyPrefix + key, Value: []byte(value)}})
}

func era(revision int64, version, first, end int64) string {
	return fmt.Sprintf(`"epoch":"e","layout_revision":"%d","version":"%d","first":"%d","end":"%d"`, revision, version, first, end)
}

func endedEra(revision int64, version, first, end int64) string {
	return `{"format":1,` + era(revision, version, first, end) + `}`
}

func mark(next int64, current string) string {
	return fmt.Sprintf(`{"format":1,"next":"%d","era":{%s}}`, next, current)
}

const tagSettings = `{"format":1,"start":"1","limit":"%d","min_step":"1000","max_step":"10000000","reserve":"10m0s","max_jump":"1000000000000000","created":"2026-01-01T00:00:00Z","nonce":"x"}`

// putGood writes a tag with a mark and an ended era in both rooms.
func putGood(m *ledgertest.Memory, name string, revisions [2]int64) {
	set(m, "tags/"+name, fmt.Sprintf(tagSettings, int64(allocator.MaxID)))
	for room, ids := range map[string][4]int64{"a": {1, 45, 105, 150}, "b": {5, 100, 100, 145}} {
		set(m, "eras/"+room+"/"+name+"/0000000000000000001", endedEra(revisions[0], 1, ids[0], ids[1]))
		set(m, "marks/"+room+"/"+name, mark(ids[3], era(revisions[1], 2, ids[2], ids[3])))
	}
}

// Verify says each thing that is wrong, with pages of every size.
func TestVerifyFinds(t *testing.T) {
	const eraA, eraB = "eras/a/t/0000000000000000001", "eras/b/t/0000000000000000001"
	for _, test := range []struct {
		name string
		do   func(m *ledgertest.Memory, rev [2]int64)
		says []string // all that it says, in parts
	}{
		{"nothing", func(*ledgertest.Memory, [2]int64) {}, nil},
		{"an ID twice", func(m *ledgertest.Memory, rev [2]int64) { set(m, eraA, endedEra(rev[0], 1, 1, 105)) },
			[]string{"tag t: room a version 1 [1, 105) and room b version 2 [100, 145) may both have leased 100"}},
		{"an ID twice, in an era that is open", func(m *ledgertest.Memory, rev [2]int64) {
			set(m, "marks/a/t", mark(150, era(rev[1], 2, 75, 150)))
		}, []string{"room b version 1 [5, 100) and room a version 2 [75, 150) may both have leased 75"}},
		{"eras of a room that overlap", func(m *ledgertest.Memory, rev [2]int64) { set(m, eraB, endedEra(rev[0], 1, 5, 110)) },
			[]string{"room b version 2 [100, 145) does not follow room b version 1 [5, 110)", "may both have leased 105"}},
		{"stamps out of order", func(m *ledgertest.Memory, rev [2]int64) { set(m, eraB, endedEra(rev[1], 1, 5, 100)) },
			[]string{"room b version 2 [100, 145) does not follow room b version 1 [5, 100)"}},
		{"a stamp of the future", func(m *ledgertest.Memory, rev [2]int64) {
			set(m, "marks/a/t", mark(150, era(rev[1]+1, 2, 105, 150)))
		}, []string{"room a version 2 [105, 150) has the stamp of layout revision 4, but the layout is at revision 3"}},
		{"an end off the range", func(m *ledgertest.Memory, rev [2]int64) { set(m, eraA, endedEra(rev[0], 1, 1, 48)) },
			[]string{"tag t: room a version 1 [1, 48) does not begin and end with an ID of [0, 5) mod 10"}},
		{"no such layout", func(m *ledgertest.Memory, rev [2]int64) {
			set(m, "marks/a/t", mark(150, era(rev[1], 3, 105, 150)))
		}, []string{"tag t: room a version 3 [105, 150): there is no such layout, or the room is not in it"}},
		{"a mark below its era", func(m *ledgertest.Memory, rev [2]int64) {
			set(m, "marks/a/t", mark(149, era(rev[1], 2, 105, 150)))
		}, []string{"key /march/default/marks/a/t: a mark's numbers do not fit"}},
		{"a mark below an ended era", func(m *ledgertest.Memory, _ [2]int64) { set(m, "marks/a/t", `{"format":1,"next":"20"}`) },
			[]string{"tag t room a: next 20 below the end of the era of version 1, 45"}},
		{"a mark above the limit", func(m *ledgertest.Memory, rev [2]int64) {
			set(m, "tags/t", fmt.Sprintf(tagSettings, 120))
			set(m, "marks/a/t", mark(150, era(rev[1], 2, 105, 150)))
		}, []string{"tag t room a: next 150 above the tag's limit 120"}},
		{"a limit that was lowered since", func(m *ledgertest.Memory, _ [2]int64) { set(m, "tags/t", fmt.Sprintf(tagSettings, 120)) }, nil},
		{"a mark of an unknown format", func(m *ledgertest.Memory, _ [2]int64) { set(m, "marks/a/t", `{"format":2}`) },
			[]string{"marks/a/t: format 2; this program knows format 1"}},
		{"a mark that is gone", func(m *ledgertest.Memory, _ [2]int64) {
			m.Corrupt(ledger.Op{Delete: verifyPrefix + "marks/b/t"})
		}, []string{"tag t room b has eras but no mark"}},
		{"eras of nothing", func(m *ledgertest.Memory, rev [2]int64) {
			set(m, "eras/b/s/0000000000000000001", endedEra(rev[0], 1, 5, 10))
		}, []string{"tag s room b has eras but no mark"}},
		{"an era under a wrong key", func(m *ledgertest.Memory, rev [2]int64) { set(m, eraA, endedEra(rev[1], 2, 5, 10)) },
			[]string{eraA + ": holds an era of version 2"}},
		{"marks of a room that never was", func(m *ledgertest.Memory, _ [2]int64) {
			set(m, "marks/c/t", `{"format":1,"next":"5"}`)
			set(m, "marks/c/u", `{"format":1,"next":"5"}`)
		}, []string{"there are marks of room c, which never was, the first is /march/default/marks/c/t"}},
		{"eras of a room that never was", func(m *ledgertest.Memory, rev [2]int64) {
			set(m, "eras/c/t/0000000000000000001", endedEra(rev[0], 1, 5, 10))
		}, []string{"there are eras of room c, which never was"}},
		{"a tag that is garbage", func(m *ledgertest.Memory, _ [2]int64) { set(m, "tags/t", "{}") }, []string{"tags/t: format 0"}},
		{"keys of nobody", func(m *ledgertest.Memory, _ [2]int64) {
			for _, key := range []string{"marks/b", "marks/a/t/x", "eras/a/t/1", "nonsense/a", "layouts/1", "tags/T", "rooms/a/one/x"} {
				set(m, key, "x")
			}
		}, []string{`"/march/default/marks/b": not`, `marks/a/t/x": not`, `eras/a/t/1": not`, `nonsense/a": not`, `layouts/1": not`, `tags/T: not`, `rooms/a/one/x": not`}},
		{"an instance on no layout", func(m *ledgertest.Memory, _ [2]int64) {
			set(m, "rooms/a/one", `{"format":1,"incarnation":"i","address":"x","build":"b","version":"3","started":"2026-01-01T00:00:00Z","hold":"10m0s"}`)
		}, []string{"instance a/one serves layout version 3; there is no such layout"}},
		{"a history with a hole", func(m *ledgertest.Memory, _ [2]int64) {
			m.Corrupt(ledger.Op{Delete: verifyPrefix + "layouts/0000000000000000001"})
		}, []string{"layout 1 of the history is version 2", "tag t: room a version 1 [1, 45): there is no such layout", "tag t: room b version 1 [5, 100): there is no such layout"}},
		{"a layout that is gone", func(m *ledgertest.Memory, _ [2]int64) { m.Corrupt(ledger.Op{Delete: verifyPrefix + "layout"}) },
			[]string{"there is no key /march/default/layout"}},
		{"a layout that differs", func(m *ledgertest.Memory, _ [2]int64) {
			value, _ := m.Value(verifyPrefix + "layout")
			set(m, "layout", strings.Replace(string(value), `"lower":"0"`, `"lower":"1"`, 1))
		}, []string{"is not the last of the history", "differs from its own history"}},
		{"a layout that differs in its nonce", func(m *ledgertest.Memory, _ [2]int64) {
			value, _ := m.Value(verifyPrefix + "layout")
			set(m, "layout", strings.Replace(string(value), `"nonce":"`, `"nonce":"0`, 1))
		}, []string{"differs from its own history"}},
		{"a room that is forgotten", func(m *ledgertest.Memory, rev [2]int64) {
			for _, key := range []string{"layouts/0000000000000000003", "layout"} {
				set(m, key, `{"format":1,"version":"3","boundary":"10","rooms":{"a":{"lower":"0","upper":"5"}},"ever":["a"],"time":"2026-01-01T00:00:00Z","actor":"x","nonce":"x"}`)
			}
		}, []string{"layout version 3: room b is not among those that ever were, [a]"}},
		{"an invalid layout", func(m *ledgertest.Memory, _ [2]int64) {
			for _, key := range []string{"layouts/0000000000000000002", "layout"} {
				value, _ := m.Value(verifyPrefix + key)
				set(m, key, strings.Replace(string(value), `"lower":"5"`, `"lower":"4"`, 1))
			}
		}, []string{"layouts/0000000000000000002: invalid layout", "/layout: invalid layout", "room a version 2 [105, 150): there is no such layout", "room b version 2 [100, 145): there is no such layout"}},
		{"no epoch", func(m *ledgertest.Memory, _ [2]int64) { m.Corrupt(ledger.Op{Delete: verifyPrefix + "epoch"}) }, []string{"there is no key /march/default/epoch"}},
	} {
		for _, page := range []int64{1, 2, 3, 1000} {
			t.Run(fmt.Sprint(test.name, "/", page), func(t *testing.T) {
				m, l, revisions := verifyCluster(t)
				for _, name := range []string{"s-1", "t", "t-1", "t.1", "t0"} { // by its eras, t is after t.1
					putGood(m, name, revisions)
				}
				test.do(m, revisions)
				report, err := l.VerifyPages(t.Context(), page, nil)
				if err != nil {
					t.Fatal(err)
				}
				// A layout of which something is wrong is wrong for all tags.
				got := slices.DeleteFunc(report.Problems, func(s string) bool {
					return strings.HasPrefix(s, "tag t-1") || strings.HasPrefix(s, "tag t.1") || strings.HasPrefix(s, "tag t0") || strings.HasPrefix(s, "tag s-1")
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

// Names of which the eras are in another order than the marks, at every page's
// edge: each tag is checked, and each key is counted once.
func TestVerifyOrders(t *testing.T) {
	m, l, revisions := verifyCluster(t)
	names := []string{"a", "a-", "a--", "a-0", "a.", "a.b", "a0", "a0-", "aa", "a-a.b", "a-a", "a-a-", "b", "b-1", "b-2", "b-3", "b-4", "b.1", "b_", "c"}
	for _, name := range names {
		putGood(m, name, revisions)
	}
	for _, bad := range append([]string{""}, names...) {
		if bad != "" {
			set(m, "eras/a/"+bad+"/0000000000000000001", endedEra(revisions[0], 1, 1, 105))
		}
		for page := int64(1); page < 12; page++ {
			report, err := l.VerifyPages(t.Context(), page, nil)
			if err != nil {
				t.Fatal(err)
			}
			n := int64(len(names))
			if report.Layouts != 2 || report.Rooms != 2 || report.Tags != n || report.Marks != 2*n || report.Eras != 2*n {
				t.Errorf("page %d: counted %+v", page, report)
			}
			if bad == "" && len(report.Problems) > 0 || bad != "" && (len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "tag "+bad+": ")) {
				t.Errorf("page %d: %q is bad, but it says: %q", page, bad, report.Problems)
			}
		}
		if bad != "" {
			putGood(m, bad, revisions)
		}
	}
}

// Twenty thousand tags, over pages, with one that is bad; then with all bad.
func TestVerifyManyTags(t *testing.T) {
	const n = 20_000
	m, l, revisions := verifyCluster(t)
	for i := range n {
		putGood(m, fmt.Sprintf("tag-%05d", i), revisions)
	}
	set(m, "eras/a/tag-12345/0000000000000000001", endedEra(revisions[0], 1, 1, 105))
	calls, last := 0, ledger.VerifyProgress{}
	report, err := l.VerifyPages(t.Context(), 500, func(p ledger.VerifyProgress) {
		calls++
		if p.Tags < last.Tags || p.Marks < last.Marks || p.Eras < last.Eras || p.At != "" && p.At <= last.At {
			t.Errorf("progress goes from %+v to %+v", last, p)
		}
		last = p
	})
	if err != nil {
		t.Fatal(err)
	}
	if report.Tags != n || report.Marks != 2*n || report.Eras != 2*n || calls < n/500 || last.Tags != n || last.Problems != 1 {
		t.Errorf("%d calls, the last %+v, report %+v", calls, last, report)
	}
	if len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "tag tag-12345: ") {
		t.Errorf("it says %q", report.Problems)
	}
	m.Corrupt(ledger.Op{Delete: verifyPrefix + "layouts/0000000000000000001"})
	report, err = l.VerifyPages(t.Context(), 500, nil)
	if err != nil || len(report.Problems) != ledger.MaxProblems || report.More != 2*n+1-ledger.MaxProblems {
		t.Errorf("%v: %d problems and %d more, want %d in all", err, len(report.Problems), report.More, 2*n+1)
	}
}

// Pages stay few whatever names look like.
func TestVerifyPagesFew(t *testing.T) {
	const n, page = 3000, 100
	random := rand.New(rand.NewPCG(1, 2))
	for what, name := range map[string]func(i int) string{
		"numbers":  func(i int) string { return fmt.Sprint(i) },
		"padded":   func(i int) string { return fmt.Sprintf("tag-%06d", 17*i) },
		"random":   func(int) string { return fmt.Sprintf("%016x", random.Uint64()) },
		"far":      func(i int) string { return fmt.Sprintf("%c-%s-%03d", 'a'+i%5, strings.Repeat("x", 40), i/5) },
		"prefixes": func(i int) string { return fmt.Sprintf("%s%d", strings.Repeat("a.", i%25), i) },
	} {
		m, l, revisions := verifyCluster(t)
		for i := range n {
			putGood(m, name(i), revisions)
		}
		calls := 0
		report, err := l.VerifyPages(t.Context(), page, func(ledger.VerifyProgress) { calls++ })
		if err != nil || len(report.Problems) > 0 || report.Tags != n || report.Marks != 2*n || report.Eras != 2*n {
			t.Errorf("%s: %v %+v", what, err, report)
		}
		if most := 6 * n / page; calls > most {
			t.Errorf("%s: %d pages, want at most %d", what, calls, most)
		}
		t.Logf("%s: %d pages", what, calls)
	}
}

// The cluster moves while it is read: layouts, rooms, eras. At every
// transaction in turn the layout changes and all rooms lease under it; nothing
// is found wrong.
func TestVerifyMoves(t *testing.T) {
	ctx := t.Context()
	for at := 0; ; at++ {
		m, l, _ := verifyCluster(t)
		names := []allocator.Tag{"a", "a-1", "a-2", "b"}
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
			if _, err := l.CreateTag(ctx, name, ledger.DefaultTag(), "test"); err != nil {
				t.Fatal(err)
			}
		}
		lease("a", "b")
		conn := m.Open()
		count := 0
		conn.Fate(func(ledger.Txn) (fate ledgertest.Fate) {
			if count++; count != at+1 && count != at+3 {
				return fate
			}
			record, err := l.Refresh(ctx)
			if err != nil {
				t.Fatal(err)
			}
			third := allocator.Layout{Boundary: 12, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 8, Upper: 12}, "b": {Lower: 4, Upper: 8}, "new": {Lower: 0, Upper: 4}}}
			if _, err := l.ChangeLayout(ctx, record, third, "test"); err != nil {
				t.Fatal(err)
			}
			lease("new", "a", "b")
			return fate
		})
		reader, err := ledger.New(conn, ledger.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		report, err := reader.VerifyPages(ctx, 3, nil)
		if err != nil || len(report.Problems) > 0 {
			t.Errorf("moved at %d: %v %q", at, err, report.Problems)
		}
		if count <= at {
			if at < 10 {
				t.Errorf("only %d transactions", count)
			}
			return
		}
	}
}

// A cluster with as many rooms as there may be: transactions stay within
// etcd's limit.
func TestVerifyManyRooms(t *testing.T) {
	m := ledgertest.NewMemory(t)
	l, err := ledger.New(m.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	var rooms []allocator.Room
	for i := range allocator.MaxRooms {
		rooms = append(rooms, allocator.Room(fmt.Sprintf("r%02d", i)))
	}
	layout, err := allocator.EqualLayout(6400, rooms)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Init(t.Context(), layout, "test"); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		set(m, fmt.Sprintf("tags/t%03d", i), fmt.Sprintf(tagSettings, int64(allocator.MaxID)))
		for j, room := range rooms {
			set(m, fmt.Sprintf("marks/%s/t%03d", room, i), mark(int64(100*j+50), era(2, 1, int64(100*j), int64(100*j+50))))
		}
	}
	report, err := l.Verify(t.Context(), nil)
	if err != nil || len(report.Problems) > 0 || report.Marks != 64*300 || report.Tags != 300 {
		t.Errorf("%v %+v", err, report)
	}
}

// What ends Verify early: no cluster, etcd away, the caller's context.
func TestVerifyErrors(t *testing.T) {
	m := ledgertest.NewMemory(t)
	l, err := ledger.New(m.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Verify(t.Context(), nil); allocator.KindOf(err) != allocator.Refused {
		t.Errorf("without a cluster: %v", err)
	}
	m, l, revisions := verifyCluster(t)
	for i := range 20 {
		putGood(m, fmt.Sprintf("t%d", i), revisions)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	report, err := l.VerifyPages(ctx, 2, func(p ledger.VerifyProgress) {
		if p.Tags > 4 {
			cancel()
		}
	})
	if err == nil || ctx.Err() == nil || report.Tags == 0 || report.Tags == 20 {
		t.Errorf("canceled: %v %+v", err, report)
	}
}
