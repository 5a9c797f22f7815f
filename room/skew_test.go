package room_test

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestSkewBoundsIDs runs a fast room and a slow one, which is idle at times. No ID of the slow room lies further below
// the furthest mark of some seconds before than max_skew, though the tag's least step is far larger.
func TestSkewBoundsIDs(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const most = 2000
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) { s.MaxSkew = most }, "order")
		c.tag(nil, "free")
		slow, fast := c.start("a", "a1", nil), c.start("b", "b1", nil)
		slow.mustNext("order")
		slow.mustNext("free")
		if held := slow.chain("order").GetHeld(); held > most/4 {
			t.Errorf("it holds %d IDs, more than its room's share of half of max_skew", held)
		}
		furthest := func(tag allocator.Tag) (next int64) {
			answer, err := c.Open(t).Txn(bg, store.Txn{Then: []store.Op{
				store.OpGet("/march/default/marks/a/" + string(tag)), store.OpGet("/march/default/marks/b/" + string(tag))}})
			if err != nil {
				t.Fatal(err)
			}
			for k := range answer.Got {
				if kv, ok := answer.One(k); ok {
					mark, err := record.DecodeMark(kv)
					if err != nil {
						t.Fatal(err)
					}
					next = max(next, mark.Next)
				}
			}
			return next
		}
		type moment struct {
			at   time.Time
			next int64
		}
		var past []moment
		last, checked := int64(0), 0
		for second := range 90 {
			if _, err := fast.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: 700}); err != nil {
				t.Fatal(err)
			}
			past = append(past, moment{time.Now(), furthest("order")})
			time.Sleep(time.Second)
			if second%30 > 12 {
				continue // for 17 s nobody asks the slow room
			}
			id := slow.mustNext("order")
			for _, m := range past {
				if time.Since(m.at) > 5200*time.Millisecond && id < m.next-most {
					t.Fatalf("after %d s: ID %d is %d below the mark of %v ago", second, id, m.next-id, time.Since(m.at))
				} else if time.Since(m.at) > 5200*time.Millisecond {
					checked++
				}
			}
			if id <= last {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
		}
		if checked < 100 {
			t.Errorf("%d comparisons", checked)
		}
		if dropped := slow.chain("order").GetDropped(); dropped == 0 {
			t.Error("the slow room dropped nothing")
		}
		if free := slow.chain("free"); free.GetDropped() > 0 || free.GetHeld() < 900 {
			t.Errorf("a tag without max_skew: %v", free)
		}
	})
}
