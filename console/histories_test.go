package console

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// The histories of instances whose clocks differ are joined minute by minute: rates and failed calls are added up,
// reserves are the least, and times without etcd and latencies the longest. What is not known stays so.
func TestHistories(t *testing.T) {
	start := time.Unix(3600*500_000, 0).UTC()
	h := newHistories(start, time.Minute, 3)
	add := func(room string, minute int, rate, reserve, latency, failed, away float32, tag string) {
		two := func(v float32) []float32 { return []float32{v, v} }
		h.addAll(room, &marchv1.GetInstanceHistoryResponse{
			First: timestamppb.New(start.Add(time.Duration(minute) * time.Minute)),
			All: &marchv1.HistorySeries{Rates: two(rate), Reserves: two(reserve), EtcdLatencies: two(latency),
				Failed: two(failed), EtcdAway: two(away)},
			Tags: []*marchv1.HistorySeries{{Tag: tag, Rates: []float32{rate + 1, -1}}},
		})
	}
	for _, room := range []string{"a", "b", "empty"} {
		h.add(room, "", 0, nil)
	}
	add("a", 0, 10, 60, .1, 1, 0, "order")
	add("a", 1, 5, 30, .3, 2, 9, "order") // its clock is a minute ahead
	h.addAll("a", nil)
	add("b", -1, 7, -1, .2, 0, 0, "lost") // its first minute is before the first point
	add("b", 2, -1, -1, -1, -1, -1, "item")
	rooms, tags := h.rooms(), h.busiest("")
	if len(rooms) != 3 || rooms[0].GetRoom() != "a" || rooms[2].GetRoom() != "empty" || len(tags) != 3 {
		t.Fatalf("rooms %v, tags %v", rooms, tags)
	}
	got := [][]float32{rooms[0].GetAll().GetRates(), rooms[0].GetAll().GetReserves(),
		rooms[0].GetAll().GetEtcdLatencies(), rooms[0].GetAll().GetFailed(), rooms[0].GetAll().GetEtcdAway(),
		rooms[0].GetTags()[0].GetRates(), rooms[1].GetAll().GetRates(), rooms[2].GetAll().GetRates(),
		tags[0].GetRates(), tags[1].GetRates(), tags[2].GetRates()}
	want := [][]float32{{10, 15, 5}, {60, 30, 30}, {.1, .3, .3}, {1, 3, 2}, {0, 9, 9},
		{11, 6, -1}, {7, -1, -1}, {-1, -1, -1},
		{11, 6, -1}, {-1, -1, 0}, {-1, -1, -1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
