package minutes_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/minutes"
)

const unknown = minutes.Unknown

// start is the beginning of an hour.
var start = time.Unix(3600*500_000, 0)

// begun returns a history that has begun at start.
func begun() *minutes.History {
	h := &minutes.History{}
	h.Start(start)
	return h
}

func TestMinute(t *testing.T) {
	h := begun()
	h.Fail("order")
	h.Fail("order")
	for i := range 60 {
		h.Note(minutes.Reading{Issued: int64(i), Reserve: time.Duration(90-i) * time.Second,
			Latency: time.Duration(i) * time.Millisecond, Away: i >= 50})
	}
	now := start.Add(time.Minute)
	if h.Ends(now.Add(-time.Millisecond)) || !h.Ends(now) {
		t.Error("the minute does not end on its end")
	}
	h.End(now, minutes.Reading{Issued: 600, Reserve: unknown}, nil)
	first, all, tags := h.Last(now, 3, 1)
	want := &marchv1.HistorySeries{
		Rates: []float32{unknown, unknown, 10}, Reserves: []float32{unknown, unknown, 31},
		EtcdLatencies: []float32{unknown, unknown, .049}, Failed: []float32{unknown, unknown, 2},
		EtcdAway: []float32{unknown, unknown, 10},
	}
	if diff := cmp.Diff(want, all, protocmp.Transform()); diff != "" || len(tags) != 0 {
		t.Errorf("tags %v, (-want +got)\n%s", tags, diff)
	}
	if !first.Equal(now.Add(-3 * time.Minute)) {
		t.Errorf("begins at %v", first)
	}
}

