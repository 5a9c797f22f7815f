package client_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/room"

	"github.com/march-id/march/internal/testcluster"
)

// checkMany checks that an answer has what was asked for, and notes its IDs as seen, which
// come once.
func checkMany(t *testing.T, seen map[string]bool, wanted []client.TagCount, got []client.TagIDs, err error) {
	t.Helper()
	if err != nil || len(got) != len(wanted) {
		t.Fatalf("got %v, %v", got, err)
	}
	for i, of := range got {
		if of.Tag != wanted[i].Tag || int64(len(of.IDs)) != wanted[i].Count ||
			of.Texts != nil && len(of.Texts) != len(of.IDs) {
			t.Fatalf("got %v, want %v", of, wanted[i])
		}
		for _, id := range of.IDs {
			key := fmt.Sprint(of.Tag, " ", id)
			if seen[key] {
				t.Errorf("%s comes twice", key)
			}
			seen[key] = true
		}
	}
}

// The client issues the IDs of several tags from its leases and its window.
func TestNextMany(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		c.texts("order", "prefix(ORD-) | decimal(6) | luhn", format.Key{})
		c.Tag(func(s *record.TagSettings) {
			tag := record.NewTimeTag(cosid)
			s.Time, s.Format = &tag, "friendly(cosid, UTC)"
		}, "test", "event")
		a := c.room("a", "a1")
		ids := newClient(t, client.Options{Addresses: []string{a.address}})
		seen := make(map[string]bool)
		wanted := []client.TagCount{{Tag: "order", Count: 1}, {Tag: "event", Count: 2}, {Tag: "item", Count: 70}}
		for range 100 {
			got, err := ids.NextMany(t.Context(), wanted...)
			checkMany(t, seen, wanted, got, err)
			if !strings.HasPrefix(got[0].Texts[0], "ORD-") || got[2].Texts != nil {
				t.Fatalf("got %v", got)
			}
			for i, text := range append(got[0].Texts, got[1].Texts...) {
				of := got[min(i, 1)]
				if read, err := ids.ParseText(t.Context(), of.Tag, text); err != nil || read != of.IDs[max(i-1, 0)] {
					t.Errorf("%s is %d, %v; want one of %v", text, read, err, of)
				}
			}
		}
		// It needs no room while what it holds lasts.
		for _, name := range []string{"item", "order"} {
			tag := tagOf(t, ids, name)
			testcluster.Await(t, "a reserve", func() bool { return tag.Status().Held >= 10 })
		}
		a.end()
		few := []client.TagCount{{Tag: "item", Count: 1}, {Tag: "order", Count: 2}}
		got, err := ids.NextMany(t.Context(), few...)
		checkMany(t, seen, few, got, err)
		ids.Close()
		if _, err := ids.NextMany(t.Context(), few...); err != error(client.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// A call that is known to fail takes no ID of any tag; a later failure is told.
func TestNextManyFails(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		c.texts("digit", "decimal(1)", format.Key{})
		c.texts("hidden", "opaque(orders-1, 10^6) | decimal(6)", opaqueKey(t, 1))
		c.timed(timeid.Layout{TimeBits: 41, WorkerBits: 20, SequenceBits: 2, Unit: time.Millisecond,
			Epoch: timeid.EpochCosId}, timeid.Wait, "slow")
		a := c.Room("a", "a1", nil)
		ids := newClient(t, client.Options{Addresses: []string{a.Address}, OpaqueKeys: []format.Key{opaqueKey(t, 2)}})
		c.Tag(nil, "test", "order")
		before, err := ids.Next(t.Context(), "order")
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			tag  string
			n    int64
			kind allocator.Kind
			says string
		}{
			{"Bad", 1, allocator.Invalid, `tags[1]: tag: "Bad" begins with "B"`},
			{"order", 1, allocator.Invalid, "tags[1] (order): tag: named in tags[0], too; allowed: each tag once"},
			{"item", 0, allocator.Invalid, "tags[1] (item): count: 0; allowed: 1 to 10000"},
			{"item", api.MaxMany, allocator.Invalid, "tags: the counts are 10001 together; allowed: 1 to 10000"},
			{"nosuch", 1, allocator.NotFound, "tags[1] (nosuch): "},
			{"hidden", 1, allocator.Refused, "tags[1] (hidden): tag hidden: the key orders-1 here is another " +
				"than the tag's"},
			{"slow", 4001, allocator.Invalid, "tags[1] (slow): count: 4001; allowed: 1 to 4000, " +
				"what one worker has in a second"},
			{"digit", 10, allocator.Exhausted, "tags[1] (digit): "},
		} {
			got, err := ids.NextMany(t.Context(), client.TagCount{Tag: "order", Count: 1},
				client.TagCount{Tag: tt.tag, Count: tt.n})
			if got != nil || allocator.KindOf(err) != tt.kind || !strings.HasPrefix(err.Error(), tt.says) ||
				strings.Contains(err.Error(), "skipped") {
				t.Errorf("%s: got %v, %v; want %v, %s", tt.tag, got, err, tt.kind, tt.says)
			}
		}
		if id, err := ids.Next(t.Context(), "order"); err != nil || id != before+1 {
			t.Errorf("%d after %d, %v: a call that was refused took IDs", id, before, err)
		}
	})
}

