package ledgertest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// recorder is a TB that notes what it is told.
type recorder struct{ said []string }

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...) }

// issue makes a cluster that changed its layout, and returns what was issued.
func issue(t *testing.T, etcd store.Store) ledgertest.Issued {
	ctx := context.Background()
	l, err := ledger.New(etcd, ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	a, b := allocator.Range{Lower: 0, Upper: 5}, allocator.Range{Lower: 5, Upper: 10}
	stored, err := admin.New(l, admin.DefaultConfig()).Init(ctx,
		allocator.Layout{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{"a": a, "b": b}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.New(l, admin.DefaultConfig()).CreateTag(ctx, "t", record.DefaultTag(), "test"); err != nil {
		t.Fatal(err)
	}
	issued := ledgertest.Issued{}
	lease := func() {
		for _, room := range []allocator.Room{"a", "b"} {
			p, err := l.Join(ctx, ledger.Registration{Room: room, Name: "one"})
			if err != nil {
				t.Fatal(err)
			}
			source, _, err := p.Source(ctx, "t")
			if err != nil {
				t.Fatal(err)
			}
			seg, err := source.Lease(ctx, 20)
			if err != nil {
				t.Fatal(err)
			}
			issued.Add("t", room, seg)
		}
	}
	lease()
	if _, err := admin.New(l, admin.DefaultConfig()).ChangeLayout(ctx, stored, allocator.Layout{Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": b, "b": a}}, "test"); err != nil {
		t.Fatal(err)
	}
	lease()
	return issued
}

// The check of a cluster finds each thing that it is there to find.
func TestCheckClusterFinds(t *testing.T) {
	for _, test := range []struct {
		name, key, old, new string // in this key's value; an empty key is what was issued
		says                string
	}{
		{name: "nothing"},
		{"an era that reaches into another room's", "marks/a/t", `"first":"85"`, `"first":"55"`,
			"may both have leased 55"},
		{"an ID of no era", "", "", "new", "lies in no era"},
		{"an era of no layout", "marks/a/t", `"version":"2"`, `"version":"3"`, "no such layout"},
		{"a mark of no room", "marks/c/t", "",
			`{"format":2,"next":"5","stamp":{"epoch":"e","layout_revision":"1"},"eras":[{"version":"1","epoch":"e","first":"1","end":"5"}]}`, "which never was"},
		{"a mark below 0", "marks/a/t", `"next":"`, `"next":"-`, "do not fit"},
		{"a stamp of the future", "marks/a/t", `"layout_revision":"`, `"layout_revision":"9`,
			"but the layout in force is version 2 at revision"},
		{"an era that ends off the range", "marks/a/t", `"end":"41"`, `"end":"40"`, "does not begin and end with"},
		{"an instance on no layout", "rooms/a/one", `"version":"1"`, `"version":"3"`, "serves layout version 3"},
		{"a mark that is garbage", "marks/b/t", `"next"`, `"nest"`, "marks/b/t"},
		{"a key of no kind", "marks/b", "", "x", "not a key of this program"},
		{"a history with a hole", "layouts/0000000000000000002", "", "", "not the last of the history"},
		{"a layout that differs", "layout", `"actor":"test"`, `"actor":"ann"`, "differs from its own history"},
		{"no identity", "identity", "", "", "identity"},
		{name: "an ID twice", says: "was issued by room"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := ledgertest.NewFake(t)
			issued := issue(t, m.Open())
			key := "/march/default/" + test.key
			switch value, _ := m.Value(key); {
			case test.name == "nothing":
			case test.key == "":
				seg := issued["t"]["a"][0]
				if test.new != "" {
					seg = allocator.Segment{Version: 1, Boundary: 10, Range: allocator.Range{Lower: 5, Upper: 10},
						First: 1005, Count: 2}
				}
				issued["t"]["b"] = append(issued["t"]["b"], seg)
			case test.old == "" && test.new == "":
				m.Corrupt(store.Op{Delete: key})
			case !strings.Contains(string(value), test.old):
				t.Fatalf("%s is not in %s", test.old, value)
			case test.old == "":
				m.Corrupt(store.Op{Put: &store.Put{Key: key, Value: []byte(test.new)}})
			default:
				m.Corrupt(store.Op{Put: &store.Put{Key: key,
					Value: []byte(strings.Replace(string(value), test.old, test.new, 1))}})
			}
			var r recorder
			ledgertest.CheckCluster(&r, m.Open(), "default", issued)
			if all := strings.Join(r.said, "\n"); (test.says == "") != (all == "") ||
				!strings.Contains(all, test.says) {
				t.Errorf("it said:\n%s\nwant: %q", all, test.says)
			}
		})
	}
}

// The store in memory complains by itself of what no ledger may do.
func TestMemoryComplains(t *testing.T) {
	const prefix = "/march/default/"
	edit := func(key, from, to string) func(*ledgertest.Fake) store.Txn {
		return func(m *ledgertest.Fake) store.Txn {
			value, _ := m.Value(prefix + key)
			return store.Txn{Then: []store.Op{{Put: &store.Put{Key: prefix + key,
				Value: []byte(strings.ReplaceAll(string(value), from, to))}}}}
		}
	}
	remove := func(key string) func(*ledgertest.Fake) store.Txn {
		return func(*ledgertest.Fake) store.Txn { return store.Txn{Then: []store.Op{{Delete: prefix + key}}} }
	}
	window := func(before string) func(*ledgertest.Fake) store.Txn {
		return func(m *ledgertest.Fake) store.Txn {
			const key = prefix + "windows/a/10/0000000000000000007"
			if before != "" {
				m.Corrupt(store.Op{Put: &store.Put{Key: key, Value: []byte(before)}})
			}
			value := `{"format":2,"room":"a","instance":"one","incarnation":"c","from":"1","until":"2","stamp":{"epoch":"e","layout_revision":"7"},"clock":"1"}`
			return store.Txn{Then: []store.Op{{Put: &store.Put{Key: key, Value: []byte(value)}}}}
		}
	}
	for _, test := range []struct {
		name string
		txn  func(*ledgertest.Fake) store.Txn
		says string
	}{
		{"a raised mark", edit("marks/a/t", `"next":"1`, `"next":"91`), ""},
		{"a tag deleted without a tombstone", remove("tags/t"), "leaves none"},
		{"a tombstone", edit("tags/t", `{"format":2,`, `{"format":6,"deleted":"2026-01-01T00:00:00Z","least":"1",`), ""},
		{"a tombstone without the least ID", edit("tags/t", `{"format":2,`, `{"format":6,"deleted":"2026-01-01T00:00:00Z",`),
			"second life"},
		{"a mark that falls", edit("marks/a/t", "120", "90"), "mark fell"},
		{"a mark deleted", remove("marks/a/t"), "kept key deleted"},
		{"a layout deleted", remove("layouts/0000000000000000001"), "kept key deleted"},
		{"an era gone", edit("marks/a/t", `{"version":"1",`, `{"version":"2",`), "era"},
		{"the identity deleted", remove("identity"), "kept key deleted"},
		{"a version reused", edit("layouts/0000000000000000001", `"actor":"test"`, `"actor":"ann"`),
			"kept key rewritten"},
		{"an era rewritten", edit("marks/a/t", `"first":"1"`, `"first":"2"`), "era"},
		{"a layout without a new version", edit("layout", `"actor":"test"`, `"actor":"ann"`), "2 follows 2"},
		{"a layout without its history", edit("layout", `"version":"2"`, `"version":"3"`), "without its history"},
		{"a room that is forgotten", edit("layout", `"ever":["a","b"]`, `"ever":["a"]`), "rooms that ever were"},
		{"a lease under another layout", edit("marks/a/t", `"layout_revision":"`, `"layout_revision":"9`), "stamp"},
		{"a lease without conditions", edit("marks/a/t", "120", "125"),
			"without a condition on " + prefix + "rooms/a/"},
		{"a window under another epoch", window(""), "window stamp"},
		{"a window over what is no worker", window("x"), "written over what is no worker"},
		{"a window without conditions", window(""), "without a condition on " + prefix + "layout"},
		{"a worker deleted", func(m *ledgertest.Fake) store.Txn {
			window("x")(m)
			return remove("windows/a/10/0000000000000000007")(m)
		}, "kept key deleted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r recorder
			m := ledgertest.NewFake(&r)
			issue(t, m.Open())
			if len(r.said) > 0 {
				t.Fatalf("before: %v", r.said)
			}
			if _, err := m.Open().Txn(t.Context(), test.txn(m)); err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(r.said, "\n"); (test.says == "") != (all == "") ||
				!strings.Contains(all, test.says) {
				t.Errorf("it said:\n%s\nwant: %q", all, test.says)
			}
		})
	}
}
