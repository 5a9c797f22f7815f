package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Subject is an empty store under test, with the doors its interface does not
// have.
type Subject struct {
	Store   store.Store
	Another store.Store // a second connection to the same data
	Compact func()      // drops the history before the present revision
}

// RunStore holds a store to what ledger.Store promises. open is called once
// for each test.
func RunStore(t *testing.T, open func(t *testing.T) Subject) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Subject)
	}{
		{"revisions", testRevisions},
		{"conditions", testConditions},
		{"branches", testBranches},
		{"ranges", testRanges},
		{"reads in a transaction see its writes", testReadYourWrites},
		{"deletes", testDeletes},
		{"refused transactions", testRefused},
		{"watch", testWatch},
		{"watch of what is compacted", testCompacted},
		{"reads of an earlier revision", testReadAt},
		{"a context that ended", testContext},
		{"closed", testClosed},
		{"status", testStatus},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// The operations of a transaction, in short.

func put(key, value string) store.Op {
	return store.Op{Put: &store.Put{Key: key, Value: []byte(value)}}
}
func del(key string) store.Op { return store.Op{Delete: key} }
func get(key, end string) store.Op {
	return store.Op{Get: &store.Get{Interval: store.Interval{Key: key, End: end}}}
}

// do makes a transaction that must not fail.
func do(t *testing.T, s store.Store, txn store.Txn) store.Answer {
	t.Helper()
	answer, err := s.Txn(t.Context(), txn)
	if err != nil {
		t.Fatalf("txn %+v: %v", txn, err)
	}
	return answer
}

func write(t *testing.T, s store.Store, ops ...store.Op) store.Answer {
	t.Helper()
	return do(t, s, store.Txn{Then: ops})
}

// list shows what a Get found as key=value.
func list(kvs []store.KV) []string {
	out := []string{}
	for _, kv := range kvs {
		out = append(out, fmt.Sprintf("%s=%s", kv.Key, kv.Value))
	}
	return out
}

func testRevisions(t *testing.T, s Subject) {
	start := write(t, s.Store, get("a", ""))
	first := write(t, s.Store, put("a", "1"), put("b", "1"))
	if first.Revision != start.Revision+1 {
		t.Errorf("a transaction with two puts went from revision %d to %d, want one more",
			start.Revision, first.Revision)
	}
	read := write(t, s.Another, get("a", "c"))
	if read.Revision != first.Revision {
		t.Errorf("a read answers at revision %d, want %d", read.Revision, first.Revision)
	}
	for _, kv := range read.Got[0] {
		if kv.ModRevision != first.Revision {
			t.Errorf("%s has mod revision %d, want %d", kv.Key, kv.ModRevision, first.Revision)
		}
	}
	same := write(t, s.Store, put("a", "1"))
	if same.Revision != first.Revision+1 {
		t.Errorf("a put of the same value went to revision %d, want %d", same.Revision, first.Revision+1)
	}
	got := write(t, s.Store, get("a", ""), get("b", "")).Got
	if a, b := got[0][0].ModRevision, got[1][0].ModRevision; a != same.Revision || b != first.Revision {
		t.Errorf("mod revisions a %d, b %d; want %d, %d", a, b, same.Revision, first.Revision)
	}
	if start.ClusterID == 0 || start.MemberID == 0 || read.ClusterID != start.ClusterID {
		t.Errorf("cluster %x and %x, member %x", start.ClusterID, read.ClusterID, start.MemberID)
	}
}

func testReadAt(t *testing.T, s Subject) {
	was := write(t, s.Store, put("a", "1"), put("b", "1")).Revision
	write(t, s.Store, put("a", "2"), del("b"))
	at := func(rev int64) store.Txn {
		return store.Txn{If: []store.Cond{{Key: "a", Value: []byte("2")}},
			Then: []store.Op{{Get: &store.Get{Interval: store.Interval{Key: "a", End: "c"}, At: rev}}}}
	}
	if got := list(do(t, s.Another, at(was)).Got[0]); !cmp.Equal(got, []string{"a=1", "b=1"}) {
		t.Errorf("at revision %d: %v", was, got)
	}
	if got := list(do(t, s.Another, at(was+1)).Got[0]); !cmp.Equal(got, []string{"a=2"}) {
		t.Errorf("at revision %d: %v", was+1, got)
	}
	if _, err := s.Another.Txn(t.Context(), at(was+2)); err == nil || errors.Is(err, store.ErrCompacted) {
		t.Errorf("at a revision that is not there yet: %v", err)
	}
	s.Compact()
	if _, err := s.Another.Txn(t.Context(), at(was)); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("at revision %d, which is compacted: %v, want ErrCompacted", was, err)
	}
	if got := list(do(t, s.Another, at(was+1)).Got[0]); !cmp.Equal(got, []string{"a=2"}) {
		t.Errorf("at revision %d, up to which history is compacted: %v", was+1, got)
	}
}

