package console_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestOverview: the figures of a room come from all its instances together.
func TestOverview(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order"})
		c.Open = func(testing.TB) store.Store { // whose answers take a millisecond
			conn := c.Mem.Open()
			conn.Fate(func(store.Txn) (done ledgertest.Fate) {
				time.Sleep(time.Millisecond)
				return done
			})
			return conn
		}
		ids := c.room("a", "host-1")
		c.room("a", "host-2")
		must(ids.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: 700}))(t)
		var o *marchv1.GetOverviewResponse
		testcluster.Await(t, "the rate of room a was measured", func() bool {
			var err error
			if o, err = c.GetOverview(bg, &marchv1.GetOverviewRequest{}); err != nil {
				t.Fatal(err)
			}
			return o.GetAsOf() != nil && o.GetRooms()[0].Rate != nil
		})
		a, b := o.GetRooms()[0], o.GetRooms()[1]
		if a.GetName() != "a" || a.GetInstances() != 2 || a.GetAlive() != 2 || a.GetReady() != 2 ||
			a.GetVersion() != 1 ||
			a.GetHeld() == 0 || a.GetEtcdLatency() == nil {
			t.Errorf("room a: %v", a)
		}
		if b.GetInstances() != 0 || b.GetRange().GetLower() != 50 || b.GetEtcdLatency() != nil {
			t.Errorf("room b: %v", b)
		}
		issued := func() (sum int64) {
			list := must(c.ListInstances(bg, &marchv1.ListInstancesRequest{Status: true}))(t)
			for _, i := range list.GetInstances() {
				sum += i.GetStatus().GetIssued()
			}
			return sum
		}
		testcluster.Await(t, "all that was issued is told", func() bool { return issued() == 700 })
		must(c.DeleteTag(bg, &marchv1.DeleteTagRequest{Name: "order"}))(t)
		testcluster.Await(t, "the chain is gone from memory", func() bool {
			list := must(c.ListInstances(bg, &marchv1.ListInstancesRequest{Status: true}))(t)
			for _, i := range list.GetInstances() {
				if i.GetStatus() == nil || i.GetStatus().GetTags() > 0 {
					return false
				}
			}
			return true
		})
		if n := issued(); n != 700 {
			t.Errorf("%d IDs issued after the tag went, want 700 still", n)
		}
	})
}

// search asks until the console has read all tags.
func (c *consoleOf) search(r *marchv1.SearchTagsRequest, total int64) *marchv1.SearchTagsResponse {
	c.Helper()
	var answer *marchv1.SearchTagsResponse
	testcluster.Await(c, fmt.Sprint("the console has read ", total, " tags"), func() bool {
		var err error
		if answer, err = c.SearchTags(bg, r); err != nil {
			c.Fatal(err)
		}
		return answer.GetAsOf() != nil && answer.GetTotal() == total
	})
	return answer
}

func TestSearchTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		for i := range 30 {
			c.create(&marchv1.Tag{Name: fmt.Sprintf("t-%02d", i), Limit: ptr(int64(1_000_000 - i))})
		}
		ids := c.room("a", "host-1")
		for _, n := range []int{7, 19} {
			if _, err := ids.NextBatch(bg, &marchv1.NextBatchRequest{Tag: fmt.Sprintf("t-%02d", n),
				Count: int64(1000 * n)}); err != nil {
				t.Fatal(err)
			}
		}
		names := func(a *marchv1.SearchTagsResponse) (list []string) {
			for _, t := range a.GetTags() {
				list = append(list, t.GetTag().GetName())
			}
			return list
		}
		for _, test := range []struct {
			r     *marchv1.SearchTagsRequest
			want  string
			found int64
		}{
			{&marchv1.SearchTagsRequest{PageSize: 2}, "[t-00 t-01]", 30},
			{&marchv1.SearchTagsRequest{PageSize: 2, Offset: 29}, "[t-29]", 30},
			{&marchv1.SearchTagsRequest{PageSize: 2, Offset: 30}, "[]", 30},
			{&marchv1.SearchTagsRequest{PageSize: 2, Descending: true}, "[t-29 t-28]", 30},
			{&marchv1.SearchTagsRequest{Search: "-1", PageSize: 3, Offset: 1}, "[t-11 t-12 t-13]", 10},
			{&marchv1.SearchTagsRequest{Search: "nothing"}, "[]", 0},
			{&marchv1.SearchTagsRequest{Sort: marchv1.TagSort_TAG_SORT_NEXT, Descending: true, PageSize: 2},
				"[t-19 t-07]", 30},
			{&marchv1.SearchTagsRequest{Sort: marchv1.TagSort_TAG_SORT_USED, Descending: true, PageSize: 2},
				"[t-19 t-07]", 30},
		} {
			if got := c.search(test.r, 30); fmt.Sprint(names(got)) != test.want || got.GetFound() != test.found {
				t.Errorf("%v: %v of %d, want %v of %d", test.r, names(got), got.GetFound(), test.want, test.found)
			}
		}
		one := c.search(&marchv1.SearchTagsRequest{Search: "t-19"}, 30).GetTags()[0]
		if m := one.GetMarks(); len(m) != 1 || m[0].GetRoom() != "a" || m[0].GetNext() < 19_000 ||
			one.GetUsed() < 0.03 || one.GetUsed() > 1 {
			t.Errorf("t-19: %v", one)
		}
		c.create(&marchv1.Tag{Name: "late"})
		c.search(&marchv1.SearchTagsRequest{}, 31) // a tag that is created later is seen

		for _, r := range []*marchv1.SearchTagsRequest{{Sort: 99}, {Offset: -1}, {PageSize: 1001},
			{Search: string(make([]byte, 64))}} {
			_, err := c.SearchTags(bg, r)
			invalid("allowed").check(t, fmt.Sprint(r), err)
		}
	})
}

