package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator/ledger/store"
)

func testWatch(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	write(t, s.Store, put("a", "too early"))
	from := write(t, s.Store, put("a", "1"), put("b/1", "1"), put("z", "1")).Revision // in the past
	watch := s.Store.Watch(ctx, []store.Interval{{Key: "a"}, {Key: "b/", End: "b0"}}, from)
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
			seen[interval] = append(seen[interval], fmt.Sprintf("%s=%s@%d", kv.Key, kv.Value,
				max(kv.ModRevision-from, -1)))
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
	watch = s.Store.Watch(t.Context(), []store.Interval{{Key: "n"}}, last+1)
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
	if err := s.Store.Compact(t.Context(), 2); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("compacted again, further back: %v, want ErrCompacted", err)
	}
	at := write(t, s.Store, put("a", "new")).Revision
	change := <-s.Store.Watch(t.Context(), []store.Interval{{Key: "a"}}, at-5)
	if !errors.Is(change.Err, store.ErrCompacted) {
		t.Errorf("a watch from before the compaction: %+v, want ErrCompacted", change)
	}
	change = <-s.Store.Watch(t.Context(), []store.Interval{{Key: "a"}}, at)
	if change.Err != nil || len(change.KVs) != 1 || string(change.KVs[0].Value) != "new" {
		t.Errorf("a watch from after the compaction: %+v", change)
	}
	if err := s.Store.Compact(t.Context(), at+1_000_000); err == nil {
		t.Error("compacted at a revision that is not there yet")
	}
	if err := s.Store.Compact(t.Context(), at); err != nil {
		t.Error(err)
	}
	change = <-s.Store.Watch(t.Context(), []store.Interval{{Key: "a"}}, at-1)
	if gone, is := errors.AsType[*store.CompactedError](change.Err); !is || gone.Revision != at ||
		!errors.Is(gone, store.ErrCompacted) {
		t.Errorf("a watch from before the second compaction: %+v, want a CompactedError up to %d", change, at)
	}
	if status, err := s.Store.Status(t.Context()); err != nil || status.Size <= 0 || status.Quota <= status.Size {
		t.Errorf("status: %+v, %v", status, err)
	}
}