func testConditions(t *testing.T, s Subject) {
	at := write(t, s.Store, put("a", "1"), put("empty", "")).Revision
	write(t, s.Store, put("other", "1"))
	for _, test := range []struct {
		name string
		cond store.Cond
		want bool
	}{
		{"absent, is", store.Cond{Key: "x"}, true},
		{"absent, is not", store.Cond{Key: "a"}, false},
		{"mod revision, is", store.Cond{Key: "a", ModRevision: at}, true},
		{"mod revision, is not", store.Cond{Key: "a", ModRevision: at + 1}, false},
		{"mod revision of an absent key", store.Cond{Key: "x", ModRevision: at}, false},
		{"value, is", store.Cond{Key: "a", Value: []byte("1")}, true},
		{"value, is not", store.Cond{Key: "a", Value: []byte("2")}, false},
		{"value of an absent key", store.Cond{Key: "x", Value: []byte("1")}, false},
		{"empty value, is", store.Cond{Key: "empty", Value: []byte{}}, true},
		{"empty value, is not", store.Cond{Key: "a", Value: []byte{}}, false},
		{"empty value of an absent key", store.Cond{Key: "x", Value: []byte{}}, false},
		{"both, are", store.Cond{Key: "a", ModRevision: at, Value: []byte("1")}, true},
		{"both, the revision is not", store.Cond{Key: "a", ModRevision: at + 1, Value: []byte("1")}, false},
		{"both, the value is not", store.Cond{Key: "a", ModRevision: at, Value: []byte("2")}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := do(t, s.Store, store.Txn{If: []store.Cond{test.cond}}).Succeeded; got != test.want {
				t.Errorf("%+v: %v, want %v", test.cond, got, test.want)
			}
			both := do(t, s.Store, store.Txn{If: []store.Cond{{Key: "a", ModRevision: at}, test.cond}})
			if both.Succeeded != test.want {
				t.Errorf("after one that holds, %+v: %v, want %v", test.cond, both.Succeeded, test.want)
			}
		})
	}
}

func testBranches(t *testing.T, s Subject) {
	txn := store.Txn{
		If:   []store.Cond{{Key: "a"}},
		Then: []store.Op{put("a", "then")},
		Else: []store.Op{get("a", ""), get("none", ""), put("b", "else")},
	}
	if first := do(t, s.Store, txn); !first.Succeeded || len(first.Got) != 0 {
		t.Errorf("first: %+v", first)
	}
	second := do(t, s.Another, txn)
	if second.Succeeded || len(second.Got) != 2 || len(second.Got[1]) != 0 {
		t.Fatalf("second: %+v", second)
	}
	if diff := cmp.Diff([]string{"a=then"}, list(second.Got[0])); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a=then", "b=else"}, list(write(t, s.Store, get("a", "z")).Got[0])); diff != "" {
		t.Error(diff)
	}
	rev := write(t, s.Store, get("a", "")).Revision
	if empty := do(t, s.Store, store.Txn{If: []store.Cond{{Key: "a"}},
		Then: []store.Op{put("a", "x")}}); empty.Succeeded || empty.Revision != rev {
		t.Errorf("an empty Else went from revision %d to %+v", rev, empty)
	}
}

