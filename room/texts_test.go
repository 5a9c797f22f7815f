package room_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// with makes a tag one with a format, and the check value of its key.
func with(description string, check string) func(*record.TagSettings) {
	return func(s *record.TagSettings) {
		f, err := format.Parse(description)
		if err != nil {
			panic(err)
		}
		s.Format, s.KeyCheck = description, check
		if s.Time == nil {
			s.Limit = record.FormatLimit(f)
		}
	}
}

// opaqueKey returns a key whose secret is a byte again and again.
func opaqueKey(t *testing.T, name string, b byte) format.Key {
	t.Helper()
	k, err := format.NewKey(name, bytes.Repeat([]byte{b}, format.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Each answer with an ID has its text, and the room reads it back.
func TestTexts(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(with("prefix(ORD-) | decimal(6) | luhn", ""), "order")
		c.tag(with("prefix(PAY-) | decimal(6) | luhn", ""), "payment")
		c.tag(with(`prefix("\\\"<") | decimal(2)`, ""), "odd")
		c.tag(func(s *record.TagSettings) { timed(cosid)(s); with("friendly(cosid, UTC)", "")(s) }, "event")
		c.tag(nil, "plain")
		a := c.start("a", "a1", nil)
		written := func(tag string, id int64) string {
			stored, err := c.Admin.Tag(bg, allocator.Tag(tag))
			if err != nil {
				t.Fatal(err)
			}
			f, err := format.Parse(stored.Format)
			if err != nil {
				t.Fatal(err)
			}
			text, err := f.Append(nil, format.Value{ID: id})
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		for _, tag := range []string{"order", "event"} {
			stream, err := a.Stream(bg)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				one, err := a.Next(bg, &marchv1.NextRequest{Tag: tag})
				if err != nil || one.GetText() != written(tag, one.GetId()) {
					t.Fatalf("%s: %v, %v", tag, one, err)
				}
				if read, err := a.ParseText(bg, &marchv1.ParseTextRequest{Tag: tag, Text: one.GetText()}); err != nil ||
					read.GetId() != one.GetId() {
					t.Errorf("%s: %s is read as %v, %v", tag, one.GetText(), read, err)
				}
				if err := stream.Send(&marchv1.NextRequest{Tag: tag}); err != nil {
					t.Fatal(err)
				}
				if one, err := stream.Recv(); err != nil || one.GetText() != written(tag, one.GetId()) {
					t.Fatalf("%s: streamed %v, %v", tag, one, err)
				}
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			many, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: tag, Count: 60, Texts: true})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, run := range many.GetRuns() {
				for i := range run.GetCount() {
					want = append(want, written(tag, run.GetFirst()+i*max(run.GetStride(), 1)))
				}
			}
			if !slices.Equal(many.GetTexts(), want) || len(want) != 60 || many.GetFormat() == "" {
				t.Errorf("%s: got %v, want %v", tag, many, want)
			}
			few, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: tag, Count: 2})
			if err != nil || few.GetTexts() != nil || few.GetFormat() != many.GetFormat() {
				t.Errorf("%s: got %v, %v", tag, few, err)
			}
			known, err := a.Decode(bg, &marchv1.DecodeRequest{Tag: tag, Text: want[0]})
			if err != nil || known.GetId() != many.GetRuns()[0].GetFirst() ||
				known.GetOrigin().GetRoom()+known.GetTime().GetRoom() != "a" {
				t.Errorf("%s: %s is decoded as %v, %v", tag, want[0], known, err)
			}
		}
		if plain, err := a.Next(bg, &marchv1.NextRequest{Tag: "plain"}); err != nil || plain.GetText() != "" {
			t.Errorf("got %v, %v", plain, err)
		}
		lease, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: "order", Count: 1})
		if err != nil || lease.GetFormat() != "prefix(ORD-) | decimal(6) | luhn" {
			t.Errorf("got %v, %v", lease, err)
		}
		for _, tt := range []struct{ request, want string }{
			{"POST /v1/tags/payment/next", `200 {"id":"1","text":"PAY-0000018"}`},
			{"POST /v1/tags/payment/next?count=2&texts=true",
				`200 {"runs":[{"first":"2","count":"2"}],"format":"prefix(PAY-) | decimal(6) | luhn","texts":["PAY-0000026","PAY-0000034"]}`},
			{"POST /v1/tags/payment/next?count=1",
				`200 {"runs":[{"first":"4","count":"1"}],"format":"prefix(PAY-) | decimal(6) | luhn"}`},
			{"POST /v1/tags/payment/next?count=1&texts=yes", `texts: \"yes\"; allowed: true or false`},
			{"POST /v1/tags/odd/next", `200 {"id":"1","text":"\\\"<01"}`},
			{"POST /v1/tags/plain/next?count=1&texts=true", `"count":"1"}]}`},
			{"GET /v1/tags/payment:parse?text=PAY-0000018", `200 {"id":"1"}`},
			{"GET /v1/tags/payment:decode?text=PAY-0000018", `"id":"1",`},
			{"GET /v1/tags/payment:parse?text=ORD-0000018",
				`"reason":"invalid","message":"tag payment: text: \"ORD-0000018\" at column 1: another prefix; allowed: \"PAY-\""`},
			{"GET /v1/tags/payment:parse?text=PAY-0000019", `the check character (luhn) does not match`},
			{"GET /v1/tags/payment:decode?text=ORD-0000018", `another prefix`},
			{"GET /v1/tags/payment:decode?text=PAY-0000018&id=1", `allowed: one of them`},
			{"GET /v1/tags/plain:parse?text=1", `"reason":"refused","message":"tag plain: the tag has no format, `},
			{"GET /v1/tags/nosuch:parse?text=1", `404 `},
		} {
			if got := a.request(tt.request); !strings.Contains(got, tt.want) {
				t.Errorf("%s: got %s, want %s", tt.request, got, tt.want)
			}
		}
		_, err = a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: api.MaxTexts + 1, Texts: true})
		if err == nil || !strings.Contains(err.Error(), "count: 10001; allowed with texts: 1 to 10000") {
			t.Errorf("got %v", err)
		}
		// The end of the domain.
		for id := int64(2); ; id++ {
			one, err := a.Next(bg, &marchv1.NextRequest{Tag: "odd"})
			if err != nil {
				if allocator.KindOf(api.FromStatus(err)) != allocator.Exhausted || id < 50 {
					t.Errorf("after %d IDs: %v", id, err)
				}
				break
			}
			if one.GetText() != fmt.Sprintf(`\"<%02d`, one.GetId()) {
				t.Fatalf("got %v", one)
			}
		}
	})
}

