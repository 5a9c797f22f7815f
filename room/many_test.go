package room_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// wanted returns a request: names and counts in turn.
func wanted(pairs ...any) *marchv1.NextManyRequest {
	r := &marchv1.NextManyRequest{}
	for k := 0; k < len(pairs); k += 2 {
		r.Tags = append(r.Tags, &marchv1.TagCount{Tag: pairs[k].(string), Count: int64(pairs[k+1].(int))})
	}
	return r
}

// One call answers with the IDs of tags of all kinds, each with its text, and no ID comes
// twice.
func TestNextMany(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(with("prefix(ORD-) | decimal(6) | luhn", ""), "order")
		c.tag(nil, "item", "small")
		c.tag(func(s *record.TagSettings) { timed(cosid)(s); with("friendly(cosid, UTC)", "")(s) }, "event")
		a := c.start("a", "a1", nil)
		answer, err := a.NextMany(bg, wanted("order", 1, "event", 3, "item", 120))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, of := range answer.GetTags() {
			got = append(got, fmt.Sprintf("%s %d", of.GetTag(), len(of.GetIds())))
		}
		if want := []string{"order 1", "event 3", "item 120"}; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if one := answer.GetTags()[0].GetIds()[0]; one.GetId() != 1 || one.GetText() != "ORD-0000018" {
			t.Errorf("got %v", one)
		}
		for _, one := range answer.GetTags()[1].GetIds() {
			text, err := format.Parse("friendly(cosid, UTC)")
			if err != nil {
				t.Fatal(err)
			}
			if want, err := text.Append(nil, format.Value{ID: one.GetId()}); err != nil ||
				one.GetText() != string(want) {
				t.Errorf("got %v, want %s, %v", one, want, err)
			}
		}
		last := int64(0)
		for _, one := range answer.GetTags()[2].GetIds() {
			if one.GetText() != "" || one.GetId() <= last || one.GetId()%100 >= 50 {
				t.Errorf("after %d: got %v", last, one)
			}
			last = one.GetId()
		}

		var seen struct {
			sync.Mutex
			ids map[string]bool
		}
		seen.ids = make(map[string]bool)
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 50 {
					answer, err := a.NextMany(bg, wanted("item", 7, "event", 2, "order", 1))
					if err != nil {
						t.Error(err)
						return
					}
					seen.Lock()
					for _, of := range answer.GetTags() {
						for _, one := range of.GetIds() {
							key := fmt.Sprint(of.GetTag(), " ", one.GetId())
							if seen.ids[key] {
								t.Errorf("%s comes twice", key)
							}
							seen.ids[key] = true
						}
					}
					seen.Unlock()
				}
			})
		}
		callers.Wait()
		if n := len(seen.ids); n != 8*50*10 {
			t.Errorf("%d IDs, want %d", n, 8*50*10)
		}
		if chain := a.chain("item"); chain.GetIssued() != 120+8*50*7 {
			t.Errorf("%d IDs of item are issued, want %d", chain.GetIssued(), 120+8*50*7)
		}
		if got := a.metrics()[`march_chain_requests_total{room="a",tag="item"}`]; got != "401" {
			t.Errorf("401 requests for item, the metrics say %q", got)
		}
		for _, tt := range []struct{ request, want string }{
			{`POST /v1/tags:next {"tags":[{"tag":"small","count":2},{"tag":"order","count":"1"}]}`,
				`200 {"tags":[{"tag":"small","ids":[{"id":"1","text":""},{"id":"2","text":""}]},{"tag":"order","ids":[{"id":"`},
			{`POST /v1/tags:next {"tags":[{"tag":"small"}]}`, `tags[0] (small): count: 0; allowed: 1 to 10000`},
			{`POST /v1/tags:next`, `tags: 0; allowed: 1 to 100`},
			{`POST /v1/tags:next {"tags":[{"tag":"small","n":1}]}`, `body: `},
			{`GET /v1/tags:next`, `405 `},
		} {
			if got := a.request(tt.request); !strings.Contains(got, tt.want) {
				t.Errorf("%s: got %s, want %s", tt.request, got, tt.want)
			}
		}
	})
}

