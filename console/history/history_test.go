package history_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/history"
)

var start = time.Unix(3600*500_000, 0).UTC()

func span(points int) history.Span { return history.Span{First: start, Step: 1, Points: points} }

// answer is what an instance tells from a minute after start on.
func answer(minute int, all *marchv1.HistorySeries,
	tags ...*marchv1.HistorySeries) *marchv1.GetInstanceHistoryResponse {
	return &marchv1.GetInstanceHistoryResponse{First: timestamppb.New(start.Add(time.Duration(minute) * time.Minute)),
		All: all, Tags: tags}
}

func all(rate, reserve, latency, failed, away float32) *marchv1.HistorySeries {
	two := func(v float32) []float32 { return []float32{v, v} }
	return &marchv1.HistorySeries{Rates: two(rate), Reserves: two(reserve), EtcdLatencies: two(latency),
		Failed: two(failed), EtcdAway: two(away)}
}

func tag(name string, rate, reserve, failed float32) *marchv1.HistorySeries {
	return &marchv1.HistorySeries{Tag: name, Rates: []float32{rate, -1}, Reserves: []float32{reserve, -1},
		Failed: []float32{failed, -1}}
}

func TestMerge(t *testing.T) {
	rooms, tags := history.Merge(span(3), []string{"a", "b", "empty"}, []history.Told{
		{"a", answer(0, all(10, 60, .1, 1, 0), tag("order", 10, 60, 1))},
		{"a", answer(1, all(5, 30, .3, 2, 9), tag("order", 5, 90, 0))}, // its clock is a minute ahead
		{"a", nil},
		{"b", answer(-1, all(7, -1, .2, 0, 0), tag("lost", 9, 9, 9))}, // its first minute is before the first point
		{"b", answer(2, all(-1, -1, -1, -1, -1), tag("item", 100, 1, 0))},
	})
	if len(rooms) != 3 || rooms[0].GetRoom() != "a" || rooms[2].GetRoom() != "empty" {
		t.Fatalf("rooms %v", rooms)
	}
	for _, test := range []struct {
		what      string
		got, want []float32
	}{
		{"rates of a", rooms[0].GetAll().GetRates(), []float32{10, 15, 5}},
		{"reserves of a", rooms[0].GetAll().GetReserves(), []float32{60, 30, 30}},
		{"latencies of a", rooms[0].GetAll().GetEtcdLatencies(), []float32{.1, .3, .3}},
		{"failed calls of a", rooms[0].GetAll().GetFailed(), []float32{1, 3, 2}},
		{"a without etcd", rooms[0].GetAll().GetEtcdAway(), []float32{0, 9, 9}},
		{"order in a", rooms[0].GetTags()[0].GetRates(), []float32{10, 5, -1}},
		{"rates of b", rooms[1].GetAll().GetRates(), []float32{7, -1, -1}},
		{"rates of empty", rooms[2].GetAll().GetRates(), []float32{-1, -1, -1}},
		{"item in all rooms", tags[0].GetRates(), []float32{-1, -1, 100}},
		{"order in all rooms", tags[1].GetRates(), []float32{10, 5, -1}},
	} {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", test.what, diff)
		}
	}
	if len(tags) != 3 || tags[2].GetTag() != "lost" {
		t.Errorf("tags %v", tags)
	}
}