func testRanges(t *testing.T, s Subject) {
	for _, key := range []string{"k/2", "k/1", "k/10", "k0", "k", "k/", "j", "k/1\x00"} {
		write(t, s.Store, put(key, key))
	}
	for _, test := range []struct {
		name string
		get  store.Get
		want []string
	}{
		{"one key", store.Get{Interval: store.Interval{Key: "k/1"}}, []string{"k/1"}},
		{"one key that is not there", store.Get{Interval: store.Interval{Key: "k/3"}}, nil},
		{"a prefix", store.Get{Interval: store.Interval{Key: "k/", End: "k0"}},
			[]string{"k/", "k/1", "k/1\x00", "k/10", "k/2"}},
		{"its end is exclusive", store.Get{Interval: store.Interval{Key: "k/1", End: "k/2"}},
			[]string{"k/1", "k/1\x00", "k/10"}},
		{"limit", store.Get{Interval: store.Interval{Key: "k/", End: "k0"}, Limit: 2}, []string{"k/", "k/1"}},
		{"a limit above", store.Get{Interval: store.Interval{Key: "k/", End: "k0"}, Limit: 9},
			[]string{"k/", "k/1", "k/1\x00", "k/10", "k/2"}},
		{"descending", store.Get{Interval: store.Interval{Key: "k/", End: "k0"}, Descending: true},
			[]string{"k/2", "k/10", "k/1\x00", "k/1", "k/"}},
		{"the last two", store.Get{Interval: store.Interval{Key: "k/", End: "k0"}, Descending: true, Limit: 2},
			[]string{"k/2", "k/10"}},
		{"empty", store.Get{Interval: store.Interval{Key: "k/", End: "k/"}}, nil},
		{"backwards", store.Get{Interval: store.Interval{Key: "k/2", End: "k/1"}}, nil},
		{"keys only", store.Get{Interval: store.Interval{Key: "k/1", End: "k/2"}, KeysOnly: true},
			[]string{"k/1", "k/1\x00", "k/10"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer := write(t, s.Store, store.Op{Get: &test.get})
			got := answer.Got
			if len(got) != 1 || len(got[0]) != len(test.want) {
				t.Fatalf("got %+v, want %q", got, test.want)
			}
			all := test.get
			all.Limit = 0
			if n := len(write(t, s.Store, store.Op{Get: &all}).Got[0]); len(answer.Counts) != 1 ||
				answer.Counts[0] != int64(n) {
				t.Errorf("counted %d, want %d", answer.Counts, n)
			}
			for i, kv := range got[0] {
				if kv.Key != test.want[i] || kv.ModRevision == 0 {
					t.Errorf("got %+v, want key %q", kv, test.want[i])
				}
				if value := string(kv.Value); !test.get.KeysOnly && value != kv.Key ||
					test.get.KeysOnly && value != "" {
					t.Errorf("key %q has value %q", kv.Key, value)
				}
			}
		})
	}
}

func testReadYourWrites(t *testing.T, s Subject) {
	write(t, s.Store, put("a", "0"))
	answer := write(t, s.Store, get("a", ""), put("a", "1"), get("a", ""), del("b"), put("c", "1"), get("a", "z"))
	want := [][]string{{"a=0"}, {"a=1"}, {"a=1", "c=1"}}
	for i, kvs := range answer.Got {
		if diff := cmp.Diff(want[i], list(kvs)); diff != "" {
			t.Errorf("get %d: %s", i, diff)
		}
	}
	if got := answer.Got[1][0].ModRevision; got != answer.Revision {
		t.Errorf("mod revision within the transaction %d, want %d", got, answer.Revision)
	}
}

func testDeletes(t *testing.T, s Subject) {
	rev := write(t, s.Store, put("a", "1"), put("ab", "1")).Revision
	if got := write(t, s.Store, del("x")).Revision; got != rev {
		t.Errorf("deleting what is not there went from revision %d to %d", rev, got)
	}
	if got := write(t, s.Store, del("a")).Revision; got != rev+1 {
		t.Errorf("a delete went from revision %d to %d, want one more", rev, got)
	}
	if diff := cmp.Diff([]string{"ab=1"}, list(write(t, s.Store, get("a", "b")).Got[0])); diff != "" {
		t.Error(diff)
	}
	if !do(t, s.Store, store.Txn{If: []store.Cond{{Key: "a"}}}).Succeeded {
		t.Error("a deleted key is not absent")
	}
	again := write(t, s.Store, put("a", "2"))
	if kv := write(t, s.Store, get("a", "")).Got[0][0]; kv.ModRevision != again.Revision {
		t.Errorf("put after a delete: %+v, want mod revision %d", kv, again.Revision)
	}
}

