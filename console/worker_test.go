package console_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// The list of tags says of a time tag which part of its time bits is over, and for how long
// the rest lasts.
func TestSearchTimeTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		s := startHalves(t)
		s.Tag(timed(usual), "test", "event")
		var found *marchv1.SearchTagsResponse
		testcluster.Await(t, "the tags are read", func() bool {
			var err error
			found, err = s.SearchTags(bg, &marchv1.SearchTagsRequest{})
			return err == nil && found.GetAsOf() != nil
		})
		tag := found.GetTags()[0]
		var settings record.TagSettings
		timed(usual)(&settings)
		end := time.UnixMilli(settings.Time.Layout().End())
		if ends := time.Now().Add(tag.GetLasts().AsDuration()); ends.Sub(end).Abs() > time.Hour ||
			tag.GetUsed() <= 0 || tag.GetUsed() >= 1 {
			t.Errorf("used %v, ends at %v, want %v", tag.GetUsed(), ends, end)
		}
	})
}

// Workers are listed by width and number, a page at a time, and those of other rooms are
// passed over wherever a page ends.
func TestListWorkers(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		s := startHalves(t)
		keys := record.Keys("/march/default/")
		put := func(key, value string) { s.Corrupt(store.OpPut(key, []byte(value))) }
		now := time.Now().UnixMilli()
		running := ""
		has := func(room string, bits int, number, until int64, caller bool) {
			t.Helper()
			w := record.Worker{
				Room: "a", Instance: "one", Incarnation: running, From: now - 1000, Until: until, Clock: now - 1000,
				Stamp: record.Stamp{Epoch: "e", Revision: 1}, Caller: caller,
			}
			if room == "b" {
				w.Room = "b"
			}
			put(keys.Worker(record.WorkerID{Bits: bits, Number: number}), string(w.Encode()))
		}
		s.room("a", "one")
		instances, _, err := s.Admin.Instances(bg, "a")
		if err != nil {
			t.Fatal(err)
		}
		running = instances[0].Incarnation
		has("a", 3, 0, now+time.Hour.Milliseconds(), false)
		running = "c" // a process that is gone
		has("a", 3, 1, now+time.Hour.Milliseconds(), false)
		has("b", 3, 4, now-1, false)
		has("a", 3, 5, now-1, false) // of b's slice by now
		has("b", 3, 6, now-1, false)
		has("b", 3, 7, now+time.Hour.Milliseconds(), true)
		has("a", 10, 3, now+time.Hour.Milliseconds(), true)
		put(keys.Worker(record.WorkerID{Bits: 10, Number: 4}), "{}")

		list := func(size int32, room string, bits *int32) (all []string) {
			t.Helper()
			for token, pages := "", 0; ; pages++ {
				answer, err := s.ListWorkers(bg, &marchv1.ListWorkersRequest{PageSize: size,
					PageToken: token, Room: room, Bits: bits})
				if err != nil || pages > 10 {
					t.Fatal(err)
				}
				if n := len(answer.GetWorkers()); size > 0 && n > int(size) || n == 0 &&
					answer.GetNextPageToken() != "" {
					t.Errorf("a page of %d workers", n)
				}
				if (token == "") != (len(answer.GetSlices()) > 0) {
					t.Errorf("slices on page %d: %v", pages, answer.GetSlices())
				}
				for _, w := range answer.GetWorkers() {
					text := fmt.Sprintf("%d/%d %s %s", w.GetBits(), w.GetNumber(), w.GetRoom(), api.Word(w.GetState()))
					if w.GetCaller() {
						text += " caller"
					}
					if (w.GetLeft() != nil) != (w.GetState() == marchv1.WorkerState_WORKER_STATE_LIVE ||
						w.GetState() == marchv1.WorkerState_WORKER_STATE_SILENT) {
						t.Errorf("%s: left %v", text, w.GetLeft())
					}
					all = append(all, text)
				}
				if token = answer.GetNextPageToken(); token == "" {
					return all
				}
			}
		}
		every := []string{"3/0 a live", "3/1 a silent", "3/4 b free", "3/5 a free", "3/6 b free", "3/7 b live caller",
			"10/3 a live caller"}
		for size := range int32(8) {
			if got := list(size, "", nil); !slices.Equal(got, every) {
				t.Errorf("pages of %d: got %q", size, got)
			}
			if got := list(size, "a", nil); !slices.Equal(got, []string{every[0], every[1], every[3], every[6]}) {
				t.Errorf("room a, pages of %d: got %q", size, got)
			}
		}
		if got := list(1, "b", new(int32(3))); !slices.Equal(got, []string{every[2], every[4], every[5]}) {
			t.Errorf("room b, 3 bits: got %q", got)
		}
		if got := list(0, "", new(int32(22))); len(got) > 0 {
			t.Errorf("22 bits: got %q", got)
		}
		answer, err := s.ListWorkers(bg, &marchv1.ListWorkersRequest{Bits: new(int32(3))})
		if err != nil || len(answer.GetSlices()) != 2 {
			t.Fatalf("%v, %v", answer, err)
		}
		if b := answer.GetSlices()[1]; b.GetRoom() != "b" || b.GetLower() != 4 || b.GetUpper() != 8 ||
			b.GetTaken() != 4 || b.GetLive() != 1 {
			t.Errorf("slice %v", b)
		}
		if answer, err = s.ListWorkers(bg, &marchv1.ListWorkersRequest{}); err != nil ||
			len(answer.GetUnreadable()) != 1 {
			t.Errorf("unreadable: %v, %v", answer.GetUnreadable(), err)
		}
		for _, r := range []*marchv1.ListWorkersRequest{
			{PageToken: "3"}, {PageToken: "3/x"}, {PageToken: "3/8"}, {PageToken: "03/1"}, {PageSize: 1001},
			{Bits: new(int32(-1))}, {Room: "B"},
		} {
			_, err := s.ListWorkers(bg, r)
			invalid().check(t, r.String(), err)
		}
	})
}