func ptr[T any](v T) *T { return &v }

func TestAuditFilters(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		for i := range 25 {
			c.create(&marchv1.Tag{Name: fmt.Sprintf("t-%02d", i)})
		}
		must(c.DeleteTag(bg, &marchv1.DeleteTagRequest{Name: "t-07"}))(t)
		count := func(r *marchv1.ListAuditRequest) (n int) {
			for pages := 0; ; pages++ {
				page := must(c.ListAudit(bg, r))(t)
				n += len(page.GetEntries())
				if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
					return n
				}
				if len(page.GetEntries()) != int(r.GetPageSize()) || pages > 30 {
					t.Fatalf("page %d of %v has %d entries", pages, r, len(page.GetEntries()))
				}
			}
		}
		for _, test := range []struct {
			r    *marchv1.ListAuditRequest
			want int
		}{
			{&marchv1.ListAuditRequest{PageSize: 4}, 27}, // including the entry of the layout
			{&marchv1.ListAuditRequest{PageSize: 4, Action: "create"}, 25},
			{&marchv1.ListAuditRequest{PageSize: 1, Object: "tags/t-07"}, 2},
			{&marchv1.ListAuditRequest{PageSize: 10, Object: "tags/t-1"}, 10},
			{&marchv1.ListAuditRequest{PageSize: 10, Object: "tags/", Action: "delete"}, 1},
			{&marchv1.ListAuditRequest{PageSize: 10, Actor: "from 127.0.0.1"}, 26},
			{&marchv1.ListAuditRequest{PageSize: 10, Actor: "nobody"}, 0},
		} {
			if got := count(test.r); got != test.want {
				t.Errorf("%v: %d entries, want %d", test.r, got, test.want)
			}
		}
	})
}

// TestDecode: a console answers as a room does, and says when the layout was
// current.
func TestDecode(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order"})
		ids := c.room("a", "host-1")
		must(ids.Next(bg, &marchv1.NextRequest{Tag: "order"}))(t)
		d, err := c.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Id: 1})
		if o := d.GetOrigin(); err != nil || o.GetRoom() != "a" || o.GetResidue() != 1 ||
			o.GetSince() == nil || o.GetUntil() != nil {
			t.Fatalf("%v, %v", d, err)
		}
		l := c.Ledger()
		stored := must(l.Refresh(bg))(t)
		next := stored.Layout
		next.Ranges = map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 20}}
		changed, err := admin.New(l, admin.DefaultConfig()).ChangeLayout(bg, stored, next, "test")
		if err != nil {
			t.Fatal(err)
		}
		d, err = c.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Id: 1})
		if o := d.GetOrigin(); err != nil || d.GetVersion() != 2 || o.GetLayout().GetVersion() != 1 ||
			!o.GetUntil().AsTime().Equal(changed.Time) {
			t.Errorf("%v, %v, want until %v", d, err, changed.Time)
		}
		_, err = c.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Id: -1})
		invalid("id: -1").check(t, "decode -1", err)
	})
}

// TestDecodeFromBeforeARecover: the versions between a layout and the layout of a recover
// never existed.
func TestDecodeFromBeforeARecover(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order"})
		must(c.room("a", "host-1").Next(bg, &marchv1.NextRequest{Tag: "order"}))(t)
		l := c.Ledger()
		report, err := recovery.Run(bg, l, recovery.Config{
			Actor: "ann", Apply: true, Without: []record.InstanceID{"a/host-1"}, Margin: new(int64),
			Ask: func(context.Context, record.SeenInstance, record.Question, record.UseMarks) (record.Memory, error) {
				return record.Memory{}, errors.New("not asked")
			},
		})
		if err != nil {
			t.Fatalf("%+v, %v", report, err)
		}
		recovered := must(admin.New(l, admin.DefaultConfig()).LayoutAt(bg, report.Layout.Version))(t)
		d, err := c.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Id: 1})
		if o := d.GetOrigin(); err != nil || d.GetVersion() != report.Layout.Version ||
			o.GetLayout().GetVersion() != 1 ||
			!o.GetUntil().AsTime().Equal(recovered.Time) {
			t.Errorf("%v, %v, want until %v", d, err, recovered.Time)
		}
	})
}