// Without the key of one tag a room issues the IDs of all of them, in one call.
func TestNextManyOfARoom(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		key := opaqueKey(t, 1)
		const description = "prefix(A) | opaque(orders-1, 10^6) | decimal(6)"
		c.texts("hidden", description, key)
		c.Tag(nil, "test", "item")
		a := c.Room("a", "a1", func(cfg *room.Config) { cfg.OpaqueKeys = []format.Key{key} })
		f, err := format.Parse(description, key)
		if err != nil {
			t.Fatal(err)
		}
		ids := newClient(t, client.Options{Addresses: []string{a.Address}})
		seen := make(map[string]bool)
		wanted := []client.TagCount{{Tag: "item", Count: 60}, {Tag: "hidden", Count: 3}}
		for range 5 {
			got, err := ids.NextMany(t.Context(), wanted...)
			checkMany(t, seen, wanted, got, err)
			for k, id := range got[1].IDs {
				if want, err := f.Append(nil, format.Value{ID: id}); err != nil || got[1].Texts[k] != string(want) {
					t.Errorf("got %s for %d, want %s, %v", got[1].Texts[k], id, want, err)
				}
			}
		}
		_, err = ids.NextMany(t.Context(), client.TagCount{Tag: "hidden", Count: 1},
			client.TagCount{Tag: "nosuch", Count: 1})
		if allocator.KindOf(err) != allocator.NotFound || !strings.Contains(err.Error(), "tags[1] (nosuch): ") {
			t.Errorf("got %v", err)
		}
	})
}

// An answer that is not what was asked for is refused.
func TestSenselessMany(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		request := &marchv1.NextManyRequest{Tags: []*marchv1.TagCount{{Tag: "order", Count: 1}, {Tag: "item",
			Count: 2}}}
		of := func(tag string, n int) *marchv1.TagIDs {
			return &marchv1.TagIDs{Tag: tag, Ids: make([]*marchv1.NextResponse, n)}
		}
		for says, answer := range map[string]*marchv1.NextManyResponse{
			"":                                {Tags: []*marchv1.TagIDs{of("order", 1), of("item", 2)}},
			"IDs of 0 tags; 2 were asked for": {},
			"tags[1]: 1 IDs of item; asked for: 2 of item":   {Tags: []*marchv1.TagIDs{of("order", 1), of("item", 1)}},
			"tags[0]: 1 IDs of other; asked for: 1 of order": {Tags: []*marchv1.TagIDs{of("other", 1), of("item", 2)}},
		} {
			if _, err := client.IDsOf(request, answer); (err == nil) != (says == "") ||
				err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, want %s", err, says)
			}
		}
	})
}
