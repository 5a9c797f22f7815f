package web

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	marchv1 "github.com/march-id/march/api/march/v1"
)

var chartStart = time.Unix(3600*500_000, 0).UTC()

func minutesOf(points int) span { return span{chartStart, time.Minute, points} }

func minute(n int) time.Time { return chartStart.Add(time.Duration(n) * time.Minute) }

func TestOutages(t *testing.T) {
	got := minutesOf(7).outages(&marchv1.HistorySeries{EtcdAway: []float32{3, 0, 60, 60, 5, -1, 1}})
	if want := []outage{{minute(0), minute(1)}, {minute(2), minute(5)}, {minute(6), minute(7)}}; !reflect.DeepEqual(
		got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestChart(t *testing.T) {
	s := minutesOf(60)
	values := make([]float32, 60)
	for i := range values {
		values[i] = float32(i)
	}
	values[10] = -1
	b, _ := s.newBand("outage", "etcd did not answer a", minute(5), minute(6))
	k := kind{Title: "IDs per second", say: func(v float64) string { return fmt.Sprint(v) }, nice: niceNumber(1)}
	c := newChart(k, s, []line{{Name: "a", values: values}, {Name: "b", values: make([]float32, 60)}}, []band{b})
	if a, b := c.Lines[0], c.Lines[1]; len(a.Points) != 2 || len(b.Points) != 1 || a.Dash == b.Dash ||
		!strings.HasPrefix(a.Points[1], "110.0,142.4 120.0,142.4") {
		t.Errorf("lines %+v", c.Lines)
	}
	got := []string{c.Label}
	for _, tick := range append(c.Scale, c.Hours...) {
		got = append(got, tick.Text)
	}
	for _, i := range []int{4, 5, 6, 10} {
		got = append(got, c.Slots[i].Text, c.Slots[i].Rows[0])
	}
	got = append(got, string(c.Table().Rows[0].Cells[0].Text), newChart(k, s, nil, nil).Label)
	if diff := cmp.Diff([]string{"IDs per second, 08:00 to 09:00 UTC, 59 at most; a 59; b 0",
		"100", "50", "0", "08:10", "08:20", "08:30", "08:40", "08:50", "UTC", "08:04\na: 4\nb: 0", "4",
		"08:05\na: 5\nb: 0\netcd did not answer a", "5", "08:06\na: 6\nb: 0", "6", "08:10\nb: 0", "–", "08:59",
		"IDs per second, 08:00 to 09:00 UTC: nothing was measured"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	day := newChart(k, span{chartStart, 15 * time.Minute, 96}, nil, nil)
	if len(day.Hours) < 6 || len(day.Hours) > 7 {
		t.Errorf("a day has the hours %v", day.Hours)
	}
}

func TestBand(t *testing.T) {
	for _, test := range []struct {
		began, ended int
		x, w         string // empty where it is outside
	}{
		{-20, -10, "", ""}, {70, 80, "", ""}, {-5, 6, "0.0", "60.0"}, {54, 90, "540.0", "60.0"},
		{30, 30, "300.0", "3.0"}, {59, 60, "590.0", "10.0"},
	} {
		b, in := minutesOf(60).newBand("migration", "m", minute(test.began), minute(test.ended))
		if in != (test.x != "") || in && (b.X() != test.x || b.W() != test.w) {
			t.Errorf("minutes %d to %d: %+v, %t", test.began, test.ended, b, in)
		}
	}
}

func TestNice(t *testing.T) {
	for most, want := range map[float64]float64{0: 1, 1: 1, 1.5: 2, 3: 5, 5: 5, 7: 10, 1001: 2000, .3: 1} {
		if got := niceNumber(1)(most); got < want*.999 || got > want*1.001 {
			t.Errorf("niceNumber(%v) = %v, want %v", most, got, want)
		}
	}
	for most, want := range map[float64]float64{0: 10, 31: 60, 601: 1200, 5 * 86400: 7 * 86400} {
		if got := niceTime(most); got != want {
			t.Errorf("niceTime(%v) = %v, want %v", most, got, want)
		}
	}
}

// A stream sends the live part, and then the lines that changed while it has as many.
func TestPartsThatChange(t *testing.T) {
	now := part{lines: []string{"a", "b", "c"}}
	trouble := part{name: "trouble", lines: []string{"etcd is away"}}
	got := []string{now.event(nil), now.event([]string{"a", "x", "c"}), now.event([]string{"a"}),
		trouble.event([]string{"x"})}
	if want := []string{"data: a\ndata: b\ndata: c\n", "event: changed\ndata: 1 b\n",
		"data: a\ndata: b\ndata: c\n", "event: trouble\ndata: etcd is away\n"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