func TestOutages(t *testing.T) {
	at := func(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }
	got := span(7).Outages(&marchv1.HistorySeries{EtcdAway: []float32{3, 0, 60, 60, 5, -1, 1}})
	want := []history.Outage{{at(0), at(1)}, {at(2), at(5)}, {at(6), at(7)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestChart(t *testing.T) {
	s := span(60)
	values := make([]float32, 60)
	for i := range values {
		values[i] = float32(i)
	}
	values[10] = -1
	band, in := s.NewBand("outage", "etcd did not answer a", start.Add(5*time.Minute), start.Add(6*time.Minute))
	if !in || band.X != "50.0" || band.W != "10.0" {
		t.Errorf("band %+v", band)
	}
	kind := history.Kind{Title: "IDs per second", Say: func(v float64) string {
		return fmt.Sprint(v)
	}, Nice: history.NiceNumber(1)}
	c := history.NewChart(kind, s, []history.Line{{Name: "a", Values: values},
		{Name: "b", Values: make([]float32, 60)}}, []history.Band{band})
	if want := fmt.Sprintf("IDs per second, %s to %s UTC, 59 at most; a 59; b 0", start.Format("15:04"),
		start.Add(time.Hour).Format("15:04")); c.Label != want {
		t.Errorf("the label is %q, want %q", c.Label, want)
	}
	if got := []string{c.Scale[0].Text, c.Scale[1].Text, c.Scale[2].Text}; !cmp.Equal(got, []string{"100", "50", "0"}) {
		t.Errorf("the scale is %v", got)
	}
	if a, b := c.Lines[0], c.Lines[1]; len(a.Points) != 2 || len(b.Points) != 1 || a.Dash == b.Dash ||
		!strings.HasPrefix(a.Points[1], "110.0,142.4 120.0,142.4") {
		t.Errorf("lines %+v", c.Lines)
	}
	if got, want := c.Slots[5].Text, start.Add(5*time.Minute).Format("15:04")+
		"\na: 5\nb: 0\netcd did not answer a"; got != want {
		t.Errorf("slot 5 says %q, want %q", got, want)
	}
	if s := c.Slots[10]; strings.Contains(s.Text, "a:") || s.Rows[0] != "–" ||
		strings.Contains(c.Slots[4].Text+c.Slots[6].Text, "etcd") {
		t.Errorf("slot 10 says %q", s.Text)
	}
	if len(c.Hours) != 6 || c.Hours[5].Text != "UTC" || c.Hours[0].Text != start.Add(10*time.Minute).Format("15:04") {
		t.Errorf("the hours are %v", c.Hours)
	}
	if c.Latest()[0].Time != c.Slots[59].Time {
		t.Error("the newest slot is not the first of Latest")
	}

	none := history.NewChart(kind, s, nil, nil)
	if !none.Nothing || !strings.HasSuffix(none.Label, "nothing was measured") {
		t.Errorf("without lines: %q", none.Label)
	}
	day := history.NewChart(kind, history.Span{First: start, Step: 15, Points: 96}, nil, nil)
	if len(day.Hours) < 6 || len(day.Hours) > 7 {
		t.Errorf("a day has the hours %v", day.Hours)
	}
}

func TestBand(t *testing.T) {
	s := span(60)
	at := func(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }
	for _, test := range []struct {
		began, ended int
		x, w         string // empty where it is outside
	}{
		{-20, -10, "", ""}, {70, 80, "", ""}, {-5, 6, "0.0", "60.0"}, {54, 90, "540.0", "60.0"},
		{30, 30, "300.0", "3.0"}, {59, 60, "590.0", "10.0"},
	} {
		b, in := s.NewBand("migration", "m", at(test.began), at(test.ended))
		if in != (test.x != "") || b.X != test.x || b.W != test.w {
			t.Errorf("minutes %d to %d: %+v, %t", test.began, test.ended, b, in)
		}
	}
}

func TestNice(t *testing.T) {
	for most, want := range map[float64]float64{0: 1, 1: 1, 1.5: 2, 3: 5, 5: 5, 7: 10, 1001: 2000, .3: 1} {
		if got := history.NiceNumber(1)(most); got < want*.999 || got > want*1.001 {
			t.Errorf("NiceNumber(%v) = %v, want %v", most, got, want)
		}
	}
	for most, want := range map[float64]float64{0: 10, 31: 60, 601: 1200, 5 * 86400: 7 * 86400} {
		if got := history.NiceTime(most); got != want {
			t.Errorf("NiceTime(%v) = %v, want %v", most, got, want)
		}
	}
}