func testRefused(t *testing.T, s Subject) {
	rev := write(t, s.Store, put("a", "1")).Revision
	many := make([]store.Op, 129)
	for i := range many {
		many[i] = get(fmt.Sprintf("k%d", i), "")
	}
	for _, test := range []struct {
		name string
		txn  store.Txn
		kind allocator.Kind
	}{
		{"two puts of a key", store.Txn{Then: []store.Op{put("b", "1"), put("b", "2")}}, allocator.Internal},
		{"two puts of a key in the other branch", store.Txn{Then: []store.Op{put("a", "3")},
			Else: []store.Op{put("b", "1"), put("b", "2")}}, allocator.Internal},
		{"put and delete of a key", store.Txn{Then: []store.Op{put("b", "1"), del("b")}}, allocator.Internal},
		{"129 operations", store.Txn{Then: many}, allocator.Internal},
		{"an empty key", store.Txn{Then: []store.Op{put("", "1")}}, allocator.Internal},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := s.Store.Txn(t.Context(), test.txn)
			if err == nil || allocator.KindOf(err) != test.kind {
				t.Errorf("error %v, want a %v", err, test.kind)
			}
		})
	}
	after := write(t, s.Store, get("a", "z"))
	if diff := cmp.Diff([]string{"a=1"}, list(after.Got[0])); diff != "" || after.Revision != rev {
		t.Errorf("a refused transaction left something, at revision %d after %d: %s", after.Revision, rev, diff)
	}
}

func testContext(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, txn := s.Store.Txn(ctx, store.Txn{Then: []store.Op{put("a", "1")}})
	_, status := s.Store.Status(ctx)
	for name, err := range map[string]error{"Txn": txn, "Status": status} {
		if err == nil || allocator.KindOf(err) != allocator.Unavailable {
			t.Errorf("%s: error %v, want Unavailable", name, err)
		}
	}
	for change := range s.Store.Watch(ctx, []store.Interval{{Key: "a"}}, 1) {
		if change.Err == nil {
			t.Errorf("Watch: %+v", change)
		}
	}
	write(t, s.Store, put("a", "2")) // others go on
}

func testClosed(t *testing.T, s Subject) {
	watch := s.Store.Watch(t.Context(), []store.Interval{{Key: "a"}}, write(t, s.Store, get("a", "")).Revision+1)
	write(t, s.Another, put("a", "1"))
	if change := <-watch; change.Err != nil {
		t.Fatalf("watch: %v", change.Err)
	}
	for range 2 {
		if err := s.Store.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	_, txn := s.Store.Txn(t.Context(), store.Txn{})
	_, status := s.Store.Status(t.Context())
	errs := map[string]error{
		"Txn": txn, "Status": status,
		"a watch that was open": last(watch),
		"a new watch":           last(s.Store.Watch(t.Context(), []store.Interval{{Key: "a"}}, 1)),
	}
	for name, err := range errs {
		if err == nil || allocator.KindOf(err) != allocator.Unavailable {
			t.Errorf("%s: error %v, want Unavailable", name, err)
		}
	}
	write(t, s.Another, put("a", "2"))
}

// last reads a watch to its end and returns its error.
func last(watch <-chan store.Change) error {
	err := errors.New("the channel was closed without an error")
	for change := range watch {
		err = change.Err
	}
	return err
}

// A member's raft index is above that of every status that was taken before a
// write which it has shown.
func testStatus(t *testing.T, s Subject) {
	status := func(s store.Store) store.Status {
		t.Helper()
		status, err := s.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	wrote := write(t, s.Store, put("a", "1"))
	first := status(s.Store)
	if first.Sender != wrote.Sender || first.Connection == 0 || first.Version == "" || first.RaftTerm == 0 ||
		first.Revision < wrote.Revision {
		t.Errorf("status %+v after the answer %+v", first, wrote)
	}
	for range 3 {
		before := status(s.Store)
		write(t, s.Another, put("a", "2"))
		write(t, s.Store, get("a", ""))
		if after := status(s.Store); after.RaftIndex <= before.RaftIndex {
			t.Errorf("raft index %d, and after a write %d", before.RaftIndex, after.RaftIndex)
		}
	}
}
