package room_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// The IDs of 80 bits exist only as texts: a room issues these, with workers of its slice,
// and refuses each call for numbers before it takes an ID.
func TestSortableStrings(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		for tag, description := range map[allocator.Tag]string{"s62": "sortable(62)",
			"s36": "prefix(S-) | sortable(36)"} {
			c.tag(func(s *record.TagSettings) { timed(timeid.Wide)(s); with(description, "")(s) }, tag)
		}
		c.tag(nil, "plain")
		a, b := c.start("a", "a1", nil), c.start("b", "b1", nil)
		seen := map[string]bool{}
		for tag, description := range map[string]string{"s62": "sortable(62)", "s36": "prefix(S-) | sortable(36)"} {
			f, err := format.Parse(description)
			if err != nil {
				t.Fatal(err)
			}
			for room, lower := range map[string]int64{"a": 0, "b": 1 << 19} {
				i := map[string]*instance{"a": a, "b": b}[room]
				began := time.Now()
				var all []string
				for _, n := range []int64{1, 2000, 1} {
					r, err := i.NextBatch(bg, &marchv1.NextBatchRequest{Tag: tag, Count: n, Texts: true})
					if err != nil || int64(len(r.GetTexts())) != n || len(r.GetRuns()) != 0 ||
						r.GetFormat() != description {
						t.Fatalf("%s: %d texts, %v, %v", tag, len(r.GetTexts()), r.GetRuns(), err)
					}
					all = append(all, r.GetTexts()...)
				}
				if !slices.IsSorted(all) {
					t.Errorf("%s: the texts do not sort as they were issued", tag)
				}
				for _, text := range all {
					v, err := f.ParseText(text)
					if err != nil || v.Parts.Worker < lower || v.Parts.Worker >= lower+1<<19 ||
						v.Parts.Time < began.UnixMilli() || v.Parts.Time > time.Now().UnixMilli() {
						t.Fatalf("%s: %s is of %+v, %v; want a worker from %d on", tag, text, v.Parts, err, lower)
					}
					if seen[text] {
						t.Fatalf("%s: %s came twice", tag, text)
					}
					seen[text] = true
				}
				d, err := i.Decode(bg, &marchv1.DecodeRequest{Tag: tag, Text: all[0]})
				if v, _ := f.ParseText(all[0]); err != nil || d.Id != nil || d.GetText() != all[0] ||
					d.GetTime().GetWorker() != v.Parts.Worker ||
					d.GetTime().GetSequence() != v.Parts.Sequence ||
					d.GetTime().GetTime().AsTime().UnixMilli() != v.Parts.Time || d.GetTime().GetRoom() != room {
					t.Errorf("%s: got %v, %v", all[0], d, err)
				}
			}
		}

		stream, err := a.Stream(bg)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&marchv1.NextRequest{Tag: "s62"}); err != nil {
			t.Fatal(err)
		}
		refusals := map[string]error{}
		_, refusals["Stream"] = stream.Recv()
		_, refusals["Next"] = a.Next(bg, &marchv1.NextRequest{Tag: "s62"})
		_, refusals["NextBatch"] = a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "s62", Count: 1})
		_, refusals["NextMany"] = a.NextMany(bg,
			&marchv1.NextManyRequest{Tags: []*marchv1.TagCount{{Tag: "plain", Count: 1}, {Tag: "s62", Count: 1}}})
		_, refusals["ParseText"] = a.ParseText(bg, &marchv1.ParseTextRequest{Tag: "s62", Text: "0Sb8Fduy0001000"})
		for call, err := range refusals {
			if err := api.FromStatus(err); allocator.KindOf(err) != allocator.Refused ||
				!strings.Contains(err.Error(), "exist only as texts; NextBatch with texts") {
				t.Errorf("%s: got %v", call, err)
			}
		}
		if id := a.mustNext("plain"); id != 1 {
			t.Errorf("the refused NextMany took an ID: the next is %d", id)
		}
		for _, bad := range []*marchv1.DecodeRequest{{Tag: "s62", Id: 5},
			{Tag: "s62", Text: "S-" + strings.Repeat("0", 17)}, {Tag: "s62", Text: "zzzzzzzz0001000"},
			{Tag: "s62", Text: "z0000000" + "0001000"}} {
			if _, err := a.Decode(bg, bad); allocator.KindOf(api.FromStatus(err)) != allocator.Invalid {
				t.Errorf("%v: got %v", bad, err)
			}
		}
		// Next has no answer for them: its number would be 0 to a caller that reads no text.
		if got := a.request("POST /v1/tags/s62/next"); !strings.HasPrefix(got, "400 ") ||
			!strings.Contains(got, `POST next?count=1&texts=true over HTTP`) {
			t.Errorf("got %s", got)
		}
		if got := a.request("POST /v1/tags/s62/next?count=1&texts=true"); !strings.HasPrefix(got,
			`200 {"runs":[],"format":"sortable(62)","texts":["`) {
			t.Errorf("got %s", got)
		}
	})
}
