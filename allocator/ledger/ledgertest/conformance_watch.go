package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

func testLeases(t *testing.T, s Subject) {
	short, err := s.Store.Grant(t.Context(), time.Second) // the least that etcd has
	if err != nil {
		t.Fatal(err)
	}
	long, err := s.Store.Grant(t.Context(), time.Minute)
	if err != nil || long == short || long == 0 || short == 0 {
		t.Fatalf("two leases: %d, %d, %v", short, long, err)
	}
	under := func(key string, lease int64) ledger.Op {
		return ledger.Op{Put: &ledger.Put{Key: key, Value: []byte("1"), Lease: lease}}
	}
	rev := write(t, s.Store, under("a", short), under("b", short), under("c", long), under("d", short), put("e", "1")).Revision
	write(t, s.Another, put("d", "2")) // no longer under the lease
	if err := s.Another.KeepAlive(t.Context(), short); err != nil {
		t.Errorf("keep alive: %v", err)
	}
	watch := s.Store.Watch(t.Context(), []ledger.Interval{{Key: "a", End: "f"}}, rev+2)
	var gone []ledger.KV
	for change := range watch {
		if change.Err != nil {
			t.Fatalf("watch: %v", change.Err)
		}
		if gone = append(gone, change.KVs...); len(gone) >= 2 {
			break
		}
	}
	for i, key := range []string{"a", "b"} {
		if gone[i].Key != key || gone[i].ModRevision != 0 {
			t.Errorf("the lease took %+v, want %s deleted", gone[i], key)
		}
	}
	if diff := cmp.Diff([]string{"c=1", "d=2", "e=1"}, list(write(t, s.Store, get("a", "z")).Got[0])); diff != "" {
		t.Error(diff)
	}
	if err := s.Store.KeepAlive(t.Context(), short); err == nil || allocator.KindOf(err) != allocator.NotFound {
		t.Errorf("keep alive of what has expired: %v, want NotFound", err)
	}
	if err := s.Store.KeepAlive(t.Context(), long); err != nil {
		t.Errorf("keep alive: %v", err)
	}
}

func testWatch(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	write(t, s.Store, put("a", "too early"))
	from := write(t, s.Store, put("a", "1"), put("b/1", "1"), put("z", "1")).Revision // in the past
	watch := s.Store.Watch(ctx, []ledger.Interval{{Key: "a"}, {Key: "b/", End: "b0"}}, from)
	write(t, s.Another, put("x", "no business of ours"))
	write(t, s.Another, del("b/1"), put("b/2", "1"))
	last := write(t, s.Store, put("a", "2"), put("b/9", "end")).Revision
	seen := map[string][]string{}
	for done := 0; done < 2; {
		change, ok := <-watch
		if !ok || change.Err != nil {
			t.Fatalf("watch: %v", change.Err)
		}
		if len(change.KVs) == 0 {
			t.Error("a change without keys")
		}
		for _, kv := range change.KVs {
			interval := kv.Key[:1]
			seen[interval] = append(seen[interval], fmt.Sprintf("%s=%s@%d", kv.Key, kv.Value, max(kv.ModRevision-from, -1)))
			if kv.ModRevision == last {
				done++
			}
		}
	}
	end := last - from
	want := map[string][]string{
		"a": {"a=1@0", fmt.Sprintf("a=2@%d", end)},
		"b": {"b/1=1@0", "b/1=@-1", fmt.Sprintf("b/2=1@%d", end-1), fmt.Sprintf("b/9=end@%d", end)},
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
	// Each revision from the next on, however fast they come.
	cancel()
	for change := range watch {
		if change.Err == nil {
			t.Errorf("after its context ended: %+v", change)
		}
	}
	watch = s.Store.Watch(t.Context(), []ledger.Interval{{Key: "n"}}, last+1)
	for i := range 100 {
		write(t, s.Store, put("n", fmt.Sprint(i)))
	}
	for i := 0; i < 100; {
		change := <-watch
		if change.Err != nil {
			t.Fatal(change.Err)
		}
		for _, kv := range change.KVs {
			if string(kv.Value) != fmt.Sprint(i) {
				t.Fatalf("change %d is %s", i, kv.Value)
			}
			i++
		}
	}
}

func testCompacted(t *testing.T, s Subject) {
	for i := range 10 {
		write(t, s.Store, put("a", fmt.Sprint(i)))
	}
	s.Compact()
	at := write(t, s.Store, put("a", "new")).Revision
	change := <-s.Store.Watch(t.Context(), []ledger.Interval{{Key: "a"}}, at-5)
	if !errors.Is(change.Err, ledger.ErrCompacted) {
		t.Errorf("a watch from before the compaction: %+v, want ErrCompacted", change)
	}
	change = <-s.Store.Watch(t.Context(), []ledger.Interval{{Key: "a"}}, at)
	if change.Err != nil || len(change.KVs) != 1 || string(change.KVs[0].Value) != "new" {
		t.Errorf("a watch from after the compaction: %+v", change)
	}
}