// A room without the key of a tag, or with another one, issues no text and no single ID.
func TestOpaqueKeys(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		right, wrong := opaqueKey(t, "orders-1", 1), opaqueKey(t, "orders-1", 2)
		c.tag(with("prefix(A) | opaque(orders-1, 10^6) | decimal(6)", right.CheckValue()), "order")
		a1 := c.start("a", "a1", func(cfg *room.Config) { cfg.OpaqueKeys = []format.Key{right} })
		one, err := a1.Next(bg, &marchv1.NextRequest{Tag: "order"})
		if err != nil || len(one.GetText()) != 7 || one.GetText() == "A000001" {
			t.Fatalf("got %v, %v", one, err)
		}
		if read, err := a1.ParseText(bg, &marchv1.ParseTextRequest{Tag: "order", Text: one.GetText()}); err != nil ||
			read.GetId() != one.GetId() {
			t.Errorf("read as %v, %v", read, err)
		}
		for name, keys := range map[allocator.Instance][]format.Key{"wrong": {wrong}, "none": nil} {
			says := "the key orders-1 here is another than the tag's: its check value is " + wrong.CheckValue() +
				", the tag's " + right.CheckValue()
			if keys == nil {
				says = "the tag's texts need the key orders-1, which is not here"
			}
			i := c.start("a", name, func(cfg *room.Config) { cfg.OpaqueKeys = keys })
			stream, err := i.Stream(bg)
			if err != nil {
				t.Fatal(err)
			}
			for call, do := range map[string]func() error{
				"Next": func() error { _, err := i.Next(bg, &marchv1.NextRequest{Tag: "order"}); return err },
				"NextBatch": func() error {
					_, err := i.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: 5, Texts: true})
					return err
				},
				"ParseText": func() error {
					_, err := i.ParseText(bg, &marchv1.ParseTextRequest{Tag: "order", Text: one.GetText()})
					return err
				},
				"Decode": func() error {
					_, err := i.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Text: one.GetText()})
					return err
				},
				"Stream": func() error {
					if err := stream.Send(&marchv1.NextRequest{Tag: "order"}); err != nil {
						return err
					}
					_, err := stream.Recv()
					return err
				},
			} {
				if err := do(); allocator.KindOf(api.FromStatus(err)) != allocator.Refused ||
					!strings.Contains(err.Error(), says) {
					t.Errorf("%s, %s: got %v; want %s", name, call, err, says)
				}
			}
			if chain := i.chain("order"); chain.GetIssued() != 0 {
				t.Errorf("%s: %d IDs are lost", name, chain.GetIssued())
			}
			lease, err := i.Lease(bg, &marchv1.LeaseRequest{Tag: "order", Count: 1})
			if err != nil || lease.GetKeyCheck() != right.CheckValue() {
				t.Errorf("%s: got %v, %v", name, lease, err)
			}
		}
	})
}

// A tag that is deleted and made anew with another format has texts of that.
func TestFormatOfATagMadeAnew(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		makes := map[string]func(*record.TagSettings){
			"order": nil, "event": timed(cosid),
		}
		formats := func(tag, prefix string) func(*record.TagSettings) {
			return func(s *record.TagSettings) {
				if makes[tag] != nil {
					makes[tag](s)
				}
				with("prefix("+prefix+") | radix62(11)", "")(s)
			}
		}
		a := c.start("a", "a1", nil)
		for tag := range makes {
			c.tag(formats(tag, "A-"), allocator.Tag(tag))
			if one, err := a.Next(bg, &marchv1.NextRequest{Tag: tag}); err != nil ||
				!strings.HasPrefix(one.GetText(), "A-") {
				t.Fatalf("%s: %v, %v", tag, one, err)
			}
			if err := c.Admin.DeleteTag(bg, allocator.Tag(tag), "test"); err != nil {
				t.Fatal(err)
			}
			settings := record.DefaultTag()
			formats(tag, "B-")(&settings)
			if _, _, err := c.Admin.ReuseTag(bg, allocator.Tag(tag), settings, "test"); err != nil {
				t.Fatal(err)
			}
			a.await("the new format of "+tag, func() bool {
				one, err := a.Next(bg, &marchv1.NextRequest{Tag: tag})
				return err == nil && strings.HasPrefix(one.GetText(), "B-")
			})
		}
	})
}