// A process that stood still, and a clock that goes back, leave minutes unknown.
func TestGaps(t *testing.T) {
	h := begun()
	at := func(minute int, issued int64) {
		h.End(start.Add(time.Duration(minute)*time.Minute), minutes.Reading{Issued: issued, Reserve: unknown}, nil)
	}
	last := func(now, minutes int) []float32 {
		_, all, _ := h.Last(start.Add(time.Duration(now)*time.Minute), int64(minutes), 1)
		return all.GetRates()
	}
	at(1, 60)
	at(2, 180)
	at(5, 540) // 360 IDs in the three minutes that began as the third did
	if diff := cmp.Diff([]float32{1, 2, 2, unknown, unknown}, last(5, 5)); diff != "" {
		t.Errorf("late (-want +got)\n%s", diff)
	}
	at(6, 600)
	h.End(start.Add(3*time.Minute), minutes.Reading{Issued: 600, Reserve: unknown}, nil) // back by three minutes
	at(4, 780)
	if diff := cmp.Diff([]float32{1, 2, 2, 3}, last(4, 4)); diff != "" {
		t.Errorf("back (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]float32{3, unknown, unknown}, last(6, 3)); diff != "" {
		t.Errorf("after the clock's minute (-want +got)\n%s", diff)
	}
}

// The memory has 24 hours and forgets the rest, in the place of which new minutes are.
func TestBound(t *testing.T) {
	h := begun()
	for m := 1; m <= 2*minutes.Kept+7; m++ {
		h.End(start.Add(time.Duration(m)*time.Minute),
			minutes.Reading{Issued: int64(m) * (int64(m) + 1) * 30, Reserve: unknown}, nil)
	}
	now := start.Add((2*minutes.Kept + 7) * time.Minute)
	_, all, _ := h.Last(now, minutes.Kept, 1)
	got := all.GetRates()
	// The oldest minute's place is that of the present one.
	if got[0] != unknown || got[1] != minutes.Kept+9 || got[minutes.Kept-1] != 2*minutes.Kept+7 {
		t.Errorf("%v ... %v", got[:3], got[minutes.Kept-3:])
	}
	if i := slices.Index(got[1:], unknown); i >= 0 {
		t.Errorf("minute %d is unknown", i+1)
	}
}

// Points of more than a minute begin at multiples of their length, and have the mean rate.
func TestSteps(t *testing.T) {
	h := begun()
	for m := range 12 {
		h.End(start.Add(time.Duration(m+1)*time.Minute),
			minutes.Reading{Issued: int64(m+1) * 60, Reserve: time.Duration(m+1) * time.Second}, nil)
	}
	first, all, _ := h.Last(start.Add(12*time.Minute), 15, 5)
	if !first.Equal(start) {
		t.Errorf("begins at %v, want %v", first, start)
	}
	want := &marchv1.HistorySeries{Rates: []float32{1, 1, 1}, Reserves: []float32{1, 6, 11}}
	got := &marchv1.HistorySeries{Rates: all.GetRates(), Reserves: all.GetReserves()}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTags(t *testing.T) {
	h := begun()
	minute := 0
	end := func(tags ...minutes.TagReading) {
		minute++
		h.End(start.Add(time.Duration(minute)*time.Minute), minutes.Reading{Reserve: unknown}, tags)
	}
	read := func(tag allocator.Tag, issued int64, peak float64) minutes.TagReading {
		return minutes.TagReading{Tag: tag, Issued: issued, Reserve: 2 * time.Second, Peak: peak}
	}
	end(read("order", 1000, 5), read("idle", 7, 0)) // an idle tag gets no history
	h.Fail("order")
	h.Fail("idle")
	end(read("order", 1120, 5), read("order", 1120, 0)) // twice: as busy, and as one that has a history
	end()                                               // not in memory
	end(read("order", 60, 5))
	_, all, tags := h.Last(start.Add(4*time.Minute), 4, 1)
	want := []*marchv1.HistorySeries{{Tag: "order", Rates: []float32{unknown, 2, 0, 1},
		Reserves: []float32{unknown, 2, unknown, 2}, Failed: []float32{unknown, 1, 0, 0}}}
	if diff := cmp.Diff(want, tags, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if all.GetFailed()[1] != 2 {
		t.Errorf("%v calls failed, want 2", all.GetFailed()[1])
	}
}

// There are at most MaxTags tags. A tag that is much busier takes the place of the least busy
// one. Tags that are about as busy as each other do not take turns.
func TestBusiest(t *testing.T) {
	h := begun()
	minute, issued := 0, make(map[allocator.Tag]int64)
	end := func(peaks map[allocator.Tag]float64) {
		minute++
		var busy, kept []minutes.TagReading
		for tag, peak := range peaks {
			issued[tag] += int64(60 * peak)
			busy = append(busy, minutes.TagReading{Tag: tag, Issued: issued[tag], Peak: peak})
		}
		slices.SortFunc(busy, func(a, b minutes.TagReading) int { return int(b.Peak - a.Peak) })
		for _, tag := range h.Tags() {
			kept = append(kept, minutes.TagReading{Tag: tag, Issued: issued[tag]})
		}
		h.End(start.Add(time.Duration(minute)*time.Minute), minutes.Reading{Reserve: unknown},
			append(busy[:min(len(busy), minutes.MaxTags)], kept...))
	}
	peaks := make(map[allocator.Tag]float64)
	for i := range minutes.MaxTags {
		peaks[allocator.Tag(fmt.Sprintf("t%02d", i))] = float64(100 + i)
	}
	end(peaks)
	end(peaks)
	full := h.Tags()
	if len(full) != minutes.MaxTags {
		t.Fatalf("%d tags: %v", len(full), full)
	}
	peaks["like"] = 150
	end(peaks)
	if diff := cmp.Diff(full, h.Tags()); diff != "" {
		t.Errorf("a tag that is as busy took a place (-before +after)\n%s", diff)
	}
	peaks["much"] = 1000
	end(peaks)
	if got := h.Tags(); slices.Contains(got, "t00") || !slices.Contains(got, "much") || len(got) != minutes.MaxTags {
		t.Errorf("got %v", got)
	}
	end(peaks)
	_, _, tags := h.Last(start.Add(5*time.Minute), 5, 1)
	if got := tags[0].GetRates(); tags[0].GetTag() != "much" || got[4] != 1000 || got[3] != unknown {
		t.Errorf("the busiest is %+v", tags[0])
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		minutes, step int32
		m, each       int64
		problem       string
	}{
		{0, 0, 60, 1, ""},
		{1440, 5, 1440, 5, ""},
		{1441, 0, 0, 0, "minutes: 1441; allowed: 1 to 1440, 0 for 60"},
		{-1, 0, 0, 0, "minutes: -1; allowed: 1 to 1440, 0 for 60"},
		{60, 7, 0, 0, "step: 7; allowed: 1 to 60, and a divisor of minutes (60); 0 for 1"},
		{1440, 120, 0, 0, "step: 120; allowed: 1 to 60, and a divisor of minutes (1440); 0 for 1"},
	} {
		m, each, err := minutes.Check(test.minutes, test.step)
		if text := fmt.Sprint(err); m != test.m || each != test.each ||
			(err != nil || test.problem != "") && text != test.problem {
			t.Errorf("Check(%d, %d) = %d, %d, %v", test.minutes, test.step, m, each, err)
		}
	}
}

// BenchmarkFail is what the history adds to a call that fails.
func BenchmarkFail(b *testing.B) {
	h := begun()
	b.ReportAllocs()
	for b.Loop() {
		h.Fail("order")
	}
}