// A call that is known to fail fails before an ID of any tag is taken, and the error names
// the tag.
func TestNextManyTakesNothing(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		key := opaqueKey(t, "orders-1", 1)
		c.tag(nil, "order")
		c.tag(with("opaque(orders-1, 10^6) | decimal(6)", key.CheckValue()), "hidden")
		c.tag(timed(timeid.Layout{TimeBits: 41, WorkerBits: 20, SequenceBits: 2, Unit: time.Millisecond,
			Epoch: timeid.EpochCosId}), "slow")
		c.tag(func(s *record.TagSettings) { s.Limit = 1000 }, "short")
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		for _, tt := range []struct {
			request *marchv1.NextManyRequest
			want    want
		}{
			{wanted("order", 1, "order", 1), want{codes.InvalidArgument, "invalid",
				[]string{"tags[1] (order): tag: named in tags[0]"}}},
			{wanted("order", 1, "item", api.MaxMany), want{codes.InvalidArgument, "invalid",
				[]string{"the counts are 10001 together"}}},
			{wanted("order", 1, "nosuch", 1), want{codes.NotFound, "not_found",
				[]string{"tags[1] (nosuch): tag nosuch does not exist"}}},
			{wanted("order", 1, "hidden", 1), want{codes.FailedPrecondition, "refused",
				[]string{"tags[1] (hidden): tag hidden: ", "need the key orders-1"}}},
			{wanted("order", 1, "slow", 4001), want{codes.InvalidArgument, "invalid",
				[]string{"tags[1] (slow): count: 4001; allowed: 1 to 4000, what one worker has in a second"}}},
			{wanted("order", 1, "short", 501), want{codes.ResourceExhausted, "exhausted",
				[]string{"tags[1] (short): ", "limit"}}},
		} {
			_, err := a.NextMany(bg, tt.request)
			if bad := tt.want.check(err); bad != "" {
				t.Errorf("%v: %s", tt.request, bad)
			}
			if err != nil && strings.Contains(err.Error(), "skipped") {
				t.Errorf("%v: %v; nothing was taken", tt.request, err)
			}
		}
		if chain := a.chain("order"); chain.GetIssued() != 1 {
			t.Errorf("%d IDs of order are issued, want 1", chain.GetIssued())
		}
		if got := a.metrics()[`march_chain_requests_total{room="a",tag="short"}`]; got != "1" {
			t.Errorf("a failed request for short, the metrics say %q", got)
		}
	})
}

// A tag that fails when IDs of others are taken fails the call. The error names the tag and
// how many IDs are skipped, which no later call returns.
func TestNextManySkips(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "item")
		c.tag(strict, "strict")
		c.tag(timed(cosid), "event")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Hold = time.Second })
		for _, tag := range []string{"item", "strict", "event"} {
			a.mustNext(tag)
		}
		before := a.mustNext("order")
		a.store.cut.Store(true)
		for _, tag := range []string{"strict", "event"} {
			a.await("the end of "+tag, func() bool { _, err := a.next(tag); return err != nil })
		}
		_, err := a.NextMany(bg, wanted("order", 3, "item", 2, "event", 1))
		says := []string{"tags[2] (event): ", "; skipped, and never issued: 5 IDs that the call had taken of " +
			"the tags before"}
		if bad := (want{codes.Unavailable, "unavailable", says}).check(err); bad != "" {
			t.Error(bad)
		}
		if after := a.mustNext("order"); after != before+4 {
			t.Errorf("the call took 3 IDs after %d, and the next is %d", before, after)
		}
		// A strict tag is known to fail before anything is taken.
		for _, request := range []*marchv1.NextManyRequest{wanted("event", 1, "order", 3),
			wanted("order", 3, "strict", 1)} {
			_, err = a.NextMany(bg, request)
			if bad := (want{code: codes.Unavailable, reason: "unavailable"}).check(err); bad != "" ||
				strings.Contains(err.Error(), "skipped") {
				t.Errorf("%v: nothing was taken: %v, %s", request, err, bad)
			}
		}
		if again := a.mustNext("order"); again != before+5 {
			t.Errorf("got %d, want %d", again, before+5)
		}
	})
}
