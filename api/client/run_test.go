package client_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"

	"github.com/march-id/march/internal/testcluster"
)

// Consecutive IDs lie in one block of room a, [0, 50) mod 100, and no ID comes twice, from the
// room or from what the client holds.
func TestNextRun(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		ids := newClient(t, client.Options{Addresses: []string{a.address}})
		seen := make(map[int64]bool)
		take := func(n int64) {
			t.Helper()
			run, err := ids.NextRun(t.Context(), "order", n)
			if err != nil || run.Count != n || run.Stride > 1 || run.First/100 != (run.First+n-1)/100 ||
				(run.First+n-1)%100 >= 50 {
				t.Fatalf("%d in a row: %+v, %v", n, run, err)
			}
			for id := run.First; id < run.First+n; id++ {
				if seen[id] {
					t.Fatalf("%d comes twice", id)
				}
				seen[id] = true
			}
		}
		for _, n := range []int64{1, 30, 50, 49, 7} { // the client holds none: the room has them
			take(n)
		}
		if held := tagOf(t, ids, "order").Status().Held; held < 100 {
			t.Fatalf("the client holds %d IDs", held)
		}
		for _, n := range []int64{20, 50, 3} {
			take(n)
		}
		a.end()
		take(5) // of what the client holds
		ids.Close()
		if _, err := ids.NextRun(t.Context(), "order", 1); err != error(client.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestNextRunFails(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.Room("a", "a1", nil)
		c.Tag(nil, "test", "order")
		c.Tag(func(s *record.TagSettings) {
			tag := record.NewTimeTag(cosid)
			s.Time = &tag
		}, "test", "event")
		ids := newClient(t, client.Options{Addresses: []string{a.Address}})
		for _, warm := range []bool{false, true} {
			for _, tt := range []struct {
				tag  string
				n    int64
				kind allocator.Kind
				says string
			}{
				{"order", 0, allocator.Invalid, "count: 0; allowed: 1 to 100000"},
				{"order", api.MaxBatch + 1, allocator.Invalid, "count: 100001; allowed: 1 to 100000"},
				{"order", 51, allocator.Invalid, "count: 51; allowed: 1 to 50"},
				{"event", 2, allocator.Refused, "event has time-ordered IDs"},
				{"nosuch", 2, allocator.NotFound, "nosuch"},
				{"No", 2, allocator.Invalid, "tag: "},
			} {
				run, err := ids.NextRun(t.Context(), tt.tag, tt.n)
				if run != (allocator.Run{}) || allocator.KindOf(err) != tt.kind ||
					!strings.Contains(fmt.Sprint(err), tt.says) {
					t.Errorf("%s %d: %+v, %v; want %v, %s", tt.tag, tt.n, run, err, tt.kind, tt.says)
				}
			}
			if !warm {
				tagOf(t, ids, "order")
				tagOf(t, ids, "event")
			}
		}
		one, two := []*marchv1.Run{{First: 1, Count: 3}}, []*marchv1.Run{{First: 1, Count: 2}, {First: 9, Count: 1}}
		if run, err := client.RunOf(3, &marchv1.NextBatchResponse{Runs: one}); err != nil ||
			run.First != 1 || run.Count != 3 {
			t.Errorf("%+v, %v", run, err)
		}
		_, err := client.RunOf(3, &marchv1.NextBatchResponse{Runs: two})
		ledgertest.WantKind(t, err, allocator.Refused, "its release does not know contiguous")
		for _, bad := range [][]*marchv1.Run{nil, {{First: 1, Count: 2}}, {{First: 1, Count: 4}}} {
			_, err := client.RunOf(3, &marchv1.NextBatchResponse{Runs: bad})
			ledgertest.WantKind(t, err, allocator.Internal, "its answer makes no sense")
		}
	})
}
